"""Hybrid drafting: each round takes the cache's chain or tree, the model's draft, both, or none: what pays most."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from specrs import _core
from specrs.drafters.cache import CacheDrafter
from specrs.drafters.token_classes import token_classes, tokenizer_fingerprint
from specrs.engine.ranks import ONE_RANK
from specrs.errors import CorruptFileError, FileAccessError, UnsupportedModelError
from specrs.ops import where
from specrs.types import Confidence, Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from specrs.cache import SuffixCache
    from specrs.drafters.model import ModelDrafter
    from specrs.engine.request import Request
    from specrs.models.base import TargetModel
    from specrs.policies.cost import CostTable
    from specrs.policies.payoff import Payoff
    from specrs.types import FloatArray, IndexArray, TokenArray

#: A branch of the cache's drafts ends below this probability of being reached; the router cuts further.
LEAST_PROB = 0.02
#: The model's chain ends after a position whose highest probability was below this: the router has chosen its length
#: before it writes, and this depends on the law alone.
LEAST_CONFIDENCE = 0.4
#: Longest draft that is looked at.
LONGEST = 40
#: Routers by target, and by draft model or, without one, the target again. They go when either model does.
_LEARNED: WeakKeyDictionary[Any, WeakKeyDictionary[Any, _core.PayoffRouter]] = WeakKeyDictionary()


def learned_router(target: TargetModel, draft_model: TargetModel | None) -> _core.PayoffRouter:
    """Return the router of a pair of models, which goes on learning from call to call.

    What it has learned changes how fast a text comes, never its law. A ``HybridDrafter`` of one's own starts anew.
    """
    of_target = _LEARNED.setdefault(target, WeakKeyDictionary())
    return of_target.setdefault(draft_model or target, _core.PayoffRouter())


@dataclass(frozen=True)
class _Proposal:
    """What was proposed for one request in a round."""

    arm: str
    tokens: TokenArray
    parents: IndexArray
    depths: IndexArray
    confidence: FloatArray
    laws: Any = None
    model: TokenArray | None = None  # the model's chain, where it drafted


class HybridDrafter:
    """Hybrid Verified Decoding (Su et al., arXiv:2606.01019) with the rule of :class:`specrs._core.PayoffRouter`.

    The cache drafts in every round: that takes microseconds, and its draft teaches the router whether it is verified
    or not. The model drafter is asked only where its draft is expected to bring more tokens per second. Where a row is
    cheap, greedy texts have the cache's draft verified beside the model's, as one tree.

    Parameters
    ----------
    vocab_size : int
        The target's.
    model : ModelDrafter, optional
        None: the choice is between the cache's drafts and none.
    cache : SuffixCache, optional
        A cache to share between engines.
    router : PayoffRouter, optional
        One that has learned already; by default a new one.
    predictor : str or Path, optional
        A file that ``specrs train payoff`` made; by default the router trusts calibrated path probabilities.
    tokenizer : object, optional
        The target's, with which the predictor must have been trained.
    clock : callable
        Gives seconds.

    Raises
    ------
    FileAccessError, CorruptFileError
        The predictor's file cannot be read, is damaged, or was trained with another tokenizer.
    UnsupportedModelError
        The draft model is sharded over ranks: each rank's router goes by its own clock, and where one asks the model
        and another does not, the forward would wait for ever.

    Notes
    -----
    The choice looks at committed text, at past costs and at past acceptance, never at tokens that the model drafter
    drew and that were not verified: the output keeps the target's law. A sampled request with a seed has a router of
    its own that keeps to guessed costs, so that its text depends on neither the clock nor its neighbours.
    """

    name = "hybrid"
    max_context: int | None = None

    def __init__(
        self,
        vocab_size: int,
        *,
        model: ModelDrafter | None = None,
        cache: SuffixCache | None = None,
        router: _core.PayoffRouter | None = None,
        predictor: str | Path | None = None,
        tokenizer: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        shards = 1 if model is None else getattr(model.model, "ranks", ONE_RANK).size
        if shards > 1:
            raise UnsupportedModelError(
                "the hybrid drafter asks its draft model when this pays by each rank's own clock, so the model must be "
                f"whole on every rank, got one sharded over {shards} ranks; load it without tp_plan, or use "
                "drafter='model'"
            )
        self._vocab_size = vocab_size
        self._cache = CacheDrafter(vocab_size, min_prob=LEAST_PROB, cache=cache)
        self._model = model
        self.router = _core.PayoffRouter() if router is None else router
        self._clock = clock
        self._start = _core.PayoffRouter()
        if predictor is not None:
            loaded, classes = load_predictor(predictor, tokenizer, vocab_size)
            for one in (self.router, self._start):
                one.set_predictor(loaded)
                one.set_classes(classes)
        self._routers: dict[int, _core.PayoffRouter] = {}
        self._proposed: dict[int, _Proposal] = {}
        self.tokens_are_drawn = model is not None

    def length_policy(self, draft_tokens: int | None, cost: CostTable | None) -> Payoff:
        """Return the policy that leaves the length to the router, with at most ``draft_tokens`` nodes a round.

        ``cost``, the target's, spares the router its first guesses.
        """
        from specrs.policies.payoff import Payoff

        if cost is not None:
            from specrs.policies.cost import target_cost

            drafting = None if self._model is None else _costs(target_cost(self._model.model))
            self.router.set_costs(_costs(cost), drafting)
        return Payoff(self.router, LONGEST if draft_tokens is None else draft_tokens)

    def start(self, request: Request) -> None:
        """Let both drafters meet the request."""
        self._cache.start(request)
        if self._model is not None:
            self._model.start(request)
        self._routers[request.id] = self._start.copy() if _is_repeatable(request) else self.router
        self._routers[request.id].start(request.id, request.prompt_length)

    def propose(self, requests: Sequence[Request], budgets: Sequence[int]) -> Draft:
        """Choose an arm for each request and return its draft."""
        chains, matches = self._cache.step(requests, budgets, "chain")
        trees = self._cache.step(requests, budgets, "tree")[0] if self._may_branch(requests) else None
        proposals: list[_Proposal] = []
        lengths: dict[int, int] = {}
        for b, request in enumerate(requests):
            arm, nodes, length = self._route(request, b, chains, trees, int(matches[b]), budgets[b], requests)
            if length:
                lengths[b] = length
            drafted = trees if arm == "tree" else chains
            assert drafted is not None
            proposals.append(_cut(arm, drafted, b, nodes, self._vocab_size))
        for b, proposal in self._ask_model(requests, lengths):
            proposals[b] = _beside(proposal, proposals[b])
        for request, proposal in zip(requests, proposals, strict=True):
            self._proposed[request.id] = proposal
        return self._join(proposals, with_laws=any(_is_repeatable(request) for request in requests))

    def _may_branch(self, requests: Sequence[Request]) -> bool:
        """Return whether trees can be verified: the rule for drawn tokens knows chains alone."""
        if all(request.sampling.temperature == 0 for request in requests):
            return True
        return len(requests) == 1 and not _is_repeatable(requests[0])

    def _route(
        self,
        request: Request,
        b: int,
        chains: Draft,
        trees: Draft | None,
        match: int,
        budget: int,
        requests: Sequence[Request],
    ) -> tuple[str, int, int]:
        model, coin = self._model, 1.0
        backlog = None
        if model is not None and (model.max_context is None or len(request.tokens) + budget <= model.max_context):
            backlog = model.unread(request)
            position = np.array([len(request.tokens)], np.uint32)
            coin = float(_core.coins(request.seed, position, "policy", request.sample)[0])
        return self._routers[request.id].route(
            request.id,
            request.tokens,
            _offer(chains, b),
            None if trees is None else _offer(trees, b),
            budget=budget,
            batch=1 if _is_repeatable(request) else len(requests),
            remaining=max(request.stop.max_new_tokens - request.generated, 0),
            backlog=backlog,
            uniform=coin,
            match_length=match,
            beside=trees is not None and all(one.sampling.temperature == 0 for one in requests),
        )

    def _ask_model(self, requests: Sequence[Request], lengths: dict[int, int]) -> list[tuple[int, _Proposal]]:
        """Return the model drafter's proposals for the requests in ``lengths``, drafted together."""
        if not lengths:
            return []
        assert self._model is not None
        asked = [requests[b] for b in lengths]
        read = sum(self._model.unread(request) for request in asked)
        start = self._clock()
        draft = self._model.propose(asked, list(lengths.values()))
        seconds = self._clock() - start
        self.router.note_model_time(int(np.diff(draft.node_ptr).max()), len(asked), read, seconds)
        made = [(b, _cut("model", draft, i, None, self._vocab_size)) for i, b in enumerate(lengths)]
        return [(b, replace(proposal, model=proposal.tokens)) for b, proposal in made]

    def _join(self, proposals: Sequence[_Proposal], *, with_laws: bool) -> Draft:
        tokens = np.concatenate([proposal.tokens for proposal in proposals])
        sizes = [len(proposal.tokens) for proposal in proposals]
        laws = None
        if len(tokens) and (with_laws or any(proposal.laws is not None for proposal in proposals)):
            # Beside drawn tokens, those of the cache are drawn from certainty.
            laws = _no_law((len(tokens), self._vocab_size), [proposal.laws for proposal in proposals])
            start = 0
            for proposal in proposals:
                own = laws[start : start + len(proposal.tokens)]
                if proposal.laws is None:
                    own[np.arange(len(own)), proposal.tokens.astype(np.int64)] = 1.0
                else:
                    own[:, : proposal.laws.shape[1]] = proposal.laws
                start += len(own)
        return Draft(
            tokens=tokens,
            parents=np.concatenate([proposal.parents for proposal in proposals]),
            depths=np.concatenate([proposal.depths for proposal in proposals]),
            node_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            confidence=np.concatenate([proposal.confidence for proposal in proposals]),
            confidence_kind=Confidence.COUNT_RATIO,
            draft_probs=laws,
            source=self.name,
            sources=tuple(proposal.arm for proposal in proposals),
        )

    def commit(self, request: Request, kept: TokenArray) -> None:
        """Let both drafters and the router learn what was kept."""
        self._cache.commit(request, kept)
        if self._model is not None:
            self._model.commit(request, kept)
        proposal = self._proposed.pop(request.id, None)
        if proposal is not None and proposal.model is not None:
            most = min(len(proposal.model), len(kept))
            equal = proposal.model[:most] == kept[:most]
            accepted = most if equal.all() else int(equal.argmin())
            refused = accepted < most
            self._routers[request.id].note_model(request.id, accepted, refused)

    def memory_bytes(self) -> int:
        """Return what both drafters hold, in bytes."""
        return self._cache.memory_bytes() + (0 if self._model is None else self._model.memory_bytes())

    def finish(self, request: Request) -> None:
        """Forget the request; what its text still tells is learned."""
        self._cache.finish(request)
        if self._model is not None:
            self._model.finish(request)
        self._proposed.pop(request.id, None)
        router = self._routers.pop(request.id, None)
        if router is not None:
            router.finish(request.id, request.tokens)


