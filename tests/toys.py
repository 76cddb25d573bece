"""Toy targets, drafters and tokenizers for tests: small enough to know every right answer, strict enough to tell."""

import itertools

import numpy as np
import torch

from specrs.types import Draft, Scores


class ToyState:
    """Slots of (token, position), with the commit and truncate semantics of ``SequenceCache``.

    What lies behind the length is left as it is, so that anything that reads it is found out.
    """

    def __init__(self, capacity):
        self.tokens = np.full(capacity, 2**32 - 1, np.int64)
        self.positions = np.full(capacity, -1, np.int64)
        self.length = 0

    def write(self, tokens, positions):
        end = self.length + len(tokens)
        while end > len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.full(len(self.tokens) + 1, 2**32 - 1, np.int64)])
            self.positions = np.concatenate([self.positions, np.full(len(self.positions) + 1, -1, np.int64)])
        self.tokens[self.length : end] = tokens
        self.positions[self.length : end] = positions

    def commit(self, kept_nodes, pending):
        start = self.length + pending
        rows = [start + int(node) for node in kept_nodes]
        assert rows == sorted(set(rows)), f"an accepted path must rise, got {kept_nodes}"
        self.tokens[start : start + len(rows)] = self.tokens[rows]
        self.positions[start : start + len(rows)] = self.positions[rows]
        self.length = start + len(rows)

    def truncate(self, length):
        assert 0 <= length <= self.length, f"cannot keep {length} of {self.length} tokens"
        self.length = length

    def size_bytes(self):
        return self.tokens.nbytes + self.positions.nbytes


