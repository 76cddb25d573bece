"""Model drafter: a smaller language model of the same vocabulary writes the draft, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.errors import InvalidInputError
from specrs.types import Confidence, Draft
from specrs.verification.logits import as_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.models.base import TargetModel
    from specrs.types import FloatArray, TokenArray


#: What ``draw`` returns for a row that is NaN, +inf or masked throughout.
NO_TOKEN = 2**32 - 1


class ModelDrafter:
    """Drafts with a smaller causal model.

    Each token is drawn from the drafter's own law at the request's temperature and truncation (argmax when greedy),
    and that very law goes to the verifier. Drafting of a chain ends early after a token at whose position the model
    was unsure.

    Parameters
    ----------
    model : TargetModel
        The drafting model, behind the same interface as a target.
    target_vocab_size : int
        Ids that the target knows. A wider drafter never proposes the others.
    min_confidence : float
        A chain ends after the first token whose position had a highest probability below this.
    """

    name = "model"
    # Whether to go on after a token is decided by the law it was drawn from, not by the token, and a chosen length is
    # never cut afterwards; so any sampled request is safe, and greedy ones are deterministic.
    tokens_are_drawn = True

    def __init__(self, model: TargetModel, target_vocab_size: int, *, min_confidence: float = 0.4) -> None:
        if not 0 <= min_confidence < 1:
            raise InvalidInputError(f"min_confidence must be in [0, 1), got {min_confidence}")
        self.model = model
        self._width = min(model.vocab_size, target_vocab_size)
        self._min_confidence = min_confidence
        self.max_context = model.max_context
        self._states: dict[int, Any] = {}
        self._drawn: dict[int, list[int]] = {}

    def start(self, request: Request) -> None:
        """Make room for the request; its prompt is read when a draft is first asked for."""
        self._states[request.id] = self.model.new_state(len(request.tokens) + request.stop.max_new_tokens + 1)
        self._drawn[request.id] = []

    def unread(self, request: Request) -> int:
        """Return how many committed tokens the model has not read: what the next draft begins with."""
        return len(request.tokens) - int(self._states[request.id].length)

    def propose(self, requests: Sequence[Request], budgets: Sequence[int]) -> Draft:
        """Draw chains of at most ``budgets[b]`` tokens, all requests step by step together."""
        chains: list[list[int]] = [[] for _ in requests]
        laws: list[list[FloatArray]] = [[] for _ in requests]
        confidence: list[list[float]] = [[] for _ in requests]
        drawing = any(request.sampling.temperature > 0 for request in requests)
        going = [b for b, budget in enumerate(budgets) if budget > 0]
        for b in going:
            self._catch_up(requests[b])
        while going:
            still = []
            for b, token, law, sure in self._next_tokens(requests, going, chains, drawing):
                if token == NO_TOKEN:  # unusable logits: there is no law to draw from
                    continue
                chains[b].append(token)
                confidence[b].append(sure)
                if law is not None:
                    laws[b].append(law)
                if len(chains[b]) < budgets[b] and sure >= self._min_confidence:
                    still.append(b)
            going = still
        for request, chain in zip(requests, chains, strict=True):
            self._drawn[request.id] = chain
        rows = [law for chain in laws for law in chain]
        return Draft.chains(
            chains,
            confidence=confidence,
            confidence_kind=Confidence.MAX_PROB,
            draft_probs=np.stack(rows) if rows else None,
            source=self.name,
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
    ) -> list[tuple[int, int, FloatArray | None, float]]:
        """Draw one token for each request in ``going``: (request, token, law or None, highest probability)."""
        states = [self._states[requests[b].id] for b in going]
        unread = [
            np.asarray(chains[b][-1:], np.uint32) if chains[b] else self._readable(requests[b].tokens[state.length :])
            for b, state in zip(going, states, strict=True)
        ]
        logits = self.model.score(states, unread, Draft.empty(len(going))).logits[:, : self._width]
        for state, tokens in zip(states, unread, strict=True):
            state.commit(np.empty(0, np.int32), len(tokens))
        values, dtype = as_rows(logits)
        sampling = [requests[b].sampling for b in going]
        positions = [len(requests[b].tokens) + len(chains[b]) for b in going]
        coins = np.array(
            [
                _core.coins(requests[b].seed, np.array([p], np.uint32), "draft", requests[b].sample)[0]
                for b, p in zip(going, positions, strict=True)
            ]
        )
        tokens, laws = _core.draw(
            values,
            dtype,
            np.array([s.temperature for s in sampling], np.float32),
            np.array([s.top_k for s in sampling], np.int32),
            np.array([s.top_p for s in sampling], np.float32),
            np.array([s.min_p for s in sampling], np.float32),
            coins,
            drawing,
        )
        sure = logits.float().softmax(-1).amax(-1).tolist()
        return [
            (b, int(token), None if laws is None else laws[i], sure[i])
            for i, (b, token) in enumerate(zip(going, tokens, strict=True))
        ]

    def commit(self, request: Request, kept: TokenArray) -> None:
        """Roll back to the committed text: drawn tokens that were kept stay, the others are forgotten."""
        state = self._states[request.id]
        before = len(request.tokens) - len(kept)
        drawn = self._drawn.pop(request.id, [])
        same = 0
        while same < min(len(drawn), len(kept)) and drawn[same] == int(kept[same]):
            same += 1
        state.truncate(min(state.length, before + same))
        self._drawn[request.id] = []

    def finish(self, request: Request) -> None:
        """Forget the request."""
        self._states.pop(request.id, None)
        self._drawn.pop(request.id, None)
