"""Simulate the choice between the cache's drafts and a model drafter on replayed text, against oracles.

One unit of time is a plain forward. A cache round costs ``1 + 0.004`` per draft token; a model round costs 1.2 and
accepts 2.4 tokens. At every position a draft's label is its longest path that equals the text. ``oracle`` knows the
label of the cache's chain and takes the better of chain and model, as do all rules above it in the table; ``oracle+``
may take the cache's tree too, as the router does. ``oracle cut`` also cuts each chain to its label. Rules are fitted to
nothing here: they see each file for the first time. ``router`` may also verify the cache's draft beside the model's,
which no oracle does: the longer of the two is accepted.

    python benches/peers/routing.py --data DIR [--history 1000000] [--predictor FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import load

from specrs import SuffixCache
from specrs._core import PayoffPredictor, PayoffRouter

TOKEN, MODEL_COST, MODEL_ACCEPTED = 0.004, 1.2, 2.4
#: A model draft of four tokens with this acceptance per token brings 2.4.
MODEL_NODES, MODEL_ACCEPTANCE = 4, 0.807
MODEL = ("model", 0, MODEL_NODES)
#: Longest chain and tree, as the engine's hybrid drafter asks for.
LONGEST = 64


class State:
    """One position: the drafts, and how long a path each number of their first nodes has accepted."""

    __slots__ = ("chain", "label", "match", "paths", "tree", "tree_labels")

    def __init__(self, chain: Any, tree: Any, truth: np.ndarray) -> None:
        tokens, parents, _, confidence, self.match, _ = chain
        self.chain = (tokens, parents, confidence)
        self.paths = np.cumprod(confidence)
        equal = tokens[: len(truth)] == truth[: len(tokens)]
        self.label = int(np.argmin(equal)) if not equal.all() else len(equal)
        self.tree, self.tree_labels = (tree[0], tree[1], tree[3]), [0]
        depth: list[int] = []
        for token, parent in zip(tree[0].tolist(), tree[1].tolist(), strict=True):
            above = 0 if parent < 0 else depth[parent]
            depth.append(above + 1 if 0 <= above < len(truth) and truth[above] == token else -1)
            self.tree_labels.append(max(self.tree_labels[-1], depth[-1]))


def states_of(cache: SuffixCache, doc: np.ndarray, prompt: int, most: int) -> list[State]:
    cache.start(1, doc[:prompt])
    states = []
    for at in range(prompt, min(len(doc), prompt + most)):
        new = doc[at - 1 : at] if at > prompt else doc[:0]
        chain = cache.step(1, new, LONGEST, min_prob=0.02)
        tree = cache.draft(1, LONGEST, shape="tree", min_prob=0.02)
        states.append(State(chain, tree, doc[at : at + LONGEST]))
    cache.abort(1)
    return states


#: A rule gives what a round verifies: 'chain', 'tree' or 'model', how many of the cache's nodes, and of the model's.
Rule = Callable[[State, int, int], tuple[str, int, int]]


def run(files: list[list[State]], rule: Rule) -> tuple[float, float]:
    """Return tokens per unit of time, and the share of rounds on the cache."""
    tokens = time = 0.0
    rounds = cached = 0
    for number, states in enumerate(files):
        at = 0.0
        while int(at) < len(states):
            state = states[int(at)]
            arm, nodes, model = rule(state, number, int(at))
            accepted = float(state.tree_labels[nodes] if arm == "tree" else min(state.label, nodes))
            if model:
                accepted = max(accepted, MODEL_ACCEPTED)
            gain, cost = accepted + 1, (MODEL_COST if model else 1) + TOKEN * nodes
            cached += nodes > 0
            tokens, time, rounds, at = tokens + gain, time + cost, rounds + 1, at + gain
    return tokens / time, cached / rounds


class Router:
    """The router as the engine drives it: one for all files of a set, in turn, learning from what it was offered."""

    def __init__(
        self, texts: list[np.ndarray], starts: list[int], predictor: Any, *, tree: bool = True, beside: bool = True
    ) -> None:
        self.router = PayoffRouter(
            token_cost=TOKEN,
            model_cost=(MODEL_COST - 1 - TOKEN * MODEL_NODES) / MODEL_NODES,
            model_acceptance=MODEL_ACCEPTANCE,
            longest_model=MODEL_NODES,
            explore=0.0,
        )
        self.router.set_predictor(predictor)
        self.texts, self.starts, self.tree, self.beside = texts, starts, tree, beside
        self.running: int | None = None

    def __call__(self, state: State, number: int, at: int) -> tuple[str, int, int]:
        if self.running != number:
            if self.running is not None:
                self.router.finish(self.running, self.texts[self.running])
            self.router.start(number, self.starts[number])
            self.running = number
        text = self.texts[number][: self.starts[number] + at]
        return self.router.route(
            number,
            text,
            state.chain,
            state.tree if self.tree else None,
            budget=LONGEST,
            remaining=4000,
            backlog=1,
            uniform=0.5,
            match_length=state.match,
            beside=self.beside,
        )


def best(state: State, number: int = 0, at: int = 0) -> tuple[str, int, int]:
    """Take the better arm, knowing the chain's label."""
    nodes = len(state.chain[0])
    pays = (state.label + 1) / (1 + TOKEN * nodes) > (MODEL_ACCEPTED + 1) / MODEL_COST
    return ("chain", nodes, 0) if pays else MODEL


