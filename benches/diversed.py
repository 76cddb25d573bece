"""Relaxed verification by ensembles: acceptance and speed against task score (DIVERSED, arXiv 2604.07622).

Protocol: a head is trained by ``specrs.train`` on one seed of the task, then every verification answers the same
held-out prompts at temperature 1 with the same seeds: lossless, static weights 0.9 to 0.1 of the target, and the head.
The score is the share of answers that are exactly right; speed is tokens per second relative to lossless in the same
run; the bias is the mean over texts of the total-variation bound. The plot needs matplotlib.

    python benches/diversed.py --out benches/record/DATE-diversed [--model NAME --draft-model NAME]

writes OUT.json and OUT.png; with --head FILE a trained head is taken, else one is trained and kept as OUT-head.
"""

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path

import specrs
from specrs.engine.relaxed import pair_of
from specrs.train import EnsembleTraining, arithmetic, text_sampler, train_ensemble
from specrs.verification import EnsembleHead, StaticEnsemble

WEIGHTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


def trained(target, draft, options):
    """Train a head, keep it and what each update saw."""
    settings = EnsembleTraining(
        steps=options.steps, batch=options.batch, learning_rate=options.learning_rate, warmup=2, per_token_mean=True
    )
    task = arithmetic(settings.steps * settings.batch, seed=1)
    sample = text_sampler(target, draft, task, temperature=1.0, max_new_tokens=options.max_new_tokens, seed=1)
    curve = []

    def seen(step, update):
        curve.append(vars(update) | {"step": step + 1})
        print(f"update {step + 1}: {update}", flush=True)

    head = train_ensemble(sample, pair_of(target, draft), task=task.name, settings=settings, seen=seen)
    head.save(f"{options.out}-head")
    return head, curve


def measure(target, draft, verification, task, options):
    """Answer the prompts of a task."""
    # Hidden states cost a little, and only a head reads them.
    target.keeps_hidden = draft.keeps_hidden = isinstance(verification, EnsembleHead)
    start = time.perf_counter()
    made = specrs.generate(
        target,
        list(task.prompts),
        drafter="model",
        draft_model=draft,
        draft_tokens=options.draft_tokens,
        temperature=1.0,
        seed=list(range(len(task.prompts))),
        max_new_tokens=options.max_new_tokens,
        stop=task.stop,
        verification=verification,
    )
    seconds = time.perf_counter() - start
    reports = [one.report for one in made]
    drafted, accepted = sum(r.drafted for r in reports), sum(r.accepted for r in reports)
    tokens = sum(len(one.ids) for one in made)
    return {
        "score": statistics.mean(task.reward(i, one.text) for i, one in enumerate(made)),
        "acceptance": accepted / max(drafted, 1),
        "tokens_per_pass": tokens / max(sum(r.target_passes for r in reports), 1),
        "tokens_per_second": tokens / seconds,
        "bias_bound": statistics.mean(r.bias or 0.0 for r in reports),
    }


def plot(results, path):
    """Draw acceptance and speed against the score."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharex=True)
    for panel, key, label in zip(
        panels, ("acceptance", "speed"), ("accepted share of drafted tokens", "speed, lossless = 1"), strict=True
    ):
        static = [row for name, row in results.items() if name.startswith("static")]
        panel.plot([r["score"] for r in static], [r[key] for r in static], "o-", label="static weights 0.9 to 0.1")
        for name, mark in (("lossless", "s"), ("dynamic", "*")):
            if name in results:
                panel.plot(results[name]["score"], results[name][key], mark, markersize=12, label=name)
        panel.set_xlabel("share of answers that are right")
        panel.set_ylabel(label)
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft-model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--head", type=Path)
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    options = parser.parse_args()
    if not options.train_only and importlib.util.find_spec("matplotlib") is None:
        parser.error("the plot needs matplotlib; install it, or take --train-only")
    target, draft = specrs.load(options.model), specrs.load(options.draft_model)
    record = {"options": {key: str(value) for key, value in vars(options).items()}, "training": [], "results": {}}
    if options.head is None:
        head, record["training"] = trained(target, draft, options)
    else:
        head = EnsembleHead.load(options.head, pair_of(target, draft))
    file = Path(f"{options.out}.json")
    file.write_text(json.dumps(record, indent=2) + "\n")
    if options.train_only:
        return
    results = record["results"]
    task = arithmetic(options.prompts, seed=2)
    measure(target, draft, None, arithmetic(2, seed=3), options)  # what only the first call pays for is not lossless's
    static = [(f"static {w}", StaticEnsemble(w)) for w in WEIGHTS]
    for name, verification in [("lossless", None), ("dynamic", head), *static]:
        results[name] = measure(target, draft, verification, task, options)
        results[name]["speed"] = results[name]["tokens_per_second"] / results["lossless"]["tokens_per_second"]
        print(name, json.dumps(results[name]), flush=True)
        file.write_text(json.dumps(record, indent=2) + "\n")
    plot(results, f"{options.out}.png")


if __name__ == "__main__":
    main()
