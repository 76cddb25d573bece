"""Times the CUDA kernels against copy bandwidth, torch and FlashInfer; with no device, prints bytes and floors.

Protocol: bfloat16, V = 151,936, fixed seed; each case is a captured graph of at least 20 runs, which take turns over as
many copies of their buffers as pass the L2 cache twice, so that neither the graph's launch nor the cache is timed. The
graph is replayed 5 times to warm up and 30 times between device events; reported is the median of the time per run.
Bandwidth is that of a 1 GiB device-to-device copy in the same process (read and written bytes). Attention is first held
against torch in float32, row by row. A peer that does not install or does not run is named and left out. Refuses a
debug build.
``python benches/kernels.py [--record FOLDER]`` writes a dated JSON file; ``--rehearse`` runs every case once with small
shapes on host tensors, behind whatever driver is open (the tests open the stand-in).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from specrs import __version__, _core
from specrs.models.tree_batch import PART_TOKENS, parts_of
from specrs.ops.attention import cache_addresses, commit_cache, tree_attention
from specrs.ops.caches import attend_caches, write_caches
from specrs.ops.draft import DraftLaw, DraftTree, Verdict
from specrs.ops.drawing import Draws
from specrs.ops.outcome import top_k_rows
from specrs.ops.relaxed import RelaxedRule, verify_relaxed
from specrs.ops.rows import Sampling, row_statistics
from specrs.ops.torch_ops import draw_tokens_cuda
from specrs.ops.verify import verify_block, verify_chain, verify_siblings, verify_walk

#: H200, for the floors that are printed without a device.
PAPER_BANDWIDTH = 4.8e12
#: Runs of a graph at least, and copies of a case's buffers at most.
RUNS, MOST_COPIES = 20, 64
#: Largest error of a row of bfloat16 attention, as a share of the row; weights and result round by 0.002 each.
ATTENTION_ERROR = 0.01


@dataclass(frozen=True)
class Sizes:
    """Vocabulary, batches of 7 drafts, (prefix, rows, D) of attention, (batch, layers, slots) of caches.

    And (batch, prefix, rows) of layers, whose requests have a cache each.
    """

    vocabulary: int = 151_936
    batches: tuple[int, ...] = (1, 8, 32)
    attention: tuple[tuple[int, int, int], ...] = (
        (32, 16, 128),
        (512, 16, 64),
        (4096, 16, 128),
        (4096, 64, 128),
        (4096, 16, 256),
        (32768, 16, 64),
        (32768, 16, 128),
        (32768, 64, 128),
    )
    heads: tuple[int, int] = (32, 8)
    caches: tuple[tuple[int, int, int], ...] = ((8, 32, 4096), (32, 32, 1024))
    layers: tuple[tuple[int, int, int], ...] = ((1, 4096, 8), (8, 4096, 8), (32, 1024, 8), (32, 4096, 1))


SMALL = Sizes(500, (2,), ((70, 16, 128), (9, 6, 64), (20, 3, 256)), (4, 2), ((2, 2, 128),), ((2, 20, 3),))

Run = Callable[[], object]
#: The runs of a case, each on buffers of its own, and those of its peers by name.
Runs = tuple[list[Run], dict[str, list[Run]]]


@dataclass(frozen=True)
class Case:
    """A name, the bytes that have to move, and what makes so many copies of the case."""

    name: str
    moved: int
    make: Callable[[int], Runs]


def on_copies(build):
    """Make a case of ``build()``: a run on fresh buffers, and those of its peers or None for a missing one."""

    def make(copies):
        runs, peers = zip(*(build() for _ in range(copies)), strict=True)
        return list(runs), {name: [peer[name] for peer in peers] for name in peers[0] if peers[0][name] is not None}

    return make


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


def seconds_of(runs):
    """Return the median time of one of `runs`, which take turns in one captured graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph, count = torch.cuda.CUDAGraph(), max(RUNS, len(runs))
    with torch.cuda.graph(graph):
        for i in range(count):
            runs[i % len(runs)]()
    return median_seconds(graph.replay) / count


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
    vocabulary, nodes = sizes.vocabulary, 7
    for batch in sizes.batches:
        rows, shape = batch * (nodes + 1), f"B={batch}"

        def scores(rows=rows):
            return torch.randn(rows, vocabulary, device=device).to(torch.bfloat16)

        def round_of(batch=batch, rows=rows):
            tree, parameters = chains(batch, nodes, sizes, device)
            accept, emit = (torch.rand(rows, dtype=torch.float64, device=device) for _ in range(2))
            draft = DraftLaw(torch.rand(batch * nodes, vocabulary, device=device).softmax(1))
            return [scores(rows), tree, parameters, draft, accept, emit]

        def statistics_of_rows(scores=scores):
            x = scores()
            return lambda: row_statistics(x), {"torch": lambda: x.float().softmax(1).max(1)}

        def best(scores=scores):
            x = scores()
            return lambda: top_k_rows(x, 8), {"torch": lambda: x.topk(8)}

        def draw(batch=batch):
            x = scores(batch)
            draws = Draws(*(np.full(batch, value) for value in (0.5, 0.8, 0, 1.0, 0.0))).packed()
            buffer = torch.from_numpy(draws).to(device)
            return lambda: draw_tokens_cuda(x, buffer, True), {"torch": lambda: x.float().softmax(1).multinomial(1)}

        def walk(top_k, top_p, round_of=round_of):
            x, tree, parameters, _, _, emit = round_of()
            cut = parameters._replace(top_k=parameters.top_k + top_k, top_p=parameters.top_p * top_p)
            return lambda: verify_walk(x, tree, cut, emit), {}

        def chain(round_of=round_of):
            given = round_of()
            return lambda: verify_chain(*given), {"flashinfer": flashinfer_chain(given[0], given[1], given[3], nodes)}

        def block(round_of=round_of):
            given = round_of()
            return lambda: verify_block(*given), {}

        def ensemble(round_of=round_of, batch=batch):
            given = round_of()
            rule = RelaxedRule("ensemble", (), torch.full((batch * nodes,), 0.7, device=device))
            return lambda: verify_relaxed(*given, rule), {}

        def siblings(round_of=round_of, batch=batch):
            x, tree, parameters, draft, *coins = round_of()
            stars = tree._replace(parents=torch.full_like(tree.parents, -1))
            shared = draft._replace(row_of=(torch.arange(batch * nodes, device=device) // nodes) * nodes)
            return lambda: verify_siblings(x, stars, parameters, shared, *coins), {}

        read, law = rows * vocabulary * 2, vocabulary * 4
        yield Case(f"statistics {shape}", read, on_copies(statistics_of_rows))
        yield Case(f"best 8 {shape}", read, on_copies(best))
        yield Case(f"draw {shape}", batch * vocabulary * (2 + 4), on_copies(draw))
        yield Case(f"walk {shape}", read, on_copies(partial(walk, 0, 1.0)))
        yield Case(f"walk top-k top-p {shape}", read, on_copies(partial(walk, 50, 0.95)))
        yield Case(f"chain {shape}", read + batch * law, on_copies(chain))
        yield Case(f"block {shape}", read + batch * nodes * law, on_copies(block))
        yield Case(f"ensemble {shape}", read + batch * nodes * law, on_copies(ensemble))
        yield Case(f"siblings {shape}", read + batch * law, on_copies(siblings))


def refuse_wrong_attention(name, ours, reference):
    """Stop where a row, as a whole, is further from the float32 reference than rounding takes it."""
    error = (ours.float() - reference).norm(dim=-1) / reference.norm(dim=-1)
    if not bool((error < ATTENTION_ERROR).all()):
        raise SystemExit(f"{name}: a row differs from torch in float32 by {float(error.max()):.2%} of itself")


def binary_tree(rows):
    """Return which rows each of a binary tree's sees, as a matrix."""
    seen = torch.eye(rows, dtype=torch.bool)
    for row in range(1, rows):
        seen[row] |= seen[(row - 1) // 2]
    return seen


def bits_of(seen):
    return (seen.long() << torch.arange(len(seen))).sum(1, keepdim=True)


def attention_case(prefix, rows, dim, sizes, device):
    """Attend from a binary tree of `rows` to a prefix, in as many splits as the engine takes."""
    (heads, kv_heads), slots = sizes.heads, prefix + rows
    name, splits = f"attention P={prefix} rows={rows} D={dim}", parts_of(slots)
    seen = binary_tree(rows)
    bits = bits_of(seen).to(device)
    mask = torch.cat([torch.ones(rows, prefix, dtype=torch.bool), seen], 1).to(device)
    lengths, row_ptr = torch.tensor([prefix], device=device), torch.tensor([0, rows], device=device)

    def build():
        query = torch.randn(rows, heads, dim, device=device).to(torch.bfloat16)
        keys, values = (torch.randn(1, kv_heads, slots, dim, device=device).to(torch.bfloat16) for _ in range(2))

        dense = query.transpose(0, 1)[None]

        def peer(q=dense, k=keys, v=values):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

        def run():
            return tree_attention(query, keys, values, lengths, row_ptr, bits, splits=splits)

        exact = peer(dense.float(), keys.float(), values.float())
        refuse_wrong_attention(name, run()[0], exact[0].transpose(0, 1))
        return run, {"torch": peer}

    return Case(name, 4 * kv_heads * slots * dim, on_copies(build))


def layer_case(batch, prefix, rows, sizes, device):
    """Write a layer's new rows into each request's cache and attend from there, together and request by request."""
    (heads, kv_heads), slots, dim = sizes.heads, prefix + rows, 128
    name, splits = f"layer B={batch} P={prefix} rows={rows}", parts_of(slots)
    bits = bits_of(binary_tree(rows)).repeat(batch, 1).to(device)
    lengths, row_ptr = torch.full((batch,), prefix, device=device), torch.arange(batch + 1, device=device) * rows

    def build():
        def normal(*shape):
            return torch.randn(shape, device=device).to(torch.bfloat16)

        query, new = normal(batch * rows, heads, dim), [normal(batch * rows, kv_heads, dim) for _ in range(2)]
        caches = [[normal(1, kv_heads, slots, dim) for _ in range(batch)] for _ in range(2)]
        places = [cache_addresses([*caches[0], *caches[1]]), torch.full_like(lengths, slots), lengths, row_ptr]
        cut = {"splits": splits, "least_part": PART_TOKENS, "most_rows": rows}

        def run():
            write_caches(*caches, *places, *new)
            return attend_caches(query, *caches, *places, bits, **cut)

        def one_by_one():
            out = []
            for b, own in enumerate(zip(*caches, strict=True)):
                mine = slice(b * rows, (b + 1) * rows)
                for cache, fresh in zip(own, new, strict=True):
                    cache[0, :, prefix:] = fresh[mine].transpose(0, 1)
                out.append(tree_attention(query[mine], *own, lengths[:1], row_ptr[:2], bits[mine], splits=splits)[0])
            return torch.cat(out)

        refuse_wrong_attention(name, run()[0], one_by_one().float())
        return run, {"request by request": one_by_one}

    return Case(name, 4 * batch * kv_heads * slots * dim, on_copies(build))


def commit_case(batch, layers, slots, device):
    """Paths of five nodes; the copies move different slots of one cache, and without a bonus no length advances."""
    heads, dim, path = 8, 128, [1, 3, 5, 7, 9]

    def make(copies):
        tensors = [torch.randn(batch, heads, slots, dim, device=device).to(torch.bfloat16) for _ in range(2 * layers)]
        count = torch.zeros(batch, dtype=torch.int32, device=device)
        nodes = torch.tensor([path] * batch, dtype=torch.int32, device=device)
        verdict, addresses = Verdict(nodes, count + len(path), count.long() - 1, count), cache_addresses(tensors)
        starts = [torch.full((batch,), 16 * copy % (slots - 16), device=device) for copy in range(copies)]
        return [partial(commit_cache, tensors, addresses, start, verdict) for start in starts], {}

    moved = 2 * len(path) * batch * heads * dim * 2 * 2 * layers
    return Case(f"commit B={batch} layers={layers}", moved, make)


def cases(sizes, device):
    """Every case once."""
    yield from row_cases(sizes, device)
    for prefix, rows, dim in sizes.attention:
        yield attention_case(prefix, rows, dim, sizes, device)
    for batch, prefix, rows in sizes.layers:
        yield layer_case(batch, prefix, rows, sizes, device)
    for batch, layers, slots in sizes.caches:
        yield commit_case(batch, layers, slots, device)


def copy_bandwidth(device):
    source, target = (torch.empty(2**30, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * 2**30 / median_seconds(lambda: target.copy_(source))


def peer_seconds(name, peer, runs):
    """Return the median of a peer, or None where it does not run."""
    try:
        return seconds_of(runs)
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"{name}: {peer} left out: {error}")
        return None


def measured(sizes, device, bandwidth):
    cache, results = torch.cuda.get_device_properties(device).L2_cache_size, []
    for case in cases(sizes, device):
        copies = min(-(-2 * cache // case.moved), MOST_COPIES)
        runs, peers = case.make(copies)
        seconds = seconds_of(runs)
        share = case.moved / seconds / bandwidth
        others = {peer: peer_seconds(case.name, peer, theirs) for peer, theirs in peers.items()}
        facts = {"case": case.name, "bytes": case.moved, "copies": copies, "seconds": seconds, "share": share}
        results.append({**facts, "peers": others})
        beside = "".join(f", {peer} {t * 1e6:.1f} us" for peer, t in others.items() if t is not None)
        print(f"{case.name}: {seconds * 1e6:.1f} us, {share:.0%} of copy bandwidth{beside}")
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
        for case in cases(SMALL, torch.device("cpu")):
            runs, peers = case.make(1)
            for run in [*runs, *(run for theirs in peers.values() for run in theirs)]:
                run()
            print(f"{case.name}: ran, {case.moved} bytes")
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
