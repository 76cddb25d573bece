"""Simulate the choice between the cache's chain and a model drafter on replayed text, against an oracle.

One unit of time is a plain forward. A cache round costs ``1 + 0.004`` per draft token; a model round costs 1.2 and
accepts 2.4 tokens. At every position the draft's label is its longest prefix equal to the text. ``oracle`` knows each
label and takes the better arm; ``oracle cut`` also cuts each cache draft to its label, which no rule can know.

    python benches/peers/routing.py --data DIR [--history 1000000]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import load

from specrs import SuffixCache
from specrs._core import PayoffRouter

TOKEN, MODEL_COST, MODEL_ACCEPTED = 0.004, 1.2, 2.4


class State:
    """One position: the draft, its path probabilities and its label."""

    __slots__ = ("label", "match", "paths", "tokens", "truth")

    def __init__(self, tokens: np.ndarray, paths: np.ndarray, match: int, truth: np.ndarray) -> None:
        self.tokens, self.paths, self.match, self.truth = tokens, paths, match, truth
        equal = tokens[: len(truth)] == truth[: len(tokens)]
        self.label = int(np.argmin(equal)) if not equal.all() else len(equal)


def states_of(cache: SuffixCache, doc: np.ndarray, prompt: int, most: int) -> list[State]:
    cache.start(1, doc[:prompt])
    states = []
    for at in range(prompt, min(len(doc), prompt + most)):
        new = doc[at - 1 : at] if at > prompt else doc[:0]
        tokens, _, _, confidence, match, _ = cache.step(1, new, 64, min_prob=0.02)
        states.append(State(tokens, np.cumprod(confidence), match, doc[at : at + 64]))
    cache.abort(1)
    return states


# A rule gives the cache draft's length, 0 for the model's draft.
Rule = Callable[[State], int]


def run(files: list[list[State]], rule: Rule, router: PayoffRouter | None = None) -> tuple[float, float]:
    tokens = time = 0.0
    rounds = cached = 0
    for states in files:
        at = 0.0
        waiting: list[tuple[int, State]] = []
        while int(at) < len(states):
            state = states[int(at)]
            length = rule(state)
            if length:
                gain, cost = min(state.label, length) + 1.0, 1 + TOKEN * length
                cached += 1
            else:
                gain, cost = MODEL_ACCEPTED + 1, MODEL_COST
            tokens, time, rounds, at = tokens + gain, time + cost, rounds + 1, at + gain
            if router is not None:
                # A draft's label is known when the text has gone on for as long as the draft.
                waiting.append((int(at - gain), state))
                while waiting and waiting[0][0] + 64 <= at:
                    old = waiting.pop(0)[1]
                    parents = np.arange(-1, len(old.tokens) - 1)
                    router.note_cache(old.tokens, parents, old.paths, old.truth)
    return tokens / time, cached / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--max-out", type=int, default=1500)
    options = parser.parse_args()
    cache = SuffixCache()
    docs, total = [], 0
    for doc in load(options.data / "train.npz")[0]:
        if total >= options.history:
            break
        docs.append(doc)
        total += len(doc)
    cache.add_many(np.concatenate(docs), np.cumsum([0, *map(len, docs)]))
    files = {}
    for which in ("same", "edit"):
        held, prompts = load(options.data / f"heldout_{which}.npz")
        all_files = [states_of(cache, d, int(p), options.max_out) for d, p in zip(held, prompts, strict=True)]
        files[which] = all_files[1::2]
    files["mix"] = [file for pair in zip(files["same"], files["edit"], strict=True) for file in pair]

    def best(state: State) -> int:
        gain = (state.label + 1) / (1 + TOKEN * len(state.tokens))
        return len(state.tokens) if gain > (MODEL_ACCEPTED + 1) / MODEL_COST else 0

    def best_cut(state: State) -> int:
        gain = (state.label + 1) / (1 + TOKEN * state.label)
        return state.label if gain > (MODEL_ACCEPTED + 1) / MODEL_COST else 0

    for which, chosen in files.items():
        router = PayoffRouter(
            token_cost=TOKEN,
            model_cost=MODEL_COST - 1 - 4 * TOKEN,
            model_nodes=4,
            model_accepted=MODEL_ACCEPTED,
            explore=0.0,
        )

        def route(state: State, router: PayoffRouter = router) -> int:
            arm, nodes = router.choose(state.paths, 0.5)
            return nodes if arm == "cache" else 0

        rules: dict[str, Rule] = {
            "model only": lambda state: 0,
            "cache only": lambda state: max(1, len(state.tokens)),
            "match >= 5": lambda state: len(state.tokens) if state.match >= 5 else 0,
            "expected >= 6": lambda state: len(state.tokens) if state.paths.sum() >= 6 else 0,
            "oracle": best,
            "oracle cut": best_cut,
        }
        rows = {name: run(chosen, rule) for name, rule in rules.items()}
        rows["router"] = run(chosen, route, router)
        oracle = rows["oracle"][0]
        print(
            json.dumps({which: {k: [round(v[0], 3), round(v[1], 2), round(v[0] / oracle, 3)] for k, v in rows.items()}})
        )


if __name__ == "__main__":
    main()
