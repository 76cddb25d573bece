"""Requests, step facts and rounds for driving a policy without a model."""

from types import SimpleNamespace

import numpy as np

from specrs import _core
from specrs.policies.base import RoundSeconds
from specrs.policies.named import NamedPolicy
from specrs.policies.registry import POLICIES, check
from specrs.types import Confidence, Draft, Verdict


def request(number=0, *, temperature=0.0, tokens=10):
    return SimpleNamespace(
        id=number, sampling=SimpleNamespace(temperature=temperature), tokens=np.zeros(tokens, np.uint32)
    )


def cost(per_row=0.1, rows=64, base=1.0):
    return _core.CostTable(list(range(1, rows + 1)), [base + per_row * m for m in range(rows)])


def policy(name, options=None, *, drawn=False, stepwise=False, table=None, head=None, guarded=False, learned=None):
    values = check(name, options)
    options = {k: values[k] for k in POLICIES[name].options}
    if "max_tokens" in options and options["max_tokens"] is None:
        options["max_tokens"] = 16
    return NamedPolicy(
        name, options, drawn=drawn, stepwise=stepwise, cost=table, head=head, guarded=guarded, learned=learned
    )


class Facts:
    """What a step says, given outright."""

    def __init__(self, requests, lengths, laws, tokens):
        self.requests, self.lengths, self._laws, self._tokens = requests, lengths, laws, tokens
        self.confidence = [max(law) for law in laws]

    def entropy(self):
        return [-sum(q * np.log(q) for q in law if q > 0) for law in self._laws]

    def token_probs(self):
        return [law[token] for law, token in zip(self._laws, self._tokens, strict=True)]

    def top_probs(self, count):
        return [sorted(law, reverse=True)[:count] for law in self._laws]


def chains(lengths, confidence=None, kind=Confidence.COUNT_RATIO):
    return Draft.chains(
        [[1] * n for n in lengths], confidence=confidence, confidence_kind=None if confidence is None else kind
    )


def verdict(accepted):
    ptr = np.concatenate([[0], np.cumsum(accepted)]).astype(np.int64)
    path = np.concatenate([np.arange(n, dtype=np.int32) for n in accepted]) if sum(accepted) else np.empty(0, np.int32)
    return Verdict(ptr, path.astype(np.int32), np.zeros(len(accepted), np.uint32), np.zeros(len(accepted), np.uint8))


class Machine:
    """Rounds on a machine of known costs with a drafter of known acceptance (cases B66 and B81)."""

    def __init__(self, policy, *, per_row, per_draft_token, batch=1, limit=8, seed=0):
        self.policy, self.per_row, self.per_draft_token = policy, per_row, per_draft_token
        self.requests = [request(number) for number in range(batch)]
        self.limit = limit
        self.rng = np.random.default_rng(seed)
        self.tokens = self.seconds = 0.0

    def rounds(self, count, acceptance, confidence=None):
        """Return the lengths scored for the first request, round by round."""
        scored = []
        for _ in range(count):
            budgets = self.policy.budgets(self.requests, [self.limit] * len(self.requests))
            go_on = self.policy.go_on(self.requests)
            lengths = list(budgets)
            if go_on is not None:
                lengths, going = [0] * len(budgets), [b for b, n in enumerate(budgets) if n]
                while going:
                    for b in going:
                        lengths[b] += 1
                    law = [[confidence or acceptance, 0.0]] * len(going)
                    wanted = go_on(Facts(going, [lengths[b] for b in going], law, [0] * len(going)))
                    going = [b for b, more in zip(going, wanted, strict=True) if more and lengths[b] < budgets[b]]
            stated = [[confidence or acceptance] * n for n in lengths]
            draft = self.policy.trim(self.requests, chains(lengths, stated))
            kept = np.diff(draft.node_ptr).tolist()
            scored.append(kept[0])
            accepted = []
            for n in kept:
                misses = self.rng.random(n) >= acceptance
                accepted.append(int(misses.argmax()) if misses.any() else n)
            rows = len(kept) + sum(kept)
            seconds = RoundSeconds(self.per_draft_token * max(lengths), 0.0, 1.0 + self.per_row * (rows - 1), 0.0, 0.0)
            self.policy.observe(self.requests, draft, verdict(accepted), seconds)
            self.tokens += len(kept) + sum(accepted)
            self.seconds += seconds.total
        return scored
