"""Attention of new rows on the CPU: specrs against torch, in pairs, with the floor that memory and arithmetic set.

Protocol. For every shape, text length and number of rows the two run alternately on equal tensors, on keys and values
that take turns so that none stays in a cache; torch's is ``scaled_dot_product_attention`` on grouped queries with the
mask of a chain. The median of the pairs is the result. The floor is the larger of two times: reading keys and values
once, and multiplying, at the rates that ``linear.py`` beside it measures, in the same run.

``python benches/attention.py [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import torch
from linear import multiply_rate, read_rate, seconds
from torch.nn.functional import scaled_dot_product_attention

from specrs import _core
from specrs.ops.attend import attend

#: Query heads, key heads, head size: SmolLM2-135M, Qwen2.5-1.5B.
SHAPES = [(9, 3, 64), (12, 2, 128)]
LENGTHS = [256, 1024, 4096]
ROWS = [1, 4, 16, 64]
#: More than a second-level cache holds of what was read a turn ago.
TURN_BYTES = 32 << 20


def measure(shape, length, rows, repeats, found):
    heads, key_heads, size = shape
    slots = length + rows
    memories = [torch.randn(2, key_heads, slots, size)]
    memories += [memories[0].clone() for _ in range(TURN_BYTES // memories[0].nbytes)]
    query, out = torch.randn(heads, rows, size), torch.empty(rows, heads, size)
    grouped = query.reshape(1, key_heads, heads // key_heads * rows, size)
    mask = torch.zeros(rows, slots).masked_fill_(torch.ones(rows, slots).triu(length + 1).bool(), -torch.inf)
    mask = None if rows == 1 else mask.repeat(heads // key_heads, 1)
    positions = np.arange(length, slots)
    ours, theirs = [], []
    for turn in range(repeats + 1):
        mine, other = memories[turn % len(memories)], memories[(turn + len(memories) // 2) % len(memories)]
        ours.append(seconds(lambda: attend(query, mine[0], mine[1], positions, None, out)))  # noqa: B023 - called at once
        theirs.append(
            seconds(lambda: scaled_dot_product_attention(grouped, other[:1], other[1:], attn_mask=mask))  # noqa: B023
        )
    ours, theirs = ours[1:], theirs[1:]
    read, multiply = memories[0].nbytes / found["read"], 4 * heads * rows * slots * size / found["multiply"]
    return {
        "query_heads": heads,
        "key_heads": key_heads,
        "size": size,
        "length": length,
        "rows": rows,
        "specrs_us": statistics.median(ours) * 1e6,
        "torch_us": statistics.median(theirs) * 1e6,
        "speedup": statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
        "floor_us": max(read, multiply) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the results there")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if _core.BUILD_PROFILE != "release":
        raise SystemExit(f"a {_core.BUILD_PROFILE} build of specrs measures nothing; build with --release")
    found = {"read": read_rate(), "multiply": multiply_rate()}
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rates": found, "results": []}
    speeds = f"{found['read'] / 1e9:.1f} GB/s, {found['multiply'] / 1e9:.0f} GFlop/s"
    print(f"{record['threads']} threads, {speeds}; times in us")
    print(f"{'heads':>10} {'length':>6} {'rows':>4} {'specrs':>8} {'torch':>8} {'times':>6} {'floor':>8} {'gap':>5}")
    with torch.inference_mode():
        for shape in SHAPES:
            for length in LENGTHS:
                for rows in ROWS:
                    row = measure(shape, length, rows, arguments.repeats, found)
                    record["results"].append(row)
                    print(
                        f"{shape[0]:>3}/{shape[1]} x{shape[2]:<4} {length:>5} {rows:>4} {row['specrs_us']:>8.0f} "
                        f"{row['torch_us']:>8.0f} {row['speedup']:>6.2f} {row['floor_us']:>8.0f} "
                        f"{row['specrs_us'] / row['floor_us']:>5.2f}",
                        flush=True,
                    )
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
