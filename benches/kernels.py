"""Times the CUDA kernels against copy bandwidth, torch and FlashInfer; with no device, prints bytes and floors.

Protocol: bfloat16, V = 151,936, fixed seed; each case is a captured graph, warmed up 5 times and timed 30 times with
device events, median reported; bandwidth is that of a 1 GiB device-to-device copy in the same process (read and written
bytes). A peer that does not install or does not run is named and left out. Refuses a debug build.
``python benches/kernels.py [--record FOLDER]`` writes a dated JSON file; ``--rehearse`` runs every case once with small
shapes on host tensors, behind whatever driver is open (the tests open the stand-in).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from specrs import __version__, _core
from specrs.ops.attention import cache_addresses, commit_cache, tree_attention
from specrs.ops.draft import DraftLaw, DraftTree, Verdict
from specrs.ops.drawing import Draws
from specrs.ops.outcome import top_k_rows
from specrs.ops.relaxed import RelaxedRule, verify_relaxed
from specrs.ops.rows import Sampling, row_statistics
from specrs.ops.torch_ops import draw_tokens_cuda
from specrs.ops.verify import verify_block, verify_chain, verify_siblings, verify_walk

#: H200, for the floors that are printed without a device.
PAPER_BANDWIDTH = 4.8e12


@dataclass(frozen=True)
class Sizes:
    """What is measured: vocabulary, batches of 7 drafts, (prefix, rows) of attention, (layers, slots) of a cache."""

    vocabulary: int = 151_936
    batches: tuple[int, ...] = (1, 8, 32)
    attention: tuple[tuple[int, int], ...] = ((4096, 16), (4096, 64), (32768, 16), (32768, 64))
    heads: tuple[int, int] = (32, 8)
    cache: tuple[int, int] = (32, 4096)


SMALL = Sizes(500, (2,), ((70, 16),), (4, 2), (2, 128))


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


def chains(batch, nodes, sizes, device):
    parameters = Sampling(
        torch.ones(batch, device=device),
        torch.zeros(batch, dtype=torch.int32, device=device),
        torch.ones(batch, device=device),
        torch.zeros(batch, device=device),
    )
    row_ptr = torch.arange(batch + 1, device=device) * (nodes + 1)
    tokens = torch.randint(sizes.vocabulary, (batch * nodes,), device=device)
    parents = torch.arange(-1, nodes - 1, dtype=torch.int32, device=device).repeat(batch)
    return DraftTree(row_ptr, tokens, parents, nodes), parameters


def flashinfer_chain(logits, tree, draft, nodes):
    """FlashInfer's chain verification with the softmax that it needs before it, or None."""
    try:
        from flashinfer.sampling import chain_speculative_sampling
    except ImportError:
        return None
    batch = tree.requests
    tokens, probs = tree.tokens.view(batch, nodes).int(), draft.probs.view(batch, nodes, -1)
    rows = logits.view(batch, nodes + 1, -1)
    return lambda: chain_speculative_sampling(probs, tokens, rows.float().softmax(-1))