def _no_law(shape: tuple[int, int], laws: Sequence[Any]) -> Any:
    """Return zeros of float32: a tensor where one of the laws lies on a device, else an array."""
    placed = next((law for law in laws if where.on_a_device(law)), None)
    return np.zeros(shape, np.float32) if placed is None else placed.new_zeros(shape)


def _costs(table: CostTable) -> tuple[list[float], list[float]]:
    """Return row counts and the seconds of a forward over them, for one request."""
    seconds = table.to_dict()["cells"][0]["seconds"]
    return list(range(1, len(seconds) + 1)), seconds


def load_predictor(
    path: str | Path, tokenizer: Any, vocab_size: int
) -> tuple[_core.PayoffPredictor, npt.NDArray[np.uint8]]:
    """Return a predictor from its file, and the class bits of each token id for its features, shape (vocab_size,)."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileAccessError(f"cannot read the payoff predictor {str(path)!r}: {error}") from error
    loaded = _core.PayoffPredictor.from_bytes(data)
    if tokenizer is None:
        return loaded, np.zeros(vocab_size, np.uint8)
    expected = tokenizer_fingerprint(tokenizer)
    if loaded.fingerprint not in ("", expected):
        raise CorruptFileError(f"{path}: trained with tokenizer {loaded.fingerprint}, expected {expected}")
    classes = token_classes(tokenizer, vocab_size) if loaded.fingerprint else np.zeros(vocab_size, np.uint8)
    return loaded, classes


def _is_repeatable(request: Request) -> bool:
    """Return whether the request's text is to be the same again, and would follow the choices made for it."""
    return request.sampling.temperature > 0 and request.sampling.seed is not None


