"""specrs on llama.cpp against llama.cpp's own decoding, in one process, on the prompt sets.

Protocol. One GGUF file, one number of threads, greedy. Every prompt goes through every method in turn; the order is
turned around from prompt to prompt. A method's speed is its tokens after the first step over the time after the first
step, so reading the prompt counts for nobody; each of the two loops reads it once and keeps its cells. ``over_plain``
is the ratio to llama-cpp-python's own plain decoding on the same prompt, ``over_loop`` to plain decoding in our loop;
per set the geometric mean over prompts.

The methods are

    llama.cpp           llama-cpp-python's ``Llama.generate``
    llama.cpp-lookup    the same with its ``LlamaPromptLookupDecoding`` (10 tokens)
    llama.cpp-hook      the same with ``specrs.integrations.llama_cpp.DraftModel``
    none                our loop without drafts
    cache, cache-tree   our loop, cache drafting, length by measured cost
    model               our loop, a draft model (``--draft-model``)

``--busy`` is for machines with other work: one thread, and every clock (the library's too) is the process's own
processor clock, which stands still while others run; caches and memory stay shared.

A text that differs from our plain one is explained (near-tie or fault) as ``specrs compare`` does.

    python benches/llama_cpp.py --limit 2 --max-new-tokens 128 --json benches/record/llama_cpp.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import specrs
from specrs import _core
from specrs.bench import Prompt, environment, read_prompts
from specrs.compare import explain, first_difference
from specrs.generation import stream
from specrs.integrations.llama_cpp import DraftModel
from specrs.models.llama_cpp import COST_ROWS
from specrs.prompts import encode_prompts
from specrs.session import Session

OWN = ("llama.cpp", "llama.cpp-lookup", "llama.cpp-hook")
OURS = ("none", "cache", "cache-tree", "model")
SETS = ("code_edit", "agent", "chat", "docstring_code")


@dataclass
class Run:
    """One prompt through one method."""

    prompt: str
    set: str
    method: str
    tokens: int
    first_tokens: int
    first_seconds: float
    seconds: float
    passes: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    differs_at: int | None = None
    near_tie: bool | None = None

    @property
    def speed(self) -> float:
        """Tokens per second after the first step."""
        later = self.tokens - self.first_tokens
        return later / (self.seconds - self.first_seconds) if later else self.tokens / self.seconds


class Own:
    """llama-cpp-python's own loop; one ``Llama`` for all, its draft model exchanged."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        # With a draft model it needs every row's logits, and then its table has to hold the whole context.
        self._llama = Llama(
            str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False
        )
        self.hook = DraftModel()
        self._drafters = {
            "llama.cpp": None,
            "llama.cpp-lookup": LlamaPromptLookupDecoding(num_pred_tokens=10),
            "llama.cpp-hook": self.hook,
        }

    def read(self, ids: list[int]) -> None:
        """Read a prompt; every method goes on from its cells."""
        self._llama._logits_all = False
        self._llama.reset()
        self._llama.eval(ids)

    def run(self, prompt: Prompt, method: str, ids: list[int], limit: int, ends: tuple[int, ...]) -> tuple[Run, list]:
        llama = self._llama
        llama.draft_model = self._drafters[method]
        llama._logits_all = llama.draft_model is not None
        drafted, accepted = self.hook.drafted, self.hook.accepted
        out: list[int] = []
        start = time.perf_counter()
        first = None
        for token in llama.generate(ids, temp=0.0):
            out.append(token)
            first = first or time.perf_counter() - start
            if len(out) == limit or token in ends:
                break
        seconds = time.perf_counter() - start
        run = Run(prompt.id, prompt.set, method, len(out), 1, first or seconds, seconds)
        if method == "llama.cpp-hook":
            run.drafted, run.accepted = self.hook.drafted - drafted, self.hook.accepted - accepted
        return run, out


def ours(
    target: Any, session: Session, prompt: Prompt, method: str, ids: Any, limit: int, draft_model: Any
) -> tuple[Run, list[int]]:
    options: dict[str, Any] = {"drafter": method.removesuffix("-tree")}
    if method == "model":
        options["draft_model"] = draft_model
    if method.endswith("-tree"):
        options["draft_shape"] = "tree"
    start = time.perf_counter()
    first, first_tokens = None, 0
    for chunk in (running := stream(target, ids, max_new_tokens=limit, session=session, **options)):
        if first is None:
            first, first_tokens = time.perf_counter() - start, len(chunk.ids)
    seconds = time.perf_counter() - start
    made = running.generations[0]
    report = made.report
    run = Run(prompt.id, prompt.set, method, len(made.ids), first_tokens, first or seconds, seconds)
    run.passes, run.drafted, run.accepted = report.target_passes, report.drafted, report.accepted
    return run, made.ids


