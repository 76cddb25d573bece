"""How much noise in step times misleads the gate: recorded texts replayed against an engine with a known clock.

    python benches/vllm/gate.py --model FOLDER [--runs 300]

Texts are the undrafted ones of the records below, one request after the other through one proposer, drafts of at most
32. A step over n rows costs what vLLM took here (``measured``), or 0.15, 0.4, 1 of a plain step more with each row.
What the proposer is told of it is noisy: log-normal, and every twentieth step half as long again. Printed: the speed by
the true costs over plain decoding, geometric mean over sets, as the mean over runs, the least, and how many runs are a
tenth or more below the median. FOLDER holds the tokenizer of Qwen2.5-Coder; no model runs.
"""

import argparse
import json
import statistics

import numpy as np
from bench import PROMPTS, read_prompts
from transformers import AutoTokenizer

from specrs import SuffixCache
from specrs._core import BatchProposer

RECORDS = ("2026-11-30-vllm-five-sets.json", "2026-12-01-vllm.json")
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
MEASURED = (0.55, 0.58, 0.62, 0.66, 0.73, 0.78, 0.86, 0.99, 1.35, 1.83, 2.1)
DRAFT_TOKENS, LENGTH = 32, 4096


def texts(model):
    """Return (set, ids of the prompt, ids of the answer) of the records."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    runs = [
        run for name in RECORDS for run in json.loads((PROMPTS.parent / "record" / name).read_text("utf-8"))["runs"]
    ]
    plain = [run for run in runs if run["drafter"] == "plain" and run["concurrency"] == 1]
    messages = {id_: m for _, id_, m in read_prompts({run["set"] for run in plain}, 1000)}
    return [
        (
            run["set"],
            tokenizer.apply_chat_template(messages[prompt], add_generation_prompt=True, return_dict=False),
            ids,
        )
        for run in plain
        for prompt, ids in zip(run["prompts"], run["ids"], strict=True)
    ]


def replay(texts, seconds, noise, seed):
    """Return the geometric mean over sets of the speed over plain decoding."""
    rng = np.random.default_rng(seed)
    proposer = BatchProposer(SuffixCache(), DRAFT_TOKENS, LENGTH)
    speeds = {}
    for name, prompt, answer in texts:
        row = np.zeros((1, LENGTH), np.int32)
        row[0, : len(prompt)] = prompt
        length, done, draft, total, told = len(prompt), 0, [], 0.0, None
        while done < len(answer):
            took = seconds(1 + len(draft))
            total += took
            right = 0
            while right < min(len(draft), len(answer) - done - 1) and draft[right] == answer[done + right]:
                right += 1
            new = answer[done : done + right + 1]
            row[0, length : length + len(new)] = new
            length, done = length + len(new), done + len(new)
            (draft,), _, _ = proposer.step(row, [length], [len(new)], told)
            stalled = 1.5 if noise and rng.random() < 0.05 else 1.0
            told = seconds(1 + len(draft)) * np.exp(noise * rng.standard_normal()) * stalled
        speeds.setdefault(name, []).append(len(answer) * seconds(1) / total)
    return statistics.geometric_mean(map(statistics.geometric_mean, speeds.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the tokenizer")
    parser.add_argument("--runs", type=int, default=300)
    arguments = parser.parse_args()
    replayed = texts(arguments.model)
    clocks = {"measured": lambda rows: float(np.interp(rows, ROWS, MEASURED))}
    clocks |= {str(slope): lambda rows, slope=slope: 1 + slope * (rows - 1) for slope in (0.15, 0.4, 1)}
    print("cost of rows  noise  over plain  least  far below")
    for clock, seconds in clocks.items():
        for noise in (0.0, 0.08, 0.2):
            found = [replay(replayed, seconds, noise, seed) for seed in range(arguments.runs if noise else 1)]
            low = sum(speed < 0.9 * np.median(found) for speed in found)
            print(f"{clock:12} {noise:6.2f} {np.mean(found):11.3f} {min(found):6.2f} {low:6}/{len(found)}")


if __name__ == "__main__":
    main()
