"""Times the CUDA kernels on a device against copy bandwidth and against torch; with no device, prints bytes and floors.

Protocol: bfloat16, V = 151,936, fixed seed; each case is a captured graph, warmed up 5 times and timed 30 times with
device events, median reported; bandwidth is that of a 1 GiB device-to-device copy in the same process (read and written
bytes). Refuses a debug build. ``python benches/kernels.py [--record FOLDER]`` writes a dated JSON file.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
from pathlib import Path

import torch

from specrs import __version__, _core
from specrs.ops.attention import cache_addresses, commit_cache, tree_attention
from specrs.ops.rows import Sampling, row_statistics
from specrs.ops.verify import DraftLaw, DraftTree, Verdict, verify_chain, verify_walk

VOCABULARY = 151_936
#: H200, for the floors that are printed without a device.
PAPER_BANDWIDTH = 4.8e12


def median_seconds(run, repeats=30):
    for _ in range(5):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def replayed(run):
    """`run` as a captured graph, so that the launches of Python are not what is timed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def chains(batch, nodes, device):
    parameters = Sampling(
        torch.ones(batch, device=device),
        torch.zeros(batch, dtype=torch.int32, device=device),
        torch.ones(batch, device=device),
        torch.zeros(batch, device=device),
    )
    row_ptr = torch.arange(batch + 1, device=device) * (nodes + 1)
    tokens = torch.randint(VOCABULARY, (batch * nodes,), device=device)
    parents = torch.arange(-1, nodes - 1, dtype=torch.int32, device=device).repeat(batch)
    return DraftTree(row_ptr, tokens, parents, nodes), parameters


def row_cases(device):
    """Name, bytes that have to move, what runs, and what torch runs for the same result (or None)."""
    for batch in (1, 8, 32):
        nodes = 7
        rows = batch * (nodes + 1)
        logits = torch.randn(rows, VOCABULARY, device=device).to(torch.bfloat16)
        tree, parameters = chains(batch, nodes, device)
        accept, emit = (torch.rand(rows, dtype=torch.float64, device=device) for _ in range(2))
        draft = DraftLaw(torch.rand(batch * nodes, VOCABULARY, device=device).softmax(1))
        read = rows * VOCABULARY * 2
        yield (
            f"statistics B={batch}",
            read,
            lambda x=logits: row_statistics(x),
            lambda x=logits: x.float().softmax(1).max(1),
        )
        walk = [logits, tree, parameters, emit]
        yield f"walk B={batch}", read, lambda a=walk: verify_walk(*a), None
        chain = [logits, tree, parameters, draft, accept, emit]
        yield f"chain B={batch}", read + batch * VOCABULARY * 4, lambda a=chain: verify_chain(*a), None


def attention_cases(device):
    for prefix in (4096, 32768):
        for nodes in (15, 63):
            heads, kv_heads, dim, rows = 32, 8, 128, nodes + 1
            query = torch.randn(rows, heads, dim, device=device).to(torch.bfloat16)
            shape = (1, kv_heads, prefix + rows, dim)
            keys, values = (torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(2))
            seen = torch.tril(torch.ones(rows, rows, dtype=torch.bool, device=device))
            bits = (seen.long() << torch.arange(rows, device=device)).sum(1, keepdim=True)
            mask = torch.cat([torch.ones(rows, prefix, dtype=torch.bool, device=device), seen], 1)
            lengths, row_ptr = torch.tensor([prefix], device=device), torch.tensor([0, rows], device=device)
            arguments = [query, keys, values, lengths, row_ptr, bits]
            read = 2 * keys.numel() * 2
            dense = query.transpose(0, 1)[None]
            yield (
                f"attention P={prefix} rows={rows}",
                read,
                lambda a=arguments: tree_attention(*a, splits=32),
                lambda q=dense, k=keys, v=values, m=mask: torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=m, enable_gqa=True
                ),
            )


def commit_case(device):
    batch, layers, heads, dim, slots, path = 8, 32, 8, 128, 4096, [1, 3, 5, 7, 9]
    tensors = [torch.randn(batch, heads, slots, dim, device=device).to(torch.bfloat16) for _ in range(2 * layers)]
    count = torch.zeros(batch, dtype=torch.int32, device=device)
    verdict = Verdict(
        torch.tensor([path] * batch, dtype=torch.int32, device=device), count + len(path), count.long(), count
    )
    addresses, lengths = cache_addresses(tensors), torch.full((batch,), 100, device=device)
    moved = 2 * len(path) * batch * heads * dim * 2 * len(tensors)

    def run():
        lengths.fill_(100)
        commit_cache(tensors, addresses, lengths, verdict)

    return "commit B=8 layers=32", moved, run, None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="folder for the dated result")
    options = parser.parse_args()
    if _core.BUILD_PROFILE != "release":
        parser.error("a debug build is not measured; build with --release")
    if not torch.cuda.is_available():
        print("no GPU at hand; bytes and floors at 4.8 TB/s")
        for batch in (1, 8, 32):
            read = batch * 8 * VOCABULARY * 2
            print(f"statistics B={batch}: {read / 1e6:.1f} MB, {read / PAPER_BANDWIDTH * 1e6:.1f} us")
        return
    device = torch.device("cuda")
    torch.manual_seed(0)
    source, target = (torch.empty(2**30, dtype=torch.uint8, device=device) for _ in range(2))
    bandwidth = 2 * 2**30 / median_seconds(lambda: target.copy_(source))
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s")
    results = []
    for cases in (row_cases(device), attention_cases(device), [commit_case(device)]):
        for name, moved, run, peer in cases:
            seconds = median_seconds(replayed(run))
            of_torch = median_seconds(replayed(peer)) if peer else None
            share = moved / seconds / bandwidth
            results.append({"case": name, "bytes": moved, "seconds": seconds, "share": share, "torch": of_torch})
            beside = f", torch {of_torch * 1e6:.1f} us" if of_torch else ""
            print(f"{name}: {seconds * 1e6:.1f} us, {share:.0%} of copy bandwidth{beside}")
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "specrs": __version__}
        path = options.record / f"{dt.date.today().isoformat()}-kernels.json"
        path.write_text(json.dumps({**facts, "copy_bytes_per_second": bandwidth, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
