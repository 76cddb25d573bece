"""Measure cache drafters side by side: build, replay, batch of 64, start of a long prompt.

Protocol: a held-out file is taken as the greedy output of a model. Its first quarter is the prompt; each step appends
what was emitted, drafts k tokens, and emits the longest root path of the draft that equals the file, plus one token.
Every peer runs in a process of its own. ``tokens/step`` and ``accepted/drafted`` repeat exactly; times are medians over
all steps, through Python. Data: ``prepare.py``.

    python benches/peers/measure.py --data DIR [--peers specrs,arctic64] [--history 1000000,10000000] [--out FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from adapters import PEERS


def load(path: Path) -> tuple[list[np.ndarray], np.ndarray | None]:
    stored = np.load(path)
    flat, off = stored["flat"], stored["off"]
    return [np.ascontiguousarray(flat[off[i] : off[i + 1]]) for i in range(len(off) - 1)], stored.get("plen")


def rss() -> int:
    """Return the resident bytes, without pages that the allocator holds free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def accepted(tokens: list[int], parents: list[int], truth: list[int]) -> int:
    """Length of the longest root path of the draft that equals the text."""
    best = 0
    depth = [-1] * len(tokens)
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        above = 0 if parent < 0 else depth[parent]
        if above >= 0 and above < len(truth) and truth[above] == token:
            depth[node] = above + 1
            best = max(best, above + 1)
    return best


def replay(peer: object, docs: list[np.ndarray], prompts: np.ndarray, k: int, max_out: int) -> dict[str, float]:
    took, got, drafted, out = [], 0, 0, 0
    for number, (doc, prompt) in enumerate(zip(docs, prompts, strict=True)):
        at = before = int(prompt)
        end = min(len(doc), at + max_out)
        rid = 10_000 * k + number
        peer.start(rid, doc[:at])
        while at < end:
            new, ctx = doc[before:at], doc[:at]
            start = time.perf_counter_ns()
            tokens, parents = peer.step(rid, new, ctx, k)
            took.append(time.perf_counter_ns() - start)
            if not isinstance(tokens, list):
                tokens, parents = tokens.tolist(), parents.tolist()
            n = accepted(tokens, parents, doc[at : min(end, at + 64)].tolist())
            got, drafted = got + n, drafted + len(tokens)
            before, at = at, min(end, at + n + 1)
        out += end - int(prompt)
        peer.stop(rid)
    us = np.array(took) / 1e3
    return {
        "tokens_per_step": round(out / len(us), 3),
        "drafted_per_step": round(drafted / len(us), 2),
        "accepted_share": round(got / max(1, drafted), 3),
        "us_median": round(float(np.median(us)), 2),
        "us_p90": round(float(np.percentile(us, 90)), 2),
        "us_p99": round(float(np.percentile(us, 99)), 2),
    }


def batch(peer: object, docs: list[np.ndarray], prompts: np.ndarray, k: int, size: int, steps: int) -> dict[str, float]:
    rows = []
    for number in range(size):
        doc, start = docs[number % len(docs)], int(prompts[number % len(docs)])
        start = min(len(doc) - 300, start + 37 * (number // len(docs)))
        rows.append([900_000 + number, doc, start, start])
        peer.start(900_000 + number, doc[:start])
    took = []
    for _ in range(steps):
        call = [(rid, doc[before:at], doc[:at]) for rid, doc, at, before in rows]
        start = time.perf_counter_ns()
        drafts = peer.batch(call, k)
        took.append(time.perf_counter_ns() - start)
        for row, (tokens, parents) in zip(rows, drafts, strict=True):
            _, doc, at, _ = row
            n = min(accepted(list(tokens), list(parents), doc[at : at + 64].tolist()), 3)  # so that files last
            row[3], row[2] = at, min(len(doc) - 1, at + n + 1)
    for row in rows:
        peer.stop(row[0])
    us = np.array(took[5:]) / 1e3
    return {"us_median": round(float(np.median(us)), 1), "us_p90": round(float(np.percentile(us, 90)), 1)}


def run(name: str, options: argparse.Namespace) -> None:
    def emit(test: str, **values: object) -> None:
        row = {"peer": name, "history": options.history, "test": test, **values, "load": round(os.getloadavg()[0], 2)}
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")

    docs: list[np.ndarray] = []
    total = 0
    for doc in load(options.data / "train.npz")[0]:
        if total >= options.history:
            break
        docs.append(doc)
        total += len(doc)

    def make(report: bool) -> object:
        if report:
            PEERS[name]().build(docs[:1])  # what a process loads once is not the history's memory
        peer = PEERS[name]()
        memory, start = rss(), time.perf_counter()
        if docs:
            peer.build(docs)
        seconds = time.perf_counter() - start
        if report and docs:
            emit(
                "build",
                million_tokens_per_s=round(total / seconds / 1e6, 2),
                bytes_per_token=round((rss() - memory) / total, 1),
            )
        return peer

    peer = make(report=True)
    used = False
    for which in options.sets.split(","):
        held, prompts = load(options.data / f"heldout_{which}.npz")
        for k in map(int, options.ks.split(",")):
            if used and peer.fresh:
                peer = None
                peer = make(report=False)
            used = True
            emit("replay", set=which, k=k, **replay(peer, held, prompts, k, options.max_out))
    if "batch" in options.tests:
        held, prompts = load(options.data / "heldout_same.npz")
        emit("batch64", k=16, **batch(peer, held, prompts, 16, 64, 60))
    if "start" in options.tests:
        flat = np.concatenate(load(options.data / "train.npz")[0][:400])[:131_072]
        took = []
        for number in range(5):
            start = time.perf_counter()
            peer.start(990_000 + number, flat)
            took.append(time.perf_counter() - start)
            peer.stop(990_000 + number)
        emit("start131k", ms_median=round(float(np.median(took)) * 1e3, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", default="specrs,specrs-tree,arctic24,arctic64,arctic64tree")
    parser.add_argument("--history", default="1000000", help="tokens of history, or several numbers of them")
    parser.add_argument("--tests", default="replay,batch,start")
    parser.add_argument("--sets", default="same,edit")
    parser.add_argument("--ks", default="16,32")
    parser.add_argument("--max-out", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = list(itertools.product(options.history.split(","), options.peers.split(",")))
    if len(cases) == 1:
        options.history = int(options.history)
        run(options.peers, options)
        return
    for history, name in cases:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--history", history, "--peers", name], check=True)


if __name__ == "__main__":
    main()
