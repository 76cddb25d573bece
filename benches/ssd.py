"""Drafting while the target verifies, against drafting and verifying in turn, on the same two cores.

Protocol of ``measure``. The target runs on one core, the drafter in a process of its own on another, in both modes;
synchronous drafting is the same engine with a fan-out of 0, so the drafter waits while the target scores and the other
way round. Plain decoding on the target's core comes first; then, per setting and prompt, the modes take turns. A gain
is the median over prompts of paired ratios of decoding speed (after the first round). The formula is evaluated on
inputs measured in the same run: verification seconds per round, seconds of drafting anew, seconds of drafting ahead,
hit rate, and tokens per round behind hits and misses. ``ordinary`` is the use of two cores that needs no overlap: both
models in one process with two threads, the drafter as long as its policy likes. Texts of all modes must be equal.

``messages`` times a round's two messages with a drafter whose work is next to nothing, while the target's side works
between rounds, so that its caches are as cold as after a forward; ``packing`` is what of it the two sides spend without
each other, the rest is the way between two cores.

``simulate`` plays the published 70B/1B setting from published inputs and draws speed-ups against batch size,
temperature, K and fan-out (needs matplotlib, dependency group ``plots``).

    python benches/ssd.py measure --target NAME --draft NAME [--drop-layers A:B] [--draft-head N]
        [--settings K:F ...] [--ordinary] [--json FILE]
    python benches/ssd.py costs --target NAME --draft NAME [--drop-layers A:B] [--draft-head N]
    python benches/ssd.py messages [--sleeping] [--json FILE]
    python benches/ssd.py simulate [--out FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import time
from functools import partial
from pathlib import Path

import numpy as np

import specrs
from specrs import _core
from specrs.models.hf import TransformersTarget
from specrs.ssd import SsdDrafter, SsdOptions, advise_overlap, making, sd_speedup, simulate_overlap, ssd_speedup
from specrs.ssd import messages as wire
from specrs.ssd import synthetic_rates as rates_at
from specrs.ssd.messages import shared_file
from specrs.ssd.process import ProcessLink
from specrs.ssd.texts import Answer, Chain, Origin, Query, Reply, Text
from specrs.types import Draft

PROMPTS = Path(__file__).parent / "prompts"
#: 70B/1B on five H100: plain 54.7 tokens/s (paper); drafter step (27.5 - 15.0) / 6 ms, 3 ms of messages, 5.47 tokens a
#: round at K = 7 (acceptance 0.8885) and hit rate 0.88 at F = 3 (an independent reproduction).
PUBLISHED = {
    "costs": (1 / 54.7, 0.0, 12.5e-3 / 6, 0.0, 3e-3),
    "acceptance": 0.8885,
    "miss_law": (0.32, 0.893),
}


def cut(name, drop=None, head=None):
    """Load a drafter without the layers ``drop`` = (first, end), and with the first ``head`` rows of its head alone."""
    import torch

    target = specrs.load(name, accelerate=False)
    model, inner = target.model, target.model.model
    if drop:
        inner.layers = torch.nn.ModuleList([*inner.layers[: drop[0]], *inner.layers[drop[1] :]])
        for index, layer in enumerate(inner.layers):
            layer.self_attn.layer_idx = index
        model.config.num_hidden_layers = len(inner.layers)
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = [*model.config.layer_types[: drop[0]], *model.config.layer_types[drop[1] :]]
    if head:
        weight = model.get_output_embeddings().weight
        model.lm_head = torch.nn.Linear(weight.shape[1], head, bias=False, dtype=weight.dtype)
        model.lm_head.weight = torch.nn.Parameter(weight[:head].detach().clone(), requires_grad=False)
    made = TransformersTarget(model, target.tokenizer, name=name)
    made.accelerate()
    return made


def drafter_of(arguments):
    drop = tuple(map(int, arguments.drop_layers.split(":"))) if arguments.drop_layers else None
    return cut(arguments.draft, drop, arguments.draft_head)


#: Short requests: on one core, reading a long prompt takes longer than the text that is measured.
SHORT = [
    "Write a Python class for a binary search tree with insert, find and delete, with docstrings.",
    "Write a Python function that parses a CSV line with quoted fields, and unit tests for it.",
    "Write a Python module with functions for mean, median, variance and standard deviation.",
    "Write a Python class for a bounded stack and a bounded queue, with type hints.",
]


def prompts(set_, count):
    if set_ == "short":
        return [[{"role": "user", "content": text}] for text in SHORT[:count]]
    lines = (PROMPTS / f"{set_}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"] for line in lines[:count]]


@contextlib.contextmanager
def on_core(core):
    """Run this process on one core with one thread."""
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()

    def pin(cores):
        for task in Path("/proc/self/task").iterdir():  # threads that exist already keep their own affinity
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(task.name), cores)

    pin({core})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        pin(before)
        torch.set_num_threads(threads)


def run(target, messages, drafter, tokens, limit, **options):
    running = specrs.stream(target, messages, drafter=drafter, draft_tokens=tokens, max_new_tokens=limit, **options)
    for _ in running:
        pass
    return running.generations[0]


def beside(target, draft, options, core=1):
    """Return a drafter in a process of its own, on one core."""
    shipped = draft if isinstance(draft, str) else making.Shipped(draft)
    build = partial(making.build, shipped, options, target.vocab_size)
    link = ProcessLink(build, cores=[core], patience=60)
    return SsdDrafter(
        link,
        lookahead=options.lookahead,
        vocab_size=target.vocab_size,
        max_context=link.max_context,
        tokens_are_drawn=link.tokens_are_drawn,
    )


def measure(arguments):
    target = specrs.load(arguments.target)
    whole = not (arguments.drop_layers or arguments.draft_head)
    draft = None if whole and not arguments.ordinary else drafter_of(arguments)
    asked = prompts(arguments.set, arguments.prompts)
    limit, results, before = arguments.tokens, [], {}
    if arguments.ordinary:
        before["ordinary"] = [run(target, messages, "model", None, limit, draft_model=draft) for messages in asked]
    if not arguments.no_plain:
        with on_core(0):
            before["plain"] = [run(target, messages, "none", None, limit) for messages in asked]
    for lookahead, fan_out in arguments.settings:
        drafters = {}
        for name, guesses in (("overlapped", fan_out), ("synchronous", 0)):
            options = SsdOptions(lookahead=lookahead, fan_out=guesses, fallback="slow")
            drafters[name] = beside(target, arguments.draft if whole else draft, options)
        rows = []
        with on_core(0):
            run(target, asked[0], "none", None, 4)
            for number, messages in enumerate(asked):
                row = {name: made[number] for name, made in before.items()}
                for name in drafters if number % 2 == 0 else reversed(drafters):
                    row[name] = run(target, messages, drafters[name], lookahead, limit)
                rows.append(row)
        results.append({"lookahead": lookahead, "fan_out": fan_out, **summary(rows, drafters)})
        for drafter in drafters.values():
            drafter.close()
        print(json.dumps(results[-1], indent=1), flush=True)
        if arguments.json:
            found = {
                "command": {k: v for k, v in vars(arguments).items() if k != "run"},
                "machine": {"processor": platform.processor(), "cores": os.cpu_count(), "specrs": _core.__version__},
                "settings": results,
            }
            Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def summary(rows, drafters):
    def speeds(name):
        return [row[name].report.tokens_per_second for row in rows]

    def gain(a, b):
        return statistics.median(x / y for x, y in zip(speeds(a), speeds(b), strict=True))

    def seconds(name, stage):
        reports = [row[name].report for row in rows]
        rounds = sum(r.target_passes - 1 for r in reports)
        return sum(r.time_split.get(stage, 0.0) for r in reports) / rounds

    ahead = {name: drafter.statistics.to_dict() for name, drafter in drafters.items()}
    over, sync = ahead["overlapped"], ahead["synchronous"]
    verify = seconds("overlapped", "score")
    anew = sync["service_seconds"] / sync["rounds"]
    pre_draft = over["pre_draft_seconds"] / max(over["rounds"] - 1, 1)
    tokens = over["tokens_after"]
    hit, miss = tokens.get("hit", 0.0), tokens.get("slow", tokens.get("hit", 0.0))
    sync_tokens = sync["tokens_after"]["slow"]
    p = over["hit_rate"]
    # The two models share memory, so that verification beside a busy drafter takes longer: each side by its own.
    alone = seconds("synchronous", "score")
    ahead_speed = ssd_speedup(p, hit, pre_draft / verify, miss, anew / verify) / verify
    formula = ahead_speed / (sd_speedup(sync_tokens, anew / alone) / alone)
    measured = gain("overlapped", "synchronous")
    identical = all(len({tuple(made.ids) for made in row.values()}) == 1 for row in rows)
    return {
        "identical": identical,
        "tokens_per_second": {name: statistics.median(speeds(name)) for name in rows[0]},
        "gain_over_synchronous": measured,
        "formula": formula,
        "measured_over_formula": measured / formula,
        "ordinary_over_overlapped": gain("ordinary", "overlapped") if "ordinary" in rows[0] else None,
        "gain_over_plain": gain("overlapped", "plain") if "plain" in rows[0] else None,
        "synchronous_over_plain": gain("synchronous", "plain") if "plain" in rows[0] else None,
        "verify_seconds": verify,
        "verify_seconds_synchronous": alone,
        "draft_anew_seconds": anew,
        "draft_ahead_seconds": pre_draft,
        "draft_share_of_verify": anew / verify,
        "message_seconds_per_round": over["message_seconds"] / over["rounds"],
        "overlapped": over,
        "synchronous": sync,
    }


def forward_seconds(model, rows, repeats=3):
    state = model.new_state(256)
    model.prefill(state, np.zeros(64, np.uint32))
    draft = Draft.chains([np.zeros(rows - 1, np.uint32)])
    best = []
    for _ in range(repeats):
        start = time.perf_counter()
        model.score([state], [np.zeros(1, np.uint32)], draft)
        best.append(time.perf_counter() - start)
    return statistics.median(best)


def costs(arguments):
    """Print costs by rows on one core, and what the advisor makes of them."""
    models = {"target": specrs.load(arguments.target), "draft": drafter_of(arguments)}
    table = {}
    with on_core(0):
        for name, model in models.items():
            forward_seconds(model, 1, 1)
            table[name] = {rows: forward_seconds(model, rows) for rows in (1, 2, 4, 6, 8, 12)}
    print(json.dumps(table, indent=1))
    t, d = table["target"], table["draft"]
    linear = (t[1], max(0.0, (t[8] - t[1]) / 7), d[1], max(0.0, (d[12] - d[1]) / 11), 2e-4)
    for acceptance in (0.5, 0.7, 0.85):
        advice = advise_overlap(linear, acceptance, (0.3, 0.8))
        print(acceptance, json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in advice.items()}))


def packing_seconds(rounds=2000):
    """Median of what both sides do for a question and its answer, in one thread."""
    files = [shared_file(1 << 20) for _ in range(2)]
    ends = socket.socketpair()
    here = _core.DrafterChannel(ends[0].fileno(), files[1], files[0])
    there = _core.DrafterChannel(ends[1].fileno(), files[0], files[1])
    query = Query(0, 3, 499, np.array([7], np.uint32), 0, 4)
    made = Answer(1, (Reply(0, 3, 0, 7, Origin.SLOW, Chain(np.arange(4, dtype=np.uint32))),))
    taken = []
    for round_ in range(rounds):
        started = time.perf_counter()
        wire.send_questions(here, round_, [query], started)
        wire.queries_of(there.receive()[1])
        wire.send_answer(there, made)
        wire.answer_of(here.receive()[1])
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def messages(arguments):
    options = SsdOptions(lookahead=4, fan_out=0, fallback="slow")
    link = ProcessLink(partial(making.build, None, options, 151936), cores=None if arguments.sleeping else [1])
    os.sched_setaffinity(0, {0})
    link.start(Text(0, np.arange(1, 500, dtype=np.uint32), capacity=9000))
    taken, at = [], 499
    weights = np.ones(arguments.megabytes << 17)
    for round_ in range(1, arguments.rounds):
        new = np.array([1 + round_ % 490], np.uint32) if round_ > 1 else np.empty(0, np.uint32)
        link.speculate(round_, [Query(0, round_, at, new, 0, 4)])
        at += len(new)
        taken.append(link.message_seconds)
        weights.sum()  # the target's forward: reads more than the caches hold
    link.close()
    found = {
        "rounds": len(taken),
        "median": statistics.median(taken),
        "p90": sorted(taken)[int(0.9 * len(taken))],
        "packing": packing_seconds(),
        "sleeping": arguments.sleeping,
    }
    print(json.dumps(found))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found) + "\n", encoding="utf-8")


def simulate(arguments):
    """Play the published setting, and draw."""
    play = {**PUBLISHED, "lookahead": 7, "synchronous_lookahead": 6, "budget": 24, "rounds": 50_000, "seed": 1}
    made = simulate_overlap(play.pop("costs"), **play)
    paper = {"plain": 54.7, "synchronous": 161.8, "overlapped": 255.8}
    print(json.dumps({k: {"simulated": made[k], "paper": v, "ratio": made[k] / v} for k, v in paper.items()}, indent=1))
    print(json.dumps({k: made[k] for k in ("hit_rate", "tokens_per_round", "round_seconds")}))
    if arguments.out:
        draw(Path(arguments.out))


def draw(folder):
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "specrs"})
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    base = {"acceptance": PUBLISHED["acceptance"], "miss_law": PUBLISHED["miss_law"], "rounds": 4_000, "seed": 1}

    def played(costs=PUBLISHED["costs"], lookahead=7, fan_out=3, **changes):
        budget = fan_out * (lookahead + 1)
        scene = {**base, "lookahead": lookahead, "synchronous_lookahead": lookahead, "budget": budget, **changes}
        return simulate_overlap(costs, **scene)

    # Costs by rows of the reproduction: verification 15 to 20 ms and drafting 21 to 44 ms from batch 1 to 16.
    verify_row, draft_row = 5e-3 / (15 * 8), (44e-3 - 21e-3) / 8 / (15 * 24)
    growing = (PUBLISHED["costs"][0], verify_row, PUBLISHED["costs"][2], draft_row, 3e-3)
    figures = {}
    batches = [1, 2, 4, 8, 16, 32]
    figures["batch"] = {
        "x": ("requests", batches),
        **{
            f"after a miss: {how}": [
                (r := played(growing, batch=b, fallback=how, fallback_acceptance=0.3))["overlapped"] / r["synchronous"]
                for b in batches
            ]
            for how in ("slow", "fast", "zero")
        },
    }
    temperatures = [0.0, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5]
    figures["temperature"] = {"x": ("temperature", temperatures)}
    for weight in (1.0, 0.5, 0.1):
        gains = []
        for temperature in temperatures:
            acceptance, misses = rates_at(temperature, favoured=4, weight=weight, spread=6.0, noise=0.12)
            law = _core.fit_power_law([float(f) for f in range(1, 9)], [max(m, 1e-3) for m in misses], [1.0] * 8)
            plain = rates_at(temperature, spread=6.0, noise=0.12)[0]
            made = played(acceptance=acceptance, miss_law=law)["overlapped"]
            gains.append(made / played(acceptance=plain, miss_law=law)["synchronous"])
        figures["temperature"][f"C = {weight}"] = gains
    lookaheads = list(range(1, 13))
    figures["lookahead"] = {
        "x": ("K", lookaheads),
        **{
            f"acceptance {a}": [
                (r := played(growing, lookahead=k, acceptance=a))["overlapped"] / r["synchronous"] for k in lookaheads
            ]
            for a in (0.6, 0.75, 0.8885)
        },
    }
    fans = list(range(1, 11))
    figures["fan_out"] = {
        "x": ("guesses per number of accepted drafts", fans),
        **{
            f"rho {rho}": [
                (r := played(growing, fan_out=f, miss_law=(0.32, rho)))["overlapped"] / r["synchronous"] for f in fans
            ]
            for rho in (0.5, 0.893, 1.5)
        },
    }
    for name, series in figures.items():
        label, x = series.pop("x")
        figure, axes = plt.subplots(figsize=(6, 4))
        for title, y in series.items():
            axes.plot(x, y, marker="o", label=title)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel(label)
        axes.set_ylabel("speed over synchronous drafting")
        axes.set_title("Simulated, published 70B/1B costs")
        axes.legend()
        figure.tight_layout()
        figure.savefig(folder / f"ssd_{name}.svg", metadata={"Date": None})
        print(folder / f"ssd_{name}.svg", {k: [round(v, 3) for v in y] for k, y in series.items()})


def setting(text):
    lookahead, _, fan_out = text.partition(":")
    return int(lookahead), int(fan_out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, work in (("measure", measure), ("costs", costs)):
        command = commands.add_parser(name)
        command.add_argument("--target", default="qwen2.5-coder-1.5b")
        command.add_argument("--draft", default="qwen2.5-coder-0.5b")
        command.add_argument("--drop-layers", metavar="FIRST:END", help="leave these layers of the drafter out")
        command.add_argument("--draft-head", type=int, help="keep so many rows of the drafter's head")
        command.set_defaults(run=work)
        if name == "measure":
            command.add_argument("--settings", type=setting, nargs="+", default=[(1, 3)], metavar="K:F")
            command.add_argument("--set", default="short", help="short, or a file of benches/prompts")
            command.add_argument("--prompts", type=int, default=4)
            command.add_argument("--tokens", type=int, default=64)
            command.add_argument("--ordinary", action="store_true")
            command.add_argument("--no-plain", action="store_true")
            command.add_argument("--json")
    command = commands.add_parser("messages")
    command.add_argument("--rounds", type=int, default=400)
    command.add_argument("--megabytes", type=int, default=64, help="what is read between rounds")
    command.add_argument("--sleeping", action="store_true", help="neither side watches before it sleeps")
    command.add_argument("--json")
    command.set_defaults(run=messages)
    command = commands.add_parser("simulate")
    command.add_argument("--out")
    command.set_defaults(run=simulate)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