def _beside(model: _Proposal, cache: _Proposal) -> _Proposal:
    """Return the model's chain and, where the cache's draft is verified too, both as one tree: equal paths once."""
    if not len(cache.tokens):
        return model
    merged = _core.tree_merge([(one.tokens, one.parents, one.confidence) for one in (model, cache)])
    return _Proposal(f"model+{cache.arm}", *merged, model=model.model)


def _offer(draft: Draft, b: int) -> tuple[TokenArray, IndexArray, FloatArray]:
    nodes = draft.nodes_of(b)
    assert draft.confidence is not None
    return draft.tokens[nodes], draft.parents[nodes], draft.confidence[nodes]


def _cut(arm: str, draft: Draft, b: int, nodes: int | None, vocab_size: int) -> _Proposal:
    """Return the first ``nodes`` nodes of request number ``b``; all of them with None.

    A cache that was filled elsewhere may hold ids that the target lacks; a draft ends before the first of them.
    """
    own = draft.nodes_of(b)
    own = own if nodes is None else slice(own.start, min(own.start + nodes, own.stop))
    foreign = np.flatnonzero(draft.tokens[own] >= vocab_size)
    if len(foreign):
        own = slice(own.start, own.start + int(foreign[0]))
    assert draft.confidence is not None
    return _Proposal(
        arm,
        draft.tokens[own],
        draft.parents[own],
        draft.depths[own],
        draft.confidence[own],
        None if draft.draft_probs is None else draft.draft_probs[own],
    )
