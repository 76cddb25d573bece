"""Small-batch linear layers: specrs against torch, in pairs, with the floor that memory and arithmetic set.

Protocol. For every shape and number of rows the two kernels run alternately on equal tensors, on weights that take
turns so that none stays in a cache. The median of the pairs is the result; the best is shown beside it, for machines
that are not quiet. The floor is the larger of two times: reading the weights once at the rate at which torch sums a
large array, and multiplying at the rate of torch's largest float32 matrix product, both measured in the same run.

``--busy`` is for machines with other work: one thread, timed by its own processor clock, which stands still while
others run (caches and memory stay shared).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch.nn import functional

from specrs import _core
from specrs.ops.linear import linear

#: Weights of a 1.5 B model (Qwen2.5-1.5B): key/value, query/output, up/gate, down. ``--head`` adds the output layer.
SHAPES = [(256, 1536), (1536, 1536), (8960, 1536), (1536, 8960)]
HEAD = (151936, 1536)
ROWS = [1, 2, 4, 8, 16, 32, 64]
#: More than any last-level cache holds of what was read a turn ago.
TURN_BYTES = 256 << 20


clock = time.perf_counter


def seconds(work) -> float:
    start = clock()
    work()
    return clock() - start


def read_rate() -> float:
    """Bytes per second of reading a large array."""
    array = torch.ones(64 << 20, dtype=torch.float32)
    return array.numel() * 4 / min(seconds(array.sum) for _ in range(7))


def multiply_rate() -> float:
    """Floating-point operations per second of a large float32 product."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / min(seconds(lambda: left @ right) for _ in range(7))


def measure(outputs, inputs, rows, dtype, repeats, rates):
    weights = [torch.randn(outputs, inputs).to(dtype)]
    weights += [weights[0].clone() for _ in range(TURN_BYTES // weights[0].nbytes)]
    x = torch.randn(rows, inputs).to(dtype)
    ours, theirs = [], []
    for turn in range(repeats + 1):
        # Neither finds in a cache what the other has just read.
        mine, other = weights[turn % len(weights)], weights[(turn + len(weights) // 2) % len(weights)]
        ours.append(seconds(lambda: linear(x, mine)))  # noqa: B023 - called at once
        theirs.append(seconds(lambda: functional.linear(x, other)))  # noqa: B023
    ours, theirs = ours[1:], theirs[1:]
    read, multiply = weights[0].nbytes / rates["read"], 2 * rows * outputs * inputs / rates["multiply"]
    return {
        "outputs": outputs,
        "inputs": inputs,
        "rows": rows,
        "dtype": str(dtype).removeprefix("torch."),
        "specrs_ms": statistics.median(ours) * 1e3,
        "specrs_best_ms": min(ours) * 1e3,
        "torch_ms": statistics.median(theirs) * 1e3,
        "torch_best_ms": min(theirs) * 1e3,
        "speedup": statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
        "read_ms": read * 1e3,
        "multiply_ms": multiply * 1e3,
        "gap": statistics.median(ours) / max(read, multiply),
        "best_gap": min(ours) / max(read, multiply),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--head", action="store_true", help="also the output layer of 151936 rows")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--busy", action="store_true", help="one thread by its own processor clock")
    arguments = parser.parse_args()
    if arguments.busy:
        global clock
        clock = time.thread_time
        torch.set_num_threads(1)
    if _core.BUILD_PROFILE != "release":
        raise SystemExit(f"a {_core.BUILD_PROFILE} build of specrs measures nothing; build with --release")
    rates = {"read": read_rate(), "multiply": multiply_rate()}
    record = {
        "specrs": _core.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "clock": clock.__name__,
        "processor": platform.processor() or platform.machine(),
        "features": dict(_core.cpu_features()),
        "read_gb_per_s": rates["read"] / 1e9,
        "multiply_gflop_per_s": rates["multiply"] / 1e9,
        "results": [],
    }
    print(
        f"{record['threads']} threads by {clock.__name__}, reading {rates['read'] / 1e9:.1f} GB/s, "
        f"multiplying {rates['multiply'] / 1e9:.0f} GFlop/s; times in ms as median (best)"
    )
    print(f"{'weight':>14} {'dtype':>9} {'rows':>4} {'specrs':>15} {'torch':>15} {'times':>6} {'floor':>7} {'gap':>11}")
    with torch.inference_mode():
        for name in arguments.dtype:
            for outputs, inputs in SHAPES + ([HEAD] if arguments.head else []):
                for rows in arguments.rows:
                    row = measure(outputs, inputs, rows, getattr(torch, name), arguments.repeats, rates)
                    record["results"].append(row)
                    print(
                        f"{outputs:>8}x{inputs:<5} {name:>9} {rows:>4} "
                        f"{row['specrs_ms']:>6.2f} ({row['specrs_best_ms']:>6.2f}) "
                        f"{row['torch_ms']:>6.2f} ({row['torch_best_ms']:>6.2f}) {row['speedup']:>6.2f} "
                        f"{max(row['read_ms'], row['multiply_ms']):>7.2f} {row['gap']:>5.2f} ({row['best_gap']:.2f})",
                        flush=True,
                    )
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