def row_cases(sizes, device):
    """Name, bytes that have to move, what runs, and what runs for the same result elsewhere by name."""
    vocabulary, nodes = sizes.vocabulary, 7
    for batch in sizes.batches:
        rows = batch * (nodes + 1)
        logits = torch.randn(rows, vocabulary, device=device).to(torch.bfloat16)
        tree, parameters = chains(batch, nodes, sizes, device)
        accept, emit = (torch.rand(rows, dtype=torch.float64, device=device) for _ in range(2))
        draft = DraftLaw(torch.rand(batch * nodes, vocabulary, device=device).softmax(1))
        cut = parameters._replace(top_k=parameters.top_k + 50, top_p=parameters.top_p * 0.95)
        read, laws = rows * vocabulary * 2, batch * nodes * vocabulary * 4
        given = [logits, tree, parameters, draft, accept, emit]
        yield (
            f"statistics B={batch}",
            read,
            lambda x=logits: row_statistics(x),
            {"torch": lambda x=logits: x.float().softmax(1).max(1)},
        )
        yield f"best 8 B={batch}", read, lambda x=logits: top_k_rows(x, 8), {"torch": lambda x=logits: x.topk(8)}
        draws = Draws(*(np.full(batch, value) for value in (0.5, 0.8, 0, 1.0, 0.0))).packed()
        step = logits[:batch], torch.from_numpy(draws).to(device), True
        peer = {"torch": lambda x=logits[:batch]: x.float().softmax(1).multinomial(1)}
        yield f"draw B={batch}", batch * vocabulary * (2 + 4), lambda s=step: draw_tokens_cuda(*s), peer
        yield f"walk B={batch}", read, lambda g=given: verify_walk(g[0], g[1], g[2], g[5]), {}
        yield f"walk top-k top-p B={batch}", read, lambda g=given, c=cut: verify_walk(g[0], g[1], c, g[5]), {}
        chain = {"flashinfer": flashinfer_chain(logits, tree, draft, nodes)}
        yield f"chain B={batch}", read + batch * vocabulary * 4, lambda g=given: verify_chain(*g), chain
        yield f"block B={batch}", read + laws, lambda g=given: verify_block(*g), {}
        rule = RelaxedRule("ensemble", (), torch.full((batch * nodes,), 0.7, device=device))
        yield f"ensemble B={batch}", read + laws, lambda g=given, r=rule: verify_relaxed(*g, r), {}
        siblings = tree._replace(parents=torch.full_like(tree.parents, -1))
        shared = draft._replace(row_of=(torch.arange(batch * nodes, device=device) // nodes) * nodes)
        trees = [logits, siblings, parameters, shared, accept, emit]
        yield f"siblings B={batch}", read + batch * vocabulary * 4, lambda g=trees: verify_siblings(*g), {}


def attention_cases(sizes, device):
    for prefix, rows in sizes.attention:
        (heads, kv_heads), dim = sizes.heads, 128
        query = torch.randn(rows, heads, dim, device=device).to(torch.bfloat16)
        shape = (1, kv_heads, prefix + rows, dim)
        keys, values = (torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(2))
        seen = torch.tril(torch.ones(rows, rows, dtype=torch.bool, device=device))
        bits = (seen.long() << torch.arange(rows, device=device)).sum(1, keepdim=True)
        mask = torch.cat([torch.ones(rows, prefix, dtype=torch.bool, device=device), seen], 1)
        lengths, row_ptr = torch.tensor([prefix], device=device), torch.tensor([0, rows], device=device)
        arguments = [query, keys, values, lengths, row_ptr, bits]
        dense = query.transpose(0, 1)[None]

        def peer(q=dense, k=keys, v=values, m=mask):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True)

        ours = tree_attention(*arguments, splits=32)[0].float()
        difference = float((ours - peer()[0].transpose(0, 1).float()).abs().max())
        if not difference < 0.03:
            raise SystemExit(f"attention P={prefix} rows={rows} differs from torch by {difference}")
        read = 2 * keys.numel() * 2
        run = lambda a=arguments: tree_attention(*a, splits=32)  # noqa: E731
        yield f"attention P={prefix} rows={rows}", read, run, {"torch": peer}


def commit_case(sizes, device):
    batch, heads, dim, path = 8, 8, 128, [1, 3, 5, 7, 9]
    layers, slots = sizes.cache
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

    return f"commit B={batch} layers={layers}", moved, run, {}


def cases(sizes, device):
    """Every case once."""
    yield from row_cases(sizes, device)
    yield from attention_cases(sizes, device)
    yield commit_case(sizes, device)


def copy_bandwidth(device):
    source, target = (torch.empty(2**30, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * 2**30 / median_seconds(lambda: target.copy_(source))


def peer_seconds(name, peer, run):
    """Return the median of a peer, or None where it is missing or does not run."""
    try:
        return None if run is None else median_seconds(replayed(run))
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"{name}: {peer} left out: {error}")
        return None


def measured(sizes, device, bandwidth):
    results = []
    for name, moved, run, peers in cases(sizes, device):
        seconds = median_seconds(replayed(run))
        share = moved / seconds / bandwidth
        others = {peer: peer_seconds(name, peer, other) for peer, other in peers.items()}
        results.append({"case": name, "bytes": moved, "seconds": seconds, "share": share, "peers": others})
        beside = "".join(f", {peer} {t * 1e6:.1f} us" for peer, t in others.items() if t is not None)
        print(f"{name}: {seconds * 1e6:.1f} us, {share:.0%} of copy bandwidth{beside}")
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="folder for the dated result")
    parser.add_argument("--rehearse", action="store_true", help="each case once, small, on host tensors")
    options = parser.parse_args(arguments)
    if _core.BUILD_PROFILE != "release":
        parser.error("a debug build is not measured; build with --release")
    torch.manual_seed(0)
    if options.rehearse:
        for name, moved, run, peers in cases(SMALL, torch.device("cpu")):
            run()
            for other in peers.values():
                if other is not None:
                    other()
            print(f"{name}: ran, {moved} bytes")
        return
    if not torch.cuda.is_available():
        print("no GPU at hand; bytes and floors at 4.8 TB/s")
        for batch in Sizes.batches:
            read = batch * 8 * Sizes.vocabulary * 2
            print(f"statistics B={batch}: {read / 1e6:.1f} MB, {read / PAPER_BANDWIDTH * 1e6:.1f} us")
        return
    device = torch.device("cuda")
    bandwidth = copy_bandwidth(device)
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s")
    results = measured(Sizes(), device, bandwidth)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "specrs": __version__}
        path = options.record / f"{dt.date.today().isoformat()}-kernels.json"
        path.write_text(json.dumps({**facts, "copy_bytes_per_second": bandwidth, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
