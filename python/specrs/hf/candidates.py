"""Candidate generators: our cache drafter, payoff router and length policies in the assisted loop of transformers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.generation.candidate_generator import CandidateGenerator

from specrs._core import PayoffRouter, coins
from specrs.drafters.cache import CacheDrafter
from specrs.engine.request import Request
from specrs.errors import InvalidInputError
from specrs.methods import make_policy
from specrs.policies.base import RoundSeconds
from specrs.sampling import SamplingParams, StopRules
from specrs.types import Draft, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specrs.cache import SuffixCache
    from specrs.models.base import TargetModel
    from specrs.policies.base import LengthPolicy
    from specrs.types import TokenArray

#: Model drafts are first taken to cost this share of a target forward, until they have been timed.
UNTIMED_MODEL_COST = 0.5


class CacheCandidateGenerator(CandidateGenerator):
    """Candidates from text already seen, as many as pay.

    Use it for one text at a time; it may be used for many, one after the other.

    Parameters
    ----------
    policy : str or LengthPolicy, optional
        Decides how much of a draft is scored: a name of ``specrs.policies.registry.POLICIES``, or an object. Default:
        the payoff router, which learns costs from the time between proposing and hearing the outcome.
    policy_options : mapping, optional
        Of a policy by name.
    cache : SuffixCache, optional
        A cache to share, with finished texts in it; by default one that knows the text's own tokens alone.
    router : PayoffRouter, optional
        One that has learned already. Excludes ``policy``.
    max_draft : int
        Longest candidate, in tokens.
    """

    def __init__(
        self,
        *,
        policy: str | LengthPolicy | None = None,
        policy_options: Mapping[str, Any] | None = None,
        cache: SuffixCache | None = None,
        router: PayoffRouter | None = None,
        max_draft: int = 40,
    ) -> None:
        if policy is not None and router is not None:
            raise InvalidInputError("policy and router both decide on the length; expected one of them")
        if max_draft < 0:
            raise InvalidInputError(f"max_draft must be >= 0, got {max_draft}")
        self.router = PayoffRouter() if router is None else router
        self._asked_policy = policy
        self._policy_options = policy_options
        self._policy: LengthPolicy | None = None
        self._cache = cache
        self._max_draft = max_draft
        self._max_length: int | None = None
        self._eos: frozenset[int] = frozenset()
        self._drafter: CacheDrafter | None = None
        self._request: Request | None = None
        self._draft = Draft.empty(1)
        self._offered: Draft | None = None
        self._started = 0.0
        self._draft_seconds = 0.0

    def prepare(
        self, *, vocab_size: int, eos_token_ids: frozenset[int], max_length: int, target: TargetModel | None = None
    ) -> None:
        """Begin a text. ``specrs.hf.assisted`` calls it.

        Parameters
        ----------
        vocab_size : int
            Ids at or above it are never proposed.
        eos_token_ids : set of int
            A candidate ends before the first of them: the loop must draw an end itself to notice it.
        max_length : int
            Most tokens of the text, prompt included; the loop adds one token of its own.
        target : TargetModel, optional
            Whose costs a policy by name reads.
        """
        self.finish()
        self._eos, self._max_length = eos_token_ids, max_length
        self._drafter = CacheDrafter(vocab_size, cache=self._cache)
        self._policy = self._asked_policy if not isinstance(self._asked_policy, str) else None
        if isinstance(self._asked_policy, str):
            self._policy = make_policy(
                target,  # type: ignore[arg-type]  # read by the policies that need costs alone
                self._drafter,
                self._asked_policy,
                self._policy_options,
            )

    def finish(self) -> None:
        """Forget the text."""
        self._forget_text()

    def _forget_text(self) -> None:
        if self._drafter is not None and self._request is not None:
            self._drafter.finish(self._request)
            self.router.finish(self._request.id, self._request.tokens)
            if self._policy is not None:
                self._policy.finish(self._request)
        self._request, self._offered, self._draft = None, None, Draft.empty(1)

    def get_candidates(self, input_ids: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Return the text followed by candidates, shape (1, L + n) with n >= 0, and None for their logits.

        Parameters
        ----------
        input_ids : tensor of int64, shape (1, L)
        """
        start = time.perf_counter()
        chain = self._propose(self._read(input_ids))
        self._draft_seconds = time.perf_counter() - start
        return self._with_candidates(input_ids, chain)

    def _with_candidates(self, input_ids: torch.Tensor, chain: TokenArray) -> tuple[torch.Tensor, None]:
        self._started = time.perf_counter()
        if not len(chain):
            return input_ids, None
        candidates = torch.from_numpy(chain.astype(np.int64))[None].to(input_ids.device)
        return torch.cat([input_ids, candidates], dim=1), None

    def _read(self, input_ids: torch.Tensor) -> Request:
        """Bring the drafter up to the text, and let the router learn from what followed its last draft."""
        if input_ids.shape[0] != 1:
            raise InvalidInputError(f"a candidate generator drafts for one text, got a batch of {input_ids.shape[0]}")
        if self._drafter is None or self._max_length is None:
            raise InvalidInputError("prepare() comes before get_candidates(); use custom_generate=specrs.hf.assisted")
        ids = input_ids[0].to("cpu").numpy().astype(np.uint32)
        request = self._request
        known = 0 if request is None else len(request.tokens)
        if request is None or len(ids) < known or not np.array_equal(ids[:known], request.tokens):
            self._forget_text()
            stops = StopRules(max_new_tokens=max(0, self._max_length - len(ids)) + self._max_draft)
            request = self._request = Request(ids, SamplingParams(), stops, None)
            self._drafter.start(request)
            self.router.start(request.id, len(ids))
            return request
        new = ids[known:]
        request.extend(new)
        self._drafter.commit(request, new)
        return request

    def _draft_for(self, request: Request) -> Draft:
        """Return the whole draft: a chain that ends before the text's limit and before an end of text."""
        assert self._drafter is not None
        assert self._max_length is not None
        budget = max(0, min(self._max_draft, self._max_length - len(request.tokens) - 1))
        if self._policy is not None:
            budget = self._policy.budgets([request], [budget])[0]
        self._draft = self._drafter.propose([request], [budget])
        ending = np.flatnonzero(np.isin(self._draft.tokens, list(self._eos)))
        if len(ending):
            self._draft = self._draft.within([int(ending[0])])
        return self._draft

    def _propose(self, request: Request) -> TokenArray:
        draft = self._draft_for(request)
        if self._policy is not None:
            self._offered = self._policy.trim([request], draft)
        else:
            _, nodes, _ = self._route(request, draft, other=False)
            self._offered = draft.within([nodes])
        return self._offered.tokens

    def _route(self, request: Request, draft: Draft, *, other: bool) -> tuple[str, int, int]:
        """Return what pays most, 'chain', 'model' or 'plain', and how many tokens of the cache's and the model's."""
        assert self._max_length is not None
        confidence = np.ones(len(draft.tokens), np.float32) if draft.confidence is None else draft.confidence
        return self.router.route(
            request.id,
            request.tokens,
            (draft.tokens, draft.parents, confidence),
            budget=self._max_draft,
            remaining=max(0, self._max_length - len(request.tokens)),
            backlog=0 if other else None,
            uniform=_coin(request),
        )

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> None:
        """Learn from a finished round: its time, and how many candidates were kept."""
        seconds = time.perf_counter() - self._started
        offered, request = self._offered, self._request
        if offered is None or request is None:
            return
        self.router.note_forward(1 + len(offered.tokens), seconds)
        if self._policy is not None:
            path = np.arange(int(num_matches), dtype=np.int32)
            verdict = Verdict(np.array([0, len(path)], np.int64), path, np.zeros(1, np.uint32), np.zeros(1, np.uint8))
            # Their loop does not tell scoring from verifying; the whole round is what a row costs here.
            times = RoundSeconds(self._draft_seconds, 0.0, seconds, 0.0, 0.0)
            self._policy.observe([request], offered, verdict, times)


