"""Greedy float32 on a real model: every drafter, draft length and batch size against plain decoding and transformers.

python benches/identity.py --model smollm2-135m --new-tokens 32 --json benches/record/identity.json

The draft model is the target's own first layers (``--draft-layers``): often wrong, so that rejections are many.
Prints one line per cell of the grid, with the number of texts that differ and of texts compared. The whole grid takes
an hour on two cores; ``--resume`` goes on with the cells that the JSON file lacks, and with its texts of transformers.
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


def earlier(path: Path | None, settings: dict[str, object]) -> tuple[list[list[int]] | None, list[dict[str, object]]]:
    """Return the texts of transformers and the cells of a run that was broken off; None and no cells without a file.

    Cells are of the code that ran them: resume a run of the same commit. A run with other settings is refused.
    """
    if path is None or not path.exists():
        return None, []
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.get("settings") != settings:
        sys.exit(f"{path} is of {record.get('settings')}, asked for {settings}")
    return record["expected"], record["grid"]


def main() -> None:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft-layers", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--limit", type=int, help="at most so many prompts of each set")
    parser.add_argument("--drafters", default="none,cache,cache-tree,model", help="of these, separated by commas")
    parser.add_argument("--lengths", default="1,4,8,16", help="of drafts, separated by commas")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep the cells that --json FILE has already")
    arguments = parser.parse_args()
    target = specrs.load(arguments.model, dtype="float32", threads=arguments.threads)
    draft = first_layers(target.model, arguments.draft_layers)
    sets = sorted(path.stem for path in (HERE / "prompts").glob("*.jsonl"))
    prompts = read_prompts(HERE / "prompts", sets, arguments.limit)
    ids = [encode_prompts(target, prompt.messages)[0].tolist() for prompt in prompts]
    eos = list(target.eos_token_ids)
    settings = {key: getattr(arguments, key) for key in ("model", "draft_layers", "new_tokens", "limit")}
    expected, rows = earlier(arguments.json, settings) if arguments.resume else (None, [])
    if expected is None:
        started = time.perf_counter()
        expected = [reference(target.model, one, arguments.new_tokens, eos) for one in ids]
        print(f"transformers: {len(ids)} texts, {time.perf_counter() - started:.0f} s", flush=True)

    # Every text keeps its memory from cell to cell, so that its prompt is read once.
    sessions = [specrs.Session(target) for _ in ids]
    drafters = arguments.drafters.split(",")
    cells = [("none", None, batch) for batch in (1, 4) if "none" in drafters]
    lengths = [int(length) for length in arguments.lengths.split(",")]
    cells += list(itertools.product([name for name in drafters if name != "none"], lengths, (1, 4)))
    done = {(row["drafter"], row["draft_tokens"], row["batch"]) for row in rows}
    for drafter, k, batch in (cell for cell in cells if cell not in done):
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
            record |= {"environment": environment(target), "settings": settings, "grid": rows, "expected": expected}
            arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(len(row['different']) for row in rows)} differences in {sum(row['texts'] for row in rows)} texts")


if __name__ == "__main__":
    main()
