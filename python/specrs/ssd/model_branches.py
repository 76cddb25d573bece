"""A model drafts behind guesses: one glue forward over the draft in flight, then all guesses step by step together."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.drafters.drawing import NO_TOKEN
from specrs.ops import where
from specrs.ssd.branches import Branch
from specrs.ssd.sampling import DraftLaw
from specrs.ssd.texts import NOTHING, Chain
from specrs.types import ANCHOR, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from specrs.models.base import TargetModel
    from specrs.ssd.branches import Growth, Job
    from specrs.ssd.texts import Text
    from specrs.types import TokenArray

NOBODY = np.empty(0, np.int32)


class ModelBranches:
    """Drafts with a causal model, behind the text and behind guesses of it.

    Parameters
    ----------
    model : TargetModel
        The drafting model.
    target_vocab_size : int
        Ids that the target knows; a wider drafter never proposes the others.
    law : DraftLaw
    """

    name = "model"
    tokens_are_drawn = True

    def __init__(self, model: TargetModel, target_vocab_size: int, law: DraftLaw) -> None:
        self.model = model
        self.width = min(model.vocab_size, target_vocab_size)
        self.max_context = model.max_context
        self.law = law
        self.states: dict[int, Any] = {}

    def start(self, text: Text) -> None:
        """Read all but the last stretch of the prompt, while the target reads it too."""
        self.states[text.request] = self.model.new_state(text.capacity + 256)
        self._read_ahead(text)

    def finish(self, request: int) -> None:
        """Free the request's memory."""
        self.states.pop(request, None)

    def sync(self, text: Text, keep: int) -> None:
        """Forget what lies behind the tokens that still stand, and leave the anchor at least to be read."""
        state = self.states[text.request]
        state.truncate(min(state.length, keep, len(text.tokens) - 1))
        self._read_ahead(text)

    def _read_ahead(self, text: Text) -> None:
        state = self.states[text.request]
        unread = text.tokens[state.length :]
        if len(unread) > 64:
            self.model.prefill(state, self.readable(unread[:-1]))

    def readable(self, tokens: TokenArray) -> TokenArray:
        """Return ``tokens`` with ids that the model lacks read as 0."""
        return np.where(tokens < self.model.vocab_size, tokens, 0).astype(np.uint32)

    def draft(self, texts: Sequence[Text], budgets: Sequence[int]) -> list[Chain]:
        """Draft chains behind the texts, token by token, all texts together."""
        tokens: list[list[int]] = [[] for _ in texts]
        laws: list[list[Any]] = [[] for _ in texts]
        going = [b for b, budget in enumerate(budgets) if budget > 0]
        states = [self.states[text.request] for text in texts]
        while going:
            pending = [
                self.readable(np.array(tokens[b][-1:], np.uint32) if tokens[b] else texts[b].tokens[states[b].length :])
                for b in going
            ]
            scores = self.model.score([states[b] for b in going], pending, Draft.empty(len(going)))
            for b, read in zip(going, pending, strict=True):
                states[b].commit(NOBODY, len(read))
            mine = [texts[b] for b in going]
            drawn, rows = self.law.draw(
                scores.logits[:, : self.width],
                mine,
                [len(texts[b].tokens) + len(tokens[b]) for b in going],
            )
            for b, token, law in zip(list(going), drawn.tolist(), rows, strict=True):
                if token == NO_TOKEN:
                    going.remove(b)
                    continue
                tokens[b].append(token)
                laws[b].append(law)
                if len(tokens[b]) == budgets[b]:
                    going.remove(b)
        for text, state in zip(texts, states, strict=True):
            state.truncate(min(state.length, len(text.tokens) - 1))
        return [as_chain(chain, rows) for chain, rows in zip(tokens, laws, strict=True)]

    def grow(self, jobs: Sequence[Job], lookahead: int) -> Growth:
        """Begin to draft behind guesses; a model that can keep them in memory steps faster."""
        if hasattr(self.model, "forward_segments"):
            from specrs.ssd.packed_growth import PackedGrowth

            return PackedGrowth(self, jobs, lookahead)
        return TreeGrowth(self, jobs, lookahead)


def as_chain(tokens: Sequence[int], laws: Sequence[Any]) -> Chain:
    """Return a chain of drafted tokens; laws are None where tokens were chosen with certainty."""
    if not tokens:
        return NOTHING
    drawn = laws[0] is not None
    return Chain(np.array(tokens, np.uint32), np.stack(laws) if drawn else None)


def likely_tokens(logits: Any, excluded: npt.NDArray[np.int64], counts: Sequence[int]) -> list[list[int]]:
    """Return the most likely tokens of each row, best first; of a device's rows the ids alone come to the host.

    Parameters
    ----------
    logits : tensor, shape (R, V)
    excluded : array of int64, shape (R,)
        The draft token that a rejection at the row rules out, or -1.
    counts : sequence of R int
        Most tokens of each row.
    """
    if not where.on_a_device(logits):
        ids, ptr = _core.fork_ids(logits.float().contiguous().numpy(), excluded, list(counts))
        return [ids[first:end].tolist() for first, end in itertools.pairwise(ptr)]
    from specrs.ops import torch_ops

    ends = np.cumsum([0, *counts])
    given = where.as_tensor(np.stack([excluded, counts, ends[:-1]]), logits.device)
    rows = logits.detach().contiguous()
    found, _ = torch_ops.NAMESPACE.fork_tokens(rows, given[0], given[1].int(), given[2], int(ends[-1]))
    places = found.cpu().tolist()
    return [[token for token in places[first:end] if token >= 0] for first, end in itertools.pairwise(ends)]