class RoutedCandidateGenerator(CacheCandidateGenerator):
    """The better of two drafters, or none, by expected tokens per second: the cache, and a generator of transformers.

    The other generator is the one that transformers itself would have used: the assistant model's, prompt lookup, early
    exit. What is chosen depends on the committed text alone, so sampled texts keep their law.

    Parameters
    ----------
    other : CandidateGenerator, optional
        Default: made by transformers from ``assistant_model=`` and the generation configuration.
    router, cache, max_draft
        As for ``CacheCandidateGenerator``.
    """

    def __init__(
        self,
        other: CandidateGenerator | None = None,
        *,
        router: PayoffRouter | None = None,
        cache: SuffixCache | None = None,
        max_draft: int = 40,
    ) -> None:
        learned = PayoffRouter(model_cost=UNTIMED_MODEL_COST) if router is None else router
        super().__init__(router=learned, cache=cache, max_draft=max_draft)
        self._given = other
        self.other = other
        self._make_other: Callable[[torch.Tensor], CandidateGenerator] | None = None
        self._other_nodes: int | None = None

    def offer(self, make: Callable[[torch.Tensor], CandidateGenerator]) -> None:
        """Tell how to make the other generator for this text, given its ids, should it be wanted."""
        self._make_other = make

    def finish(self) -> None:
        """Forget the text, and the generator that was made for it."""
        super().finish()
        self.other, self._make_other, self._other_nodes = self._given, None, None

    def get_candidates(self, input_ids: Any, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        """Return the text followed by the candidates of the drafter that was chosen, and their logits if it has any."""
        start = time.perf_counter()
        request = self._read(input_ids)
        draft = self._draft_for(request)
        arm, nodes, _ = self._route(request, draft, other=self.other is not None or self._make_other is not None)
        self._other_nodes = None
        if arm == "model" and self.other is None and self._make_other is not None:
            self.other = self._make_other(input_ids)
        if arm == "model" and self.other is not None:
            made, logits = self.other.get_candidates(input_ids, *arguments, **keywords)
            self._offered = None
            self._other_nodes = made.shape[1] - input_ids.shape[1]
            self._draft_seconds = time.perf_counter() - start
            self._started = time.perf_counter()
            return made, logits
        self._offered = draft.within([nodes])
        return self._with_candidates(input_ids, self._offered.tokens)

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> None:
        """Learn from a finished round, and let the other generator learn from its own."""
        if self._other_nodes is None:
            super().update_candidate_strategy(input_ids, scores, num_matches)
            return
        self.router.note_forward(1 + self._other_nodes, time.perf_counter() - self._started)
        if self._request is not None and self._other_nodes:
            accepted = min(int(num_matches), self._other_nodes)
            self.router.note_model_time(self._other_nodes, 1, 0, self._draft_seconds)
            self.router.note_model(self._request.id, accepted, accepted < self._other_nodes)
        if self.other is not None:
            self.other.update_candidate_strategy(input_ids, scores, num_matches)
            _forget_rejected(self.other, input_ids.shape[1] - 1)


def _forget_rejected(other: CandidateGenerator, committed: int) -> None:
    """Take rejected tokens out of an assistant's cache.

    It does so itself when it drafts again, if the text is not yet longer than what its cache holds; after rounds that
    were not its own it may be, and rejected tokens would pass for text.
    """
    kwargs = getattr(other, "assistant_kwargs", {})
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    if cache is not None and (rejected := cache.get_seq_length() - committed) > 0:
        cache.crop(-rejected)


def _coin(request: Request) -> float:
    """Return a number in [0, 1) for exploration, without touching torch's generator: sampled texts must not change."""
    return float(coins(0, np.array([len(request.tokens)], np.uint32), "policy")[0])