class ToyTarget:
    """A ``TargetModel`` whose rows are a function of the tokens really held and visible, and their positions."""

    model = None
    prefill_chunk = 4  # small, so that prompts cross it

    def __init__(self, vocab_size, *, eos=(), max_context=None, tokenizer=None, name="toy"):
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos)
        self.max_context = max_context
        self.tokenizer = tokenizer
        self.name = name
        self.forwards = []  # (pending sizes, nodes per request) of every scored round

    def row(self, tokens, positions):
        """Return the V logits of a row that sees these tokens at these positions, itself last."""
        raise AssertionError("a toy target says what its rows are")

    def new_state(self, capacity):
        return ToyState(capacity)

    def prefill(self, state, tokens):
        tokens = np.asarray(tokens, np.int64)
        state.write(tokens, state.length + np.arange(len(tokens)))
        state.commit(np.empty(0, np.int32), len(tokens))

    def score(self, states, pending, draft):
        rows, sizes = [], []
        for b, (state, tokens) in enumerate(zip(states, pending, strict=True)):
            assert len(tokens), "a request has its anchor pending, at least"
            nodes = draft.nodes_of(b)
            parents, drafted = draft.parents[nodes], draft.tokens[nodes]
            assert len(drafted) == 0 or int(drafted.max()) < self.vocab_size, f"ids {drafted} do not exist"
            anchor = state.length + len(tokens) - 1
            positions = np.concatenate([np.arange(state.length, anchor + 1), anchor + draft.depths[nodes]])
            assert self.max_context is None or int(positions.max()) < self.max_context, f"position {positions.max()}"
            state.write(np.concatenate([tokens, drafted]).astype(np.int64), positions)
            paths = [list(range(anchor + 1))]
            for node, parent in enumerate(parents.tolist()):
                paths.append([*paths[parent + 1], anchor + 1 + node])
            rows += [self.row(state.tokens[path], state.positions[path]) for path in paths]
            sizes.append(len(paths))
        self.forwards.append(([len(t) for t in pending], np.diff(draft.node_ptr).tolist()))
        logits = torch.from_numpy(np.stack(rows).astype(np.float32))
        return Scores(logits, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _mix(values):
    """SplitMix64, elementwise."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


class TattleLM(ToyTarget):
    """Logits hash what the memory really holds: any stale, missing, doubled or misplaced entry changes them.

    ``habit`` is added to the logit of a fixed successor of the last token, so that texts repeat themselves now and
    then and cache drafts are accepted in part.
    """

    def __init__(self, vocab_size=32, *, habit=6.0, salt=0, **options):
        super().__init__(vocab_size, **options)
        self._ids = _mix(np.arange(vocab_size, dtype=np.uint64) + np.uint64(1 << 40))
        self._next = np.random.default_rng(salt).permutation(vocab_size)
        self._habit = habit
        self._salt = np.uint64(salt)

    def row(self, tokens, positions):
        rank = np.arange(len(tokens), dtype=np.uint64)
        held = _mix(_mix(_mix(rank) ^ tokens.astype(np.uint64)) ^ positions.astype(np.uint64))
        with np.errstate(over="ignore"):
            digest = _mix(np.add.reduce(held) + self._salt)
        noise = (_mix(self._ids ^ digest) >> np.uint64(40)).astype(np.float64) / 2**24  # in [0, 1)
        logits = 8.0 * noise - 4.0
        logits[self._next[tokens[-1] % self.vocab_size]] += self._habit
        return logits


class TableLM(ToyTarget):
    """Logits looked up from the whole prefix: ``table(tuple of ids) -> V logits``."""

    def __init__(self, vocab_size, table, **options):
        super().__init__(vocab_size, **options)
        self._table = table

    def row(self, tokens, positions):
        assert positions.tolist() == list(range(len(tokens))), f"positions {positions.tolist()}"
        return np.asarray(self._table(tuple(tokens.tolist())), np.float64)


def writer(vocab_size, text, prompt_length, **options):
    """Return a target that writes ``text`` after any prompt of that length, greedily, and id 0 after its end."""

    def table(prefix):
        at = len(prefix) - prompt_length
        logits = np.zeros(vocab_size)
        logits[text[at] if at < len(text) else 0] = 5.0
        return logits

    return TableLM(vocab_size, table, **options)


class ScriptDrafter:
    """Proposes what ``propose_for(request, budget)`` returns: a chain of ids, or ``(ids, parents)`` of a tree.

    Attributes
    ----------
    budgets : list of list of int
        As asked for, round by round.
    kept : dict of int to list
        Tokens that ``commit`` reported, by request id.
    active : set of int
        Requests that were started and not finished.
    """

    tokens_are_drawn = False

    def __init__(self, propose_for, *, name="script", max_context=None, obedient=True):
        self.propose_for = propose_for
        self.name = name
        self.max_context = max_context
        self.obedient = obedient
        self.budgets, self.kept, self.active, self.started = [], {}, set(), []

    @classmethod
    def rounds(cls, proposals, **options):
        """One proposal per round of a single request, then none."""
        left = list(proposals)
        return cls(lambda request, budget: left.pop(0) if left else [], **options)

    def start(self, request):
        assert request.id not in self.active
        self.active.add(request.id)
        self.started.append(request.id)
        self.kept[request.id] = []

    def propose(self, requests, budgets):
        self.budgets.append(list(budgets))
        tokens, parents, node_ptr = [], [], [0]
        for request, budget in zip(requests, budgets, strict=True):
            assert request.id in self.active
            proposal = self.propose_for(request, budget) if budget or not self.obedient else []
            ids, above = proposal if isinstance(proposal, tuple) else (proposal, range(-1, len(proposal) - 1))
            keep = budget if self.obedient else len(ids)
            tokens += list(ids)[:keep]
            parents += list(above)[:keep]
            node_ptr.append(len(tokens))
        return Draft(
            tokens=np.array(tokens, np.uint32),
            parents=np.array(parents, np.int32),
            depths=depths_of(parents, node_ptr),
            node_ptr=np.array(node_ptr, np.int64),
            source=self.name,
        )

    def commit(self, request, kept):
        assert request.id in self.active
        self.kept[request.id] += kept.tolist()
        # Commit is told after the request has its tokens.
        assert request.output.tolist() == self.kept[request.id]

    def finish(self, request):
        self.active.discard(request.id)


def depths_of(parents, node_ptr):
    depths = []
    for start, end in itertools.pairwise(node_ptr):
        for parent in parents[start:end]:
            depths.append(1 if parent < 0 else depths[start + parent] + 1)
    return np.array(depths, np.int32)


def oracle(outputs, how, vocab_size, *, depth=64):
    """Return a proposal function that knows the outputs, by prompt, and drafts from them.

    ``how``: 'right', 'wrong', 'alternate' (right and wrong in turn), an int m (right for m tokens, then wrong), or
    'tree' (the right path among wrong siblings, two levels of dead ends).
    """
    calls = [0]

    def propose(request, budget):
        calls[0] += 1
        text = outputs[tuple(request.tokens[: request.prompt_length].tolist())]
        rest = list(text[request.generated :][: min(budget, depth)])
        wrong = [(token + 1) % vocab_size for token in rest]
        if how == "right" or (how == "alternate" and calls[0] % 2):
            return rest
        if how in ("wrong", "alternate"):
            return wrong
        if how == "tree":
            tokens, parents, above = [], [], -1
            for token in rest:
                tokens += [(token + 2) % vocab_size, token, (token + 1) % vocab_size]
                parents += [above, above, above]
                above = len(tokens) - 2
                if len(tokens) >= budget:
                    break
            return tokens, parents
        return rest[:how] + wrong[how:]

    return propose


class PieceTokenizer:
    """Ids are pieces of bytes; a piece may be a part of a character. Ids 0 and 1 are special."""

    chat_template = None

    def __init__(self, pieces):
        self.pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]

    def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=False):
        kept = [self.pieces[i] for i in ids if not (skip_special_tokens and i < 2)]
        return b"".join(kept).decode(errors="replace")

    def encode(self, text, add_special_tokens=True):
        """Longest piece first."""
        rest, ids = text.encode(), []
        while rest:
            best = max((i for i, p in enumerate(self.pieces) if i > 1 and p and rest.startswith(p)), key=self._size)
            ids.append(best)
            rest = rest[self._size(best) :]
        return ids

    def _size(self, token):
        return len(self.pieces[token])

    def get_vocab(self):
        return {f"{i}:{piece!r}": i for i, piece in enumerate(self.pieces)}


class Vocabulary:
    """A tokenizer that is nothing but its vocabulary."""

    def __init__(self, texts):
        self._texts = list(texts)

    def get_vocab(self):
        return {text: i for i, text in enumerate(self._texts)}