def best_tree(state: State, number: int, at: int) -> tuple[str, int, int]:
    """Take the best of whole chain, whole tree and model, knowing all labels."""
    arms = [((state.label + 1) / (1 + TOKEN * len(state.chain[0])), "chain", len(state.chain[0]))]
    nodes = len(state.tree[0])
    arms.append(((state.tree_labels[nodes] + 1) / (1 + TOKEN * nodes), "tree", nodes))
    arms.append(((MODEL_ACCEPTED + 1) / MODEL_COST, "model", 0))
    _, arm, nodes = max(arms)
    return MODEL if arm == "model" else (arm, nodes, 0)


def best_cut(state: State, number: int, at: int) -> tuple[str, int, int]:
    """Take the better of the model and the accepted part of the chain, which no rule can know."""
    pays = (state.label + 1) / (1 + TOKEN * state.label) > (MODEL_ACCEPTED + 1) / MODEL_COST
    return ("chain", state.label, 0) if pays else MODEL


def when(holds: Callable[[State], bool]) -> Rule:
    return lambda state, number, at: ("chain", len(state.chain[0]), 0) if holds(state) else MODEL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--max-out", type=int, default=1500)
    parser.add_argument("--predictor", type=Path, help="file of `specrs train payoff`")
    options = parser.parse_args()
    predictor = PayoffPredictor.from_bytes(options.predictor.read_bytes()) if options.predictor else None
    cache = SuffixCache()
    docs, total = [], 0
    for doc in load(options.data / "train.npz")[0]:
        if total >= options.history:
            break
        docs.append(doc)
        total += len(doc)
    cache.add_many(np.concatenate(docs), np.cumsum([0, *map(len, docs)]))
    cache.compact()
    files: dict[str, list[Any]] = {}
    for which in ("same", "edit"):
        held, prompts = load(options.data / f"heldout_{which}.npz")
        files[which] = [
            (states_of(cache, doc, int(prompt), options.max_out), np.ascontiguousarray(doc, np.uint32), int(prompt))
            for doc, prompt in list(zip(held, prompts, strict=True))[1::2]
        ]
    files["mix"] = [file for pair in zip(files["same"], files["edit"], strict=True) for file in pair]
    for which, chosen in files.items():
        states, texts, starts = (list(column) for column in zip(*chosen, strict=True))
        rules: dict[str, Rule] = {
            "model only": lambda state, number, at: MODEL,
            "cache only": lambda state, number, at: ("chain", max(1, len(state.chain[0])), 0),
            "match >= 5": when(lambda state: state.match >= 5),
            "expected >= 6": when(lambda state: state.paths.sum() >= 6),
            "oracle": best,
            "oracle cut": best_cut,
            "oracle+": best_tree,
            "router, chains": Router(texts, starts, predictor, tree=False, beside=False),
            "router, one arm": Router(texts, starts, predictor, beside=False),
            "router": Router(texts, starts, predictor),
        }
        rows = {name: run(states, rule) for name, rule in rules.items()}
        oracle, wider = rows["oracle"][0], rows["oracle+"][0]
        for name, (rate, share) in rows.items():
            row = {"set": which, "rule": name, "tokens_per_unit": round(rate, 3), "cache_share": round(share, 2)}
            print(json.dumps({**row, "of_oracle": round(rate / oracle, 3), "of_oracle_plus": round(rate / wider, 3)}))


if __name__ == "__main__":
    main()
