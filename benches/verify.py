"""Verification against its floor, torch ops and transformers.

Protocol: one request, 16 drafted nodes in a chain that all stand, so that 17 rows of V = 151,936 are touched; bfloat16
logits; twelve different inputs (62 MB, more than the cache holds). Each contestant goes over all inputs before the next
one does, so that every call reads from memory; a ratio is the median over inputs and repeats of paired quotients. The
floor is one streaming read (bitwise or) of the same rows. torch runs with one thread, as one request does here.

Logits: 'peaked' resembles a language model's (a bulk, and a few hundred tokens above it); 'flat' is plain Gaussian
noise with thousands of tokens in the nucleus, the worst case for top-p.

64 requests: the same call by a process that may use one core, and by one that may use all.

    python benches/verify.py [--json FILE] [--repeats N]
"""

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import specrs
from specrs import _core
from specrs.verification import ChainRejection, DenseLaw, FixedCandidates

VOCABULARY, NODES, INPUTS = 151_936, 16, 12


def made_logits(kind, rows, vocabulary, generator, dtype=torch.bfloat16):
    logits = torch.randn(rows, vocabulary, generator=generator) * (2.5 if kind == "peaked" else 3.0)
    if kind == "peaked":
        boost = torch.rand(rows, 300, generator=generator) ** 3 * 16 + 4
        where = torch.randint(vocabulary, (rows, 300), generator=generator)
        logits.scatter_(1, where, boost)
    return logits.to(dtype)


def drawn(logits, temperature, top_p, coins):
    rows = len(logits)
    array, dtype = specrs.verification.logit_view(logits)
    full = [np.full(rows, temperature, np.float32), np.zeros(rows, np.int32), np.full(rows, top_p, np.float32)]
    return _core.draw(array, dtype, *full, np.zeros(rows, np.float32), coins, False)[0]


def torch_rule(logits, tokens, temperature, top_p):
    """Verify with torch ops: softmax, sort, multinomial per visited row."""
    node = 0
    for row in range(len(logits)):
        scores = logits[row].float()
        if temperature == 0:
            token = int(scores.argmax())
        else:
            scores = scores / temperature
            if top_p < 1:
                ordered, index = torch.sort(scores)
                below = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
                below[-1] = False
                scores[index[below]] = -torch.inf
            token = int(torch.multinomial(scores.softmax(-1), 1))
        node += row < len(tokens) and token == int(tokens[row])
    return node