class TreeGrowth:
    """Guesses drafted through the plain model interface: each step scores the tree of trunk and guesses anew.

    The first step is the glue forward: the draft in flight is scored as a chain, and each of its rows says which bonus
    tokens are likely behind that many accepted drafts.
    """

    def __init__(self, drafter: ModelBranches, jobs: Sequence[Job], lookahead: int) -> None:
        self._drafter = drafter
        self._jobs = jobs
        # Held here, for a request may finish while its guesses are being drafted.
        self._states = [drafter.states[job.text.request] for job in jobs]
        self._lookahead = lookahead
        self.branches: list[Branch] = []
        self._forked = False
        self._dead: set[int] = set()

    def step(self) -> bool:
        """Score the guesses' last tokens and draw the next; the first time, make the guesses."""
        if not self._forked:
            self._forked = True
            self.branches = self._fork()
            return bool(self.branches) and self._lookahead > 0
        going = [b for b in self.branches if len(b.tokens) < self._lookahead and id(b) not in self._dead]
        if not going:
            return False
        rows = self._rows(going)
        texts = [self._jobs[b.job].text for b in going]
        positions = [len(text.tokens) + b.accepted + 1 + len(b.tokens) for text, b in zip(texts, going, strict=True)]
        drawn, laws = self._drafter.law.draw(rows[:, : self._drafter.width], texts, positions)
        for branch, token, law in zip(going, drawn.tolist(), laws, strict=True):
            if token == NO_TOKEN:
                self._dead.add(id(branch))
                continue
            branch.tokens.append(token)
            branch.laws.append(law)
        return any(len(b.tokens) < self._lookahead and id(b) not in self._dead for b in self.branches)

    def keep_only(self, branches: Sequence[Branch]) -> None:
        """Go on with these guesses alone."""
        kept = {id(branch) for branch in branches}
        self.branches = [branch for branch in self.branches if id(branch) in kept]

    def chain(self, branch: Branch) -> Chain:
        """Return what a guess has by now."""
        return as_chain(branch.tokens, branch.laws)

    def close(self) -> None:
        """Nothing but committed text was kept in memory."""

    def _fork(self) -> list[Branch]:
        logits = self._glue()[:, : self._drafter.width]
        excluded = np.concatenate([part for job in self._jobs for part in (job.trunk.astype(np.int64), [-1])])
        outcomes = [(index, accepted) for index, job in enumerate(self._jobs) for accepted in range(len(job.trunk) + 1)]
        guesses = likely_tokens(logits, excluded, [count for job in self._jobs for count in job.fan_out])
        return [
            Branch(index, accepted, bonus, rank)
            for (index, accepted), row in zip(outcomes, guesses, strict=True)
            for rank, bonus in enumerate(row, 1)
        ]

    def _glue(self) -> Any:
        """Score the drafts in flight as chains, a row per anchor and draft; the memory keeps up to the anchor."""
        pending = self._unread()
        trunks = Draft.chains([self._drafter.readable(job.trunk) for job in self._jobs])
        scores = self._drafter.model.score(self._states, pending, trunks)
        for state, read in zip(self._states, pending, strict=True):
            state.commit(NOBODY, len(read) - 1)
        return scores.logits

    def _unread(self) -> list[TokenArray]:
        return [
            self._drafter.readable(job.text.tokens[state.length :])
            for job, state in zip(self._jobs, self._states, strict=True)
        ]

    def _rows(self, going: Sequence[Branch]) -> Any:
        """Return the logits behind each guess's last token, shape (guesses, V)."""
        drafter = self._drafter
        anchors = [drafter.readable(job.text.tokens[-1:]) for job in self._jobs]
        tokens: list[int] = []
        parents: list[int] = []
        node_ptr, last = [0], {}
        for index, job in enumerate(self._jobs):
            first = len(tokens)
            tokens += job.trunk.tolist()
            parents += range(ANCHOR, len(job.trunk) - 1)
            for branch in (b for b in going if b.job == index):
                above = branch.accepted - 1
                for token in (branch.bonus, *branch.tokens):
                    parents.append(above)
                    above = len(tokens) - first
                    tokens.append(token)
                last[id(branch)] = len(tokens) + index  # rows count an anchor before each job's nodes
            node_ptr.append(len(tokens))
        depths = np.zeros(len(tokens), np.int32)
        for begin, end in itertools.pairwise(node_ptr):
            for node in range(begin, end):
                depths[node] = 1 if parents[node] < 0 else depths[begin + parents[node]] + 1
        tree = Draft(
            drafter.readable(np.array(tokens, np.uint32)),
            np.array(parents, np.int32),
            depths,
            np.array(node_ptr, np.int64),
        )
        logits = drafter.model.score(self._states, anchors, tree).logits
        return logits[[last[id(branch)] for branch in going]]
