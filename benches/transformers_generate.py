"""``model.generate`` with specrs against the ways of transformers, through the same call, on the same prompts.

For each prompt, in turns within one process: plain decoding, prompt lookup (10 tokens, the default n-gram), assisted
generation with the 0.5 B model, our cache drafter in their assisted loop, and ``custom_generate=specrs.hf.generate``.
Greedy, bfloat16 (``--dtype``), the same streamer times all. The peers run on the model as it is loaded;
``specrs.hf.generate`` swaps its own attention and, where torch's are slow, its own linear kernels in, for the time of a
forward.

Every method generates a few tokens first; ours measures what rows cost at that point. Decode speed counts what comes
after the first step, which also reads the prompt; whole speed counts everything. A text that differs from the plain one
is explained by both logits after the clock has stopped.

    python benches/transformers_generate.py --output benches/record/DATE-transformers-generate.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers.generation.streamers import BaseStreamer

import specrs
import specrs.hf
from specrs import _core
from specrs.bench import environment, read_prompts
from specrs.compare import explain, first_difference
from specrs.prompts import encode_prompts

HERE = Path(__file__).parent
#: Prompts of each set: the shortest ones, for reading a prompt in bfloat16 takes most of the time here.
PROMPTS = {"code_edit": 2, "agent": 2, "docstring_code": 2, "chat": 2, "long_qa": 1}
METHODS = {
    "plain": lambda draft: {},
    "prompt lookup": lambda draft: {"prompt_lookup_num_tokens": 10},
    "assisted": lambda draft: {"assistant_model": draft},
    "specrs candidates": lambda draft: {"custom_generate": specrs.hf.assisted},
    "specrs": lambda draft: {"custom_generate": specrs.hf.generate, "drafter": "cache"},
}
OURS = "specrs"


class Clock(BaseStreamer):
    """When the first tokens came, how many they were, and when the text was done."""

    def __init__(self):
        self.start = time.perf_counter()
        self.first = None
        self.first_tokens = 0
        self.prompt_seen = False

    def put(self, value):
        if self.prompt_seen and self.first is None:
            self.first, self.first_tokens = time.perf_counter() - self.start, value.numel()
        self.prompt_seen = True

    def end(self):
        self.total = time.perf_counter() - self.start


def run(target, draft_model, ids, method, tokens):
    """Return the new ids and the figures of one call of ``generate``."""
    inputs = torch.from_numpy(ids.astype("int64"))[None]
    clock = Clock()
    out = target.model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=list(target.eos_token_ids),
        pad_token_id=target.eos_token_ids[0],
        repetition_penalty=1.0,
        streamer=clock,
        **METHODS[method](draft_model),
    )
    new = out[0, len(ids) :].tolist()
    later = len(new) - clock.first_tokens
    return {
        "ids": new,
        "new_tokens": len(new),
        "seconds": clock.total,
        "first_seconds": clock.first,
        "decode_tokens_per_second": later / (clock.total - clock.first) if later else None,
        "tokens_per_second": len(new) / clock.total,
    }


def chosen_prompts(target, limits):
    """Return (prompt, ids): the shortest prompt of every set, then the second of every set, and so on."""
    chosen = []
    for place, (name, count) in enumerate(limits.items()):
        prompts = read_prompts(HERE / "prompts", [name], None)
        encoded = [(encode_prompts(target, p.messages)[0], p) for p in prompts]
        shortest = sorted(encoded, key=lambda pair: len(pair[0]))[:count]
        chosen += [(turn, place, p, ids) for turn, (ids, p) in enumerate(shortest)]
    return [(p, ids) for _, _, p, ids in sorted(chosen, key=lambda entry: entry[:2])]


def summarise(rows):
    """Return, per set, each method's geometric mean of paired ratios to ours: above 1 where ours is the faster one."""
    summary = {}
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]
        summary[name] = {}
        for method in mine[0]["runs"]:
            pairs = [(row["runs"][OURS], row["runs"][method]) for row in mine]
            summary[name][method] = {
                key: statistics.geometric_mean(ours[key] / theirs[key] for ours, theirs in pairs)
                for key in ("decode_tokens_per_second", "tokens_per_second")
            }
            summary[name][method]["median_decode_tokens_per_second"] = statistics.median(
                theirs["decode_tokens_per_second"] for _, theirs in pairs
            )
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft-model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--limit", type=int, default=2, help="at most so many prompts of each set")
    parser.add_argument("--sets", nargs="*", default=list(PROMPTS), choices=list(PROMPTS))
    parser.add_argument("--methods", nargs="*", default=["plain", "prompt lookup", "assisted", OURS], choices=METHODS)
    parser.add_argument("--dtype", default="bfloat16", help="of both models")
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--explain", action="store_true", help="explain the differences in an existing output; no timing"
    )
    options = parser.parse_args()
    if _core.BUILD_PROFILE != "release":
        raise SystemExit(f"a bench needs a release build, this is {_core.BUILD_PROFILE!r}: ./dev build")
    loaded = specrs.load(options.model, dtype=options.dtype)
    # By the model object, as `generate` meets it: its costs are then measured once.
    target = specrs.load(loaded.model, tokenizer=loaded.tokenizer)
    if options.explain:
        explain_differences(options, target, json.loads(options.output.read_text())["rows"])
        return
    draft_model = specrs.load(options.draft_model, dtype=options.dtype).model
    warm = encode_prompts(target, "for i in range(10):\n    print(i)\nfor i in")[0]
    # One object for all calls: what is measured is kept with the model.
    for method in options.methods:
        run(target, draft_model, warm, method, 6)
    rows = []
    prompts = chosen_prompts(target, {name: min(PROMPTS[name], options.limit) for name in options.sets})
    for turn, (prompt, ids) in enumerate(prompts):
        runs = {}
        for method in options.methods if turn % 2 == 0 else reversed(options.methods):
            runs[method] = run(target, draft_model, ids, method, options.tokens)
            shown = {k: round(v, 2) for k, v in runs[method].items() if k != "ids" and v}
            print(prompt.id, len(ids), method, shown, flush=True)
        rows.append({"prompt": prompt.id, "set": prompt.set, "prompt_tokens": len(ids), "runs": runs})
        save(options, target, rows)
    explain_differences(options, target, rows)
    print(json.dumps(summarise(rows), indent=1))


def explain_differences(options, target, rows):
    """Say of every text whether it is the plain one, and where not, what both tokens' logits were."""
    prompts = {p.id: p for p in read_prompts(HERE / "prompts", list(PROMPTS), None)}
    for row in rows:
        ids = encode_prompts(target, prompts[row["prompt"]].messages)[0]
        plain = row["runs"]["plain"]["ids"]
        for figures in row["runs"].values():
            at = first_difference(plain, figures["ids"])
            figures["identical"] = at is None
            if at is not None:
                difference = explain(target, ids, plain, figures["ids"], at)
                figures["difference"] = {
                    "position": at,
                    "near_tie": difference.near_tie,
                    "one_row": difference.one_row,
                    "many_rows": difference.many_rows,
                }
        save(options, target, rows)


def save(options, target, rows):
    if options.output is None:
        return
    record = {
        "bench": "transformers_generate",
        "environment": environment(target),
        "draft_model": options.draft_model,
        "tokens": options.tokens,
        "ours_over": summarise(rows),
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