def clock(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(contestants, inputs, repeats):
    """Median seconds of each contestant and median paired ratio to the first."""
    taken = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, work in contestants.items():
            for item in inputs:
                taken[name].append(clock(lambda work=work, item=item: work(*item)))
    ours = next(iter(taken))
    return {
        name: {
            "microseconds": round(1e6 * statistics.median(values), 1),
            "ours_over_it": round(statistics.median(a / b for a, b in zip(taken[ours], values, strict=True)), 3),
        }
        for name, values in taken.items()
    }


def floor(logits, *_):
    np.bitwise_or.reduce(logits.view(torch.uint8).numpy().view(np.uint64).ravel())


def one_request(kind, temperature, top_p, repeats, generator, dtype=torch.bfloat16):
    emit = np.random.default_rng(1).random(NODES + 1)
    parents = np.arange(-1, NODES - 1, dtype=np.int32)
    inputs = []
    for _ in range(INPUTS):
        logits = made_logits(kind, NODES + 1, VOCABULARY, generator, dtype)
        inputs.append((logits, drawn(logits, temperature, top_p, emit)[:NODES].copy()))

    def ours(logits, tokens):
        verdict = specrs.verify(
            logits, tokens, parents, verifier=FixedCandidates(), temperature=temperature, top_p=top_p,
            accept_coins=emit, emit_coins=emit,
        )  # fmt: skip
        assert len(verdict.path) == NODES

    fast = compare({"specrs": ours, "streaming read": floor}, inputs, repeats)
    if dtype != torch.bfloat16:
        return fast
    slow = compare(
        {"specrs": ours, "torch ops": lambda logits, tokens: torch_rule(logits, tokens, temperature, top_p)},
        inputs[:2],
        max(repeats // 5, 2),
    )
    return fast | {"torch ops": slow["torch ops"]}


def against_transformers(repeats, generator):
    """Chain rejection with a dense law that is the target's own, so that all 16 tokens stand on both sides."""
    from transformers.generation.utils import _speculative_sampling

    inputs = []
    parents = np.arange(-1, NODES - 1, dtype=np.int32)
    coins = np.full(NODES + 1, 0.5)
    for _ in range(4):
        logits = made_logits("peaked", NODES + 1, VOCABULARY, generator)
        array, dtype = specrs.verification.logit_view(logits)
        rows = NODES + 1
        ones, zeros = np.ones(rows, np.float32), np.zeros(rows, np.float32)
        coin = np.random.default_rng(2).random(rows)
        tokens, law = _core.draw(array, dtype, ones, np.zeros(rows, np.int32), ones, zeros, coin, True)
        ids = torch.from_numpy(tokens[:NODES].astype(np.int64))[None]
        inputs.append((logits, tokens[:NODES].copy(), law[:NODES], ids, logits.float()[None]))

    def ours(logits, tokens, law, *_):
        specrs.verify(
            logits, tokens, parents, verifier=ChainRejection(), draft_law=DenseLaw(law), temperature=1.0,
            accept_coins=coins, emit_coins=coins,
        )  # fmt: skip

    def theirs(logits, tokens, law, ids, full):
        _speculative_sampling(ids, full[:, :NODES], NODES, full)

    return compare({"specrs": ours, "transformers": theirs}, inputs, max(repeats // 2, 2))


def many_requests(repeats, generator):
    """64 requests x 8 nodes, V = 32,000, sampled, on the cores that this process may use."""
    requests, nodes, vocabulary = 64, 8, 32_000
    rows = requests * (nodes + 1)
    logits = made_logits("peaked", rows, vocabulary, generator)
    emit = np.random.default_rng(3).random(rows)
    tokens = drawn(logits, 0.8, 0.95, emit).reshape(requests, nodes + 1)[:, :nodes].ravel()
    parents = np.tile(np.arange(-1, nodes - 1, dtype=np.int32), requests)
    row_ptr = np.arange(requests + 1) * (nodes + 1)

    def ours():
        specrs.verify(
            logits, tokens, parents, row_ptr, temperature=0.8, top_p=0.95, accept_coins=emit, emit_coins=emit
        )  # fmt: skip

    both = [(clock(ours), clock(lambda: floor(logits))) for _ in range(repeats * 4)]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "microseconds": round(1e6 * statistics.median(ours for ours, _ in both), 1),
        "over_one_thread's_streaming_read": round(statistics.median(ours / read for ours, read in both), 3),
    }


def on_one_core_and_on_all(repeats):
    """Run ``many_requests`` in processes of their own: how many threads there are is asked once per process."""
    results = []
    for cores in (1, len(os.sched_getaffinity(0))):
        allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
        command = [sys.executable, __file__, "--many", allowed, "--repeats", str(repeats)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results.append(json.loads(done.stdout))
    one, every = results
    return {"one core": one, "all cores": every, "speedup": round(one["microseconds"] / every["microseconds"], 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--many", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if _core.BUILD_PROFILE != "release":
        parser.error("the extension is a debug build; build it with --release")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    if options.many:
        os.sched_setaffinity(0, set(map(int, options.many.split(","))))
        print(json.dumps(many_requests(options.repeats, generator)))
        return
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    results = {
        "command": f"python benches/verify.py --repeats {options.repeats}",
        "date": dt.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "processor": platform.processor() or platform.machine(),
        "features": dict(_core.cpu_features()),
        "versions": {"specrs": specrs.__version__, "torch": torch.__version__},
    }
    for name, kind, temperature, top_p, dtype in (
        ("greedy", "peaked", 0.0, 1.0, torch.bfloat16),
        ("sampled, temperature 0.8, top-p 0.95", "peaked", 0.8, 0.95, torch.bfloat16),
        ("sampled, temperature 0.8, top-p 0.95, flat law", "flat", 0.8, 0.95, torch.bfloat16),
        ("sampled, temperature 0.8", "peaked", 0.8, 1.0, torch.bfloat16),
        ("sampled, temperature 0.8, top-p 0.95, float16", "peaked", 0.8, 0.95, torch.float16),
        ("sampled, temperature 0.8, top-p 0.95, float32", "peaked", 0.8, 0.95, torch.float32),
    ):
        results[name] = one_request(kind, temperature, top_p, options.repeats, generator, dtype)
        print(name, json.dumps(results[name]))
    results["chain rejection, temperature 1"] = against_transformers(options.repeats, generator)
    print("chain rejection", json.dumps(results["chain rejection, temperature 1"]))
    results["64 requests x 8 nodes, V = 32,000"] = on_one_core_and_on_all(options.repeats)
    print("64 requests", json.dumps(results["64 requests x 8 nodes, V = 32,000"]))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