def summarise(runs: list[Run]) -> list[dict[str, Any]]:
    """One row per set and method."""
    speeds = {(r.prompt, r.method): r.speed for r in runs}
    rows = []
    for name, method in dict.fromkeys((r.set, r.method) for r in runs):
        mine = [r for r in runs if (r.set, r.method) == (name, method)]
        row = {"set": name, "method": method, "prompts": len(mine)}
        row["tokens_per_second"] = statistics.median(r.speed for r in mine)
        for label, base in (("over_plain", "llama.cpp"), ("over_loop", "none"), ("over_lookup", "llama.cpp-lookup")):
            ratios = [r.speed / speeds[r.prompt, base] for r in mine if (r.prompt, base) in speeds]
            row[label] = statistics.geometric_mean(ratios) if ratios else None
            if label == "over_plain":
                row["least"] = min(ratios, default=None)
        row["identical"] = sum(r.differs_at is None for r in mine)
        row["near_ties"] = sum(bool(r.near_tie) for r in mine)
        drafted = sum(r.drafted or 0 for r in mine)
        row["acceptance"] = sum(r.accepted or 0 for r in mine) / drafted if drafted else None
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    def form(value: float | None) -> str:
        return "    -" if value is None else f"{value:5.2f}"

    head = ("set", "method", "n", "tok/s", "plain", "least", "loop", "lookup", "same", "ties", "accept")
    print("{:<15} {:<17} {:>2} {:>6} {:>5} {:>5} {:>5} {:>6} {:>4} {:>4} {:>6}".format(*head))
    for row in rows:
        print(
            f"{row['set']:<15} {row['method']:<17} {row['prompts']:>2} {row['tokens_per_second']:>6.1f} "
            f"{form(row['over_plain'])} {form(row['least'])} {form(row['over_loop'])} {form(row['over_lookup']):>6} "
            f"{row['identical']:>4} {row['near_ties']:>4} {form(row['acceptance']):>6}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="embedded name or .gguf file")
    parser.add_argument("--draft-model", help="for the method 'model'")
    parser.add_argument("--methods", default="llama.cpp,llama.cpp-lookup,llama.cpp-hook,none,cache")
    parser.add_argument("--prompts", default=str(Path(__file__).parent / "prompts"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--limit", type=int, default=2, help="prompts of each set")
    parser.add_argument("--skip", type=int, default=0, help="leave out this many first prompts of each set")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-repack", action="store_true", help="our target only: weights as the file has them")
    parser.add_argument("--flash-attention", action="store_true", help="our target only")
    parser.add_argument("--context", type=int, default=3072, help="of llama-cpp-python's own loop")
    parser.add_argument("--busy", action="store_true", help="one thread, timed by its own processor clock")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no prompt after so long")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    if _core.BUILD_PROFILE != "release":
        sys.exit(f"a bench needs a release build of the extension, this one is {_core.BUILD_PROFILE}")
    methods = list(dict.fromkeys(["none", *arguments.methods.split(",")]))
    if unknown := [m for m in methods if m not in OWN + OURS]:
        parser.error(f"unknown methods {unknown}; known: {', '.join(OWN + OURS)}")
    # This file has the name of the library that it measures, and a script's own folder comes first on the path.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    began, wall = time.perf_counter(), time.perf_counter
    if arguments.busy:
        arguments.threads, time.perf_counter = 1, time.process_time
    target = specrs.load(
        arguments.model,
        backend="llama.cpp",
        threads=arguments.threads,
        repack=not arguments.no_repack,
        flash_attention=arguments.flash_attention,
    )
    drafting = None
    if arguments.draft_model:
        drafting = specrs.load(arguments.draft_model, backend="llama.cpp", threads=arguments.threads)
    own = None
    if any(m in OWN for m in methods):
        own = Own(target.path, arguments.threads, arguments.context)
    print("rows ms ", *(f"{rows}:{1e3 * target.cost_table.seconds(rows):.0f}" for rows in COST_ROWS))
    sets = [read_prompts(Path(arguments.prompts), [name], None) for name in arguments.sets.split(",")]
    wanted = [p[arguments.skip : arguments.skip + arguments.limit] for p in sets]
    runs: list[Run] = []
    # Set by set in turn, so that a run that is cut short has something of each.
    for turn, prompt in enumerate(p for row in zip(*wanted, strict=False) for p in row):
        if wall() - began > arguments.seconds:
            break
        ids = encode_prompts(target, prompt.messages)[0]
        limit = min(arguments.max_new_tokens, prompt.max_new_tokens)
        session = Session(target)  # the prompt is read once; every method goes on from its cells
        texts: dict[str, list[int]] = {}
        found: list[Run] = []
        if own is not None:
            own.read(ids.tolist())
        order = methods if turn % 2 == 0 else [methods[0], *reversed(methods[1:])]
        for method in order:
            if method in OWN:
                assert own is not None
                run, texts[method] = own.run(prompt, method, ids.tolist(), limit, target.eos_token_ids)
            else:
                run, texts[method] = ours(target, session, prompt, method, ids, limit, drafting)
            found.append(run)
        for run in found:
            run.differs_at = first_difference(texts["none"], texts[run.method])
            if run.differs_at is not None:
                run.near_tie = explain(target, ids, texts["none"], texts[run.method], run.differs_at).near_tie
        runs += found
        print(prompt.id, len(ids), *(f"{r.method} {r.speed:.1f}{'' if r.differs_at is None else '*'}" for r in found))
        if arguments.json:
            record = {
                "command": "python benches/llama_cpp.py " + " ".join(sys.argv[1:]),
                "environment": environment(target),
                "summary": summarise(runs),
                "runs": [{**asdict(run), "tokens_per_second": run.speed} for run in runs],
            }
            Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(summarise(runs))


if __name__ == "__main__":
    main()
