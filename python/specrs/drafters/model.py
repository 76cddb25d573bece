"""Model drafter: a smaller language model of the same vocabulary writes the draft, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.drafters.drawing import NO_TOKEN, draw, picked
from specrs.errors import InvalidInputError
from specrs.ops.drawing import Draws
from specrs.types import Confidence, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.drafters.base import GoOn
    from specrs.drafters.drawing import DeviceFacts, LogitFacts
    from specrs.engine.request import Request
    from specrs.models.base import TargetModel
    from specrs.types import FloatArray, TokenArray


class ModelDrafter:
    """Drafts with a smaller causal model.

    Each token is drawn from the drafter's own law at the request's temperature and truncation (argmax when greedy),
    and that very law goes to the verifier. After each token the length policy is asked whether the chain goes on.

    Parameters
    ----------
    model : TargetModel
        The drafting model, behind the same interface as a target.
    target_vocab_size : int
        Ids that the target knows. A wider drafter never proposes the others.
    min_confidence : float
        A chain ends after the first token whose position had a highest probability below this, whatever the policy.
    """

    name = "model"
    asks_to_go_on = True
    # Whether to go on after a token is decided by the law it was drawn from, not by the token, and a chosen length is
    # never cut afterwards; so any sampled request is safe, and greedy ones are deterministic.
    tokens_are_drawn = True

    def __init__(self, model: TargetModel, target_vocab_size: int, *, min_confidence: float = 0.0) -> None:
        if not 0 <= min_confidence < 1:
            raise InvalidInputError(f"min_confidence must be in [0, 1), got {min_confidence}")
        self.model = model
        self._width = min(model.vocab_size, target_vocab_size)
        self._min_confidence = min_confidence
        self.max_context = model.max_context
        self._states: dict[int, Any] = {}
        self._drawn: dict[int, list[int]] = {}
        # How much of the text the memory agrees with, whatever an interrupted round left behind it.
        self._agreed: dict[int, int] = {}

    def start(self, request: Request) -> None:
        """Make room for the request; its prompt is read when a draft is first asked for."""
        capacity = len(request.tokens) + request.stop.max_new_tokens + 1
        if request.session is None:
            self._states[request.id] = self.model.new_state(capacity)
        else:
            self._states[request.id], _ = request.session.take(self.model, request.tokens, capacity)
        self._drawn[request.id] = []
        self._agreed[request.id] = len(request.tokens)

    def unread(self, request: Request) -> int:
        """Return how many committed tokens the model has not read: what the next draft begins with."""
        return len(request.tokens) - int(self._states[request.id].length)

    def propose(self, requests: Sequence[Request], budgets: Sequence[int], go_on: GoOn | None = None) -> Draft:
        """Draw chains of at most ``budgets[b]`` tokens, all requests step by step together."""
        chains: list[list[int]] = [[] for _ in requests]
        laws: list[Any] = []  # of each step, and of each token its step and row
        picks: list[list[tuple[int, int]]] = [[] for _ in requests]
        confidence: list[list[float]] = [[] for _ in requests]
        drawing = any(request.sampling.temperature > 0 for request in requests)
        hidden: list[list[FloatArray]] = [[] for _ in requests]
        for request in requests:
            self._agreed[request.id] = len(request.tokens)
        going = [b for b, budget in enumerate(budgets) if budget > 0]
        for b in going:
            self._catch_up(requests[b])
        while going:
            facts, drawn_from, read = self._next_tokens(requests, going, chains, drawing)
            if drawn_from is not None:
                laws.append(drawn_from)
            kept = []
            for i, (b, token, sure) in enumerate(zip(going, facts.tokens, facts.confidence, strict=True)):
                if token == NO_TOKEN:  # unusable logits: there is no law to draw from
                    continue
                chains[b].append(token)
                confidence[b].append(sure)
                picks[b].append((len(laws) - 1, i))
                if read is not None:
                    hidden[b].append(read[i])
                kept.append(i)
            wanted = [facts.confidence[i] >= self._min_confidence for i in kept]
            if go_on is not None and kept:
                asked = go_on(facts.of(kept, [len(chains[going[i]]) for i in kept]))
                wanted = [sure and more for sure, more in zip(wanted, asked, strict=True)]
            going = [
                b for i, more in zip(kept, wanted, strict=True) if more and len(chains[b := going[i]]) < budgets[b]
            ]
        for request, chain in zip(requests, chains, strict=True):
            self._drawn[request.id] = chain
        drawn = [pick for chain in picks for pick in chain]
        states = [state for chain in hidden for state in chain]
        return Draft.chains(
            chains,
            confidence=confidence,
            confidence_kind=Confidence.MAX_PROB,
            draft_probs=picked(laws, drawn) if laws and drawn else None,
            source=self.name,
            hidden=np.stack(states) if states else None,
        )

    def _catch_up(self, request: Request) -> None:
        """Read a long stretch of committed text in chunks; the last tokens are read with the first draw."""
        state = self._states[request.id]
        unread = request.tokens[state.length :]
        if len(unread) > 64:
            self.model.prefill(state, self._readable(unread[:-1]))

    def _readable(self, tokens: TokenArray) -> TokenArray:
        """Return ``tokens`` with ids that the drafting model lacks read as 0: it guesses worse there, no more."""
        return np.where(tokens < self.model.vocab_size, tokens, 0).astype(np.uint32)

    def _next_tokens(
        self, requests: Sequence[Request], going: Sequence[int], chains: Sequence[Sequence[int]], drawing: bool
    ) -> tuple[LogitFacts | DeviceFacts, Any, FloatArray | None]:
        """Draw one token for each request in ``going``; return what the rows say, the laws, and the hidden states."""
        states = [self._states[requests[b].id] for b in going]
        unread = [
            np.asarray(chains[b][-1:], np.uint32) if chains[b] else self._readable(requests[b].tokens[state.length :])
            for b, state in zip(going, states, strict=True)
        ]
        scores = self.model.score(states, unread, Draft.empty(len(going)))
        logits = scores.logits[:, : self._width]
        for state, tokens in zip(states, unread, strict=True):
            state.commit(np.empty(0, np.int32), len(tokens))
        sampling = [requests[b].sampling for b in going]
        positions = [len(requests[b].tokens) + len(chains[b]) for b in going]
        coins = [
            _core.coins(requests[b].seed, np.array([p], np.uint32), "draft", requests[b].sample)[0]
            for b, p in zip(going, positions, strict=True)
        ]
        given = Draws(
            np.array(coins),
            np.array([s.temperature for s in sampling], np.float32),
            np.array([s.top_k for s in sampling], np.int32),
            np.array([s.top_p for s in sampling], np.float32),
            np.array([s.min_p for s in sampling], np.float32),
        )
        facts, laws = draw(going, logits, given, with_laws=drawing)
        return facts, laws, scores.hidden

    def commit(self, request: Request, kept: TokenArray) -> None:
        """Roll back to the committed text: drawn tokens that were kept stay, the others are forgotten."""
        state = self._states[request.id]
        before = len(request.tokens) - len(kept)
        drawn = self._drawn.pop(request.id, [])
        same = 0
        while same < min(len(drawn), len(kept)) and drawn[same] == int(kept[same]):
            same += 1
        # The bonus token may be one that was drawn and cut: the anchor is read with the next draft all the same.
        state.truncate(min(state.length, before + same, len(request.tokens) - 1))
        self._drawn[request.id] = []
        self._agreed[request.id] = len(request.tokens)

    def memory_bytes(self) -> int:
        """Return the bytes of the keys and values of all texts."""
        return sum(state.size_bytes() for state in self._states.values())

    def finish(self, request: Request) -> None:
        """Forget the request; a session keeps what was read of it."""
        state = self._states.pop(request.id, None)
        self._drawn.pop(request.id, None)
        agreed = self._agreed.pop(request.id, 0)
        if state is not None and request.session is not None:
            state.truncate(min(state.length, agreed))
            request.session.keep(self.model, request.tokens, state)
