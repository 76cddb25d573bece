"""Greedy float32 on a real model: every drafter, draft length and batch size against plain decoding and transformers.

python benches/identity.py --model smollm2-135m --new-tokens 32 --json benches/record/identity.json

The draft model is the target's own first layers (``--draft-layers``): often wrong, so that rejections are many.
Prints one line per cell of the grid, with the number of texts that differ and of texts compared.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import time
from pathlib import Path

import torch

import specrs
from specrs.bench import environment, read_prompts
from specrs.compare import first_difference
from specrs.models.hf import TransformersTarget
from specrs.prompts import encode_prompts

HERE = Path(__file__).parent


def first_layers(model: torch.nn.Module, layers: int) -> TransformersTarget:
    """Return a target made of the first ``layers`` layers of a model, weights shared."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    cut = type(model)._from_config(config, dtype=model.dtype)
    cut.load_state_dict(model.state_dict(), strict=False, assign=True)
    cut.tie_weights()
    return TransformersTarget(cut.eval(), name=f"first-{layers}-layers")


def reference(model: torch.nn.Module, ids: list[int], new_tokens: int, eos: list[int]) -> list[int]:
    """Return the greedy continuation that transformers writes."""
    inputs = torch.tensor(ids)[None]
    with torch.inference_mode():
        out = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=new_tokens,
            eos_token_id=eos or None,
            pad_token_id=eos[0] if eos else 0,
        )
    return out[0, len(ids) :].tolist()


def main() -> None:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft-layers", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--limit", type=int, help="at most so many prompts of each set")
    parser.add_argument("--drafters", default="none,cache,cache-tree,model", help="of these, separated by commas")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    target = specrs.load(arguments.model, dtype="float32", threads=arguments.threads)
    draft = first_layers(target.model, arguments.draft_layers)
    sets = sorted(path.stem for path in (HERE / "prompts").glob("*.jsonl"))
    prompts = read_prompts(HERE / "prompts", sets, arguments.limit)
    ids = [encode_prompts(target, prompt.messages)[0].tolist() for prompt in prompts]
    eos = list(target.eos_token_ids)
    started = time.perf_counter()
    expected = [reference(target.model, one, arguments.new_tokens, eos) for one in ids]
    print(f"transformers: {len(ids)} texts, {time.perf_counter() - started:.0f} s", flush=True)

    # Every text keeps its memory from cell to cell, so that its prompt is read once.
    sessions = [specrs.Session(target) for _ in ids]
    drafters = arguments.drafters.split(",")
    cells = [("none", None, batch) for batch in (1, 4) if "none" in drafters]
    cells += list(itertools.product([name for name in drafters if name != "none"], (1, 4, 8, 16), (1, 4)))
    rows = []
    for drafter, k, batch in cells:
        options = {"drafter": drafter.removesuffix("-tree"), "draft_tokens": k}
        if drafter == "model":
            options["draft_model"] = draft
        if drafter == "cache-tree":
            options["draft_shape"] = "tree"
        started, differ, passes, tokens = time.perf_counter(), [], 0, 0
        for first in range(0, len(ids), batch):
            some = slice(first, first + batch)
            made = specrs.generate(
                target, ids[some], max_new_tokens=arguments.new_tokens, session=sessions[some], **options
            )
            for offset, one in enumerate(made):
                at = first_difference(expected[first + offset], one.ids)
                if at is not None:
                    differ.append({"prompt": prompts[first + offset].id, "at": at})
                passes += one.report.target_passes
                tokens += len(one.ids)
        row = {
            "drafter": drafter,
            "draft_tokens": k,
            "batch": batch,
            "texts": len(ids),
            "different": differ,
            "tokens_per_pass": tokens / passes,
        }
        rows.append(row)
        print(
            f"{drafter:10} k={k} batch={batch}: {len(differ)} of {len(ids)} texts differ, "
            f"{row['tokens_per_pass']:.2f} tokens a pass, {time.perf_counter() - started:.0f} s",
            flush=True,
        )
        if arguments.json:
            record = {"command": "python benches/identity.py " + " ".join(sys.argv[1:])}
            record |= {"environment": environment(target), "grid": rows}
            arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(len(row['different']) for row in rows)} differences in {sum(row['texts'] for row in rows)} texts")


if __name__ == "__main__":
    main()
