"""Measure methods side by side: every prompt through every method in turn, plain decoding always among them."""

from __future__ import annotations

import datetime as dt
import gc
import json
import platform
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs import _core
from specrs.compare import explain, first_difference
from specrs.errors import InvalidInputError
from specrs.generation import stream
from specrs.policies.cost import target_cost
from specrs.prompts import encode_prompts
from specrs.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.models.hf import TransformersTarget

#: Methods of this library, and those of transformers measured beside them.
OURS = ("none", "cache", "cache-tree", "model", "hybrid")
PEERS = ("transformers", "transformers-lookup", "transformers-assisted")
#: Name of the rows of a summary that are over all sets.
ALL_SETS = "all sets"


@dataclass(frozen=True)
class Prompt:
    """One prompt of a set."""

    id: str
    set: str
    messages: list[dict[str, str]]
    max_new_tokens: int


@dataclass
class Run:
    """One prompt through one method."""

    prompt: str
    set: str
    method: str
    new_tokens: int
    seconds: float
    first_tokens: int
    first_seconds: float
    tokens_per_pass: float | None = None
    acceptance_rate: float | None = None
    identical: bool | None = None
    near_tie: bool | None = None
    round_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def decode_speed(self) -> float:
        """Tokens per second after the first step, which also reads the prompt and emits ``first_tokens``."""
        later = self.new_tokens - self.first_tokens
        return later / (self.seconds - self.first_seconds) if later else self.whole_speed

    @property
    def whole_speed(self) -> float:
        """New tokens over the whole wall time, prompt reading included."""
        return self.new_tokens / self.seconds


def read_prompts(folder: Path, sets: Sequence[str], limit: int | None, *, shortest: bool = False) -> list[Prompt]:
    """Read prompt sets, JSON lines, from ``folder``: at most ``limit`` prompts of each, or the shortest so many."""
    prompts = []
    for name in sets:
        file = folder / f"{name}.jsonl"
        if not file.is_file():
            known = ", ".join(sorted(path.stem for path in folder.glob("*.jsonl")))
            raise InvalidInputError(f"no prompt set {name!r} in {folder}; there are: {known}")
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if shortest:
            rows.sort(key=lambda row: sum(len(message["content"]) for message in row["messages"]))
        prompts += [Prompt(row["id"], row["set"], row["messages"], row["max_new_tokens"]) for row in rows[:limit]]
    return prompts


def bench(
    target: TransformersTarget,
    prompts: Sequence[Prompt],
    methods: Sequence[str],
    *,
    draft_model: TransformersTarget | None = None,
    max_new_tokens: int | None = None,
    draft_tokens: int | None = None,
    repeats: int = 1,
    peer_model: Any = None,
    peer_limit: int | None = None,
    share_prompt: bool = False,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    keep: Callable[[list[Run]], None] = lambda runs: None,
) -> list[Run]:
    """Run every prompt through every method, in turn, in this process.

    Parameters
    ----------
    target : TransformersTarget
    prompts : sequence of Prompt
    methods : sequence of str
        Of ``OURS`` and ``PEERS``; ``none`` is added if missing. ``cache:svip`` is ``cache`` with policy ``svip``.
    draft_model : TransformersTarget, optional
        For ``model``, ``hybrid`` and ``transformers-assisted``.
    max_new_tokens : int, optional
        Default: each prompt's own.
    draft_tokens : int, optional
        Default: as many as pay.
    repeats : int
        Turns through all methods per prompt.
    peer_model : PreTrainedModel, optional
        The model that peers run on; by default the target's own, without our kernels.
    peer_limit : int, optional
        Run the peers on the first so many prompts of each set only; the table says on how many.
    share_prompt : bool
        Read each prompt once for all of our methods: each keeps the reading's seconds in its wall time. For long
        prompts on slow machines.
    progress : callable
        Called with (done, total, what).
    keep : callable
        Called with all runs so far whenever a prompt is through, so that an interrupted bench loses little.

    Returns
    -------
    list of Run
        ``identical`` compares each text with plain decoding of the same library's loop.
    """
    methods = list(dict.fromkeys(["none", *methods]))
    unknown = [m for m in methods if m not in PEERS and m.partition(":")[0] not in OURS]
    if unknown:
        raise InvalidInputError(f"unknown methods {unknown}; known: {', '.join(OURS + PEERS)}")
    backend = getattr(target, "backend", "transformers")
    foreign = [m for m in methods if m in PEERS and backend != "transformers"]
    if foreign:
        raise InvalidInputError(
            f"{', '.join(foreign)} run on a transformers model, and {target.name} runs in {backend}; "
            "benches/llama_cpp.py measures llama.cpp's own methods"
        )
    needing = [m for m in methods if m.partition(":")[0] in ("model", "hybrid", "transformers-assisted")]
    if needing and draft_model is None:
        raise InvalidInputError(f"{', '.join(needing)} needs a draft model")
    drafts_in = getattr(draft_model, "backend", "transformers")
    if "transformers-assisted" in methods and drafts_in != "transformers":
        raise InvalidInputError(
            f"transformers-assisted drafts with a transformers model, and the draft model runs in {drafts_in}"
        )
    for model in (target, draft_model):
        if model is not None:
            target_cost(model)  # measured before the clock starts
    runs: list[Run] = []
    plan = _plan(prompts, methods, peer_limit)
    total = sum(len(turns) for turns in plan) * repeats
    for prompt, methods in zip(prompts, plan, strict=True):
        ids = encode_prompts(target, prompt.messages)[0]
        limit = max_new_tokens or prompt.max_new_tokens
        reading = _Reading(target) if share_prompt else None
        for turn in range(repeats):
            plain: list[int] | None = None
            order = methods if turn % 2 == 0 else ["none", *reversed(methods[1:])]
            for method in order:
                progress(len(runs), total, f"{prompt.id} {method}")
                gc.collect()
                if method in PEERS:
                    run, out = _peer_run(target, prompt, ids, method, limit, draft_model, peer_model)
                else:
                    run, out = _our_run(target, prompt, ids, method, limit, draft_model, draft_tokens, reading)
                if method == "none":
                    plain = out
                assert plain is not None
                at = first_difference(plain, out)
                run.identical = at is None
                if at is not None:
                    run.near_tie = explain(target, ids, plain, out, at).near_tie
                runs.append(run)
        keep(runs)
    progress(total, total, "done")
    return runs


def _plan(prompts: Sequence[Prompt], methods: Sequence[str], peer_limit: int | None) -> list[list[str]]:
    """Return the methods of every prompt: peers only on the first ``peer_limit`` of each set."""
    seen: Counter[str] = Counter()
    plan = []
    for prompt in prompts:
        with_peers = peer_limit is None or seen[prompt.set] < peer_limit
        plan.append([m for m in methods if with_peers or m not in PEERS])
        seen[prompt.set] += 1
    return plan


class _Reading:
    """One reading of a prompt, shared by several runs."""

    def __init__(self, target: Any) -> None:
        self.session = Session(target)
        self._seconds: float | None = None

    def charge(self, run: Run) -> None:
        """Add to a run the seconds of the reading that it did not do itself."""
        if self._seconds is None:
            self._seconds = run.first_seconds
        else:
            run.seconds += self._seconds
            run.first_seconds += self._seconds


def _our_run(
    target: Any,
    prompt: Prompt,
    ids: Any,
    method: str,
    limit: int,
    draft_model: Any,
    draft_tokens: int | None,
    reading: _Reading | None,
) -> tuple[Run, list[int]]:
    base, _, policy = method.partition(":")
    options: dict[str, Any] = {"drafter": base.removesuffix("-tree")}
    if policy:
        options["policy"] = policy
    if base in ("model", "hybrid"):
        options["draft_model"] = draft_model
    if base.endswith("-tree"):
        options["draft_shape"] = "tree"
    if reading is not None:
        reading.session.forget_drafters()  # every method that drafts with a model reads the prompt with it
        options["session"] = reading.session
    clock = _Clock()
    for chunk in (running := stream(target, ids, max_new_tokens=limit, draft_tokens=draft_tokens, **options)):
        clock.tick(len(chunk.ids))
    made = running.generations[0]
    report = made.report
    run = clock.run(prompt, method, len(made.ids))
    if reading is not None:
        reading.charge(run)
    run.tokens_per_pass, run.acceptance_rate = report.tokens_per_pass, report.acceptance_rate
    run.round_seconds = {k: v / max(report.target_passes, 1) for k, v in report.time_split.items() if k != "prefill"}
    return run, made.ids


class _Clock:
    """Times a run: when the first tokens came, how many they were, and when it ended. A streamer for transformers."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first: float | None = None
        self._first_tokens = 0
        self._prompt_seen = False

    def tick(self, tokens: int) -> None:
        """Note that ``tokens`` tokens came."""
        if self._first is None:
            self._first, self._first_tokens = time.perf_counter() - self._start, tokens

    def put(self, value: Any) -> None:
        """Take tokens from transformers: the prompt first, then what each step brings."""
        if self._prompt_seen:
            self.tick(value.numel())
        self._prompt_seen = True

    def end(self) -> None:
        """Take the end of a transformers stream."""

    def run(self, prompt: Prompt, method: str, tokens: int) -> Run:
        """Return the run that ends now."""
        seconds = time.perf_counter() - self._start
        return Run(prompt.id, prompt.set, method, tokens, seconds, self._first_tokens, self._first or seconds)


def _peer_run(
    target: Any, prompt: Prompt, ids: Any, method: str, limit: int, draft_model: Any, peer_model: Any
) -> tuple[Run, list[int]]:
    import torch

    model = peer_model or target.model
    options: dict[str, Any] = {}
    if method == "transformers-lookup":
        options["prompt_lookup_num_tokens"] = 10
    if method == "transformers-assisted":
        options["assistant_model"] = draft_model.model
    inputs = torch.from_numpy(ids.astype("int64"))[None]
    eos = list(target.eos_token_ids) or None
    with torch.inference_mode():
        clock = _Clock()
        out = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=limit,
            eos_token_id=eos,
            pad_token_id=eos[0] if eos else 0,
            streamer=clock,
            **options,
        )
        new = out[0, len(ids) :].tolist()
        return clock.run(prompt, method, len(new)), new


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row per set and method: medians, and geometric means of paired ratios to plain decoding.

    Several sets have rows of ``ALL_SETS`` besides, in which every prompt counts alike. ``over_plain`` compares decoding
    speeds after the first step, ``whole_over_plain`` whole wall times.
    """
    plain: dict[str, list[Run]] = {}
    for run in runs:
        if run.method == "none":
            plain.setdefault(run.prompt, []).append(run)
    rows = []
    sets = list(dict.fromkeys(run.set for run in runs))
    pairs = list(dict.fromkeys((run.set, run.method) for run in runs))
    if len(sets) > 1:
        pairs += [(ALL_SETS, method) for method in dict.fromkeys(run.method for run in runs)]
    for set_, method in pairs:
        mine = [run for run in runs if run.method == method and set_ in (run.set, ALL_SETS)]
        ratios = [r.decode_speed / statistics.median(p.decode_speed for p in plain[r.prompt]) for r in mine]
        whole = [r.whole_speed / statistics.median(p.whole_speed for p in plain[r.prompt]) for r in mine]
        passes = [run.tokens_per_pass for run in mine if run.tokens_per_pass]
        rows.append(
            {
                "set": set_,
                "method": method,
                "prompts": len({run.prompt for run in mine}),
                "decode_tokens_per_second": statistics.median(run.decode_speed for run in mine),
                "over_plain": statistics.geometric_mean(ratios),
                "least_over_plain": min(ratios),
                "whole_over_plain": statistics.geometric_mean(whole),
                "tokens_per_pass": statistics.fmean(passes) if passes else None,
                "identical": sum(bool(run.identical) for run in mine),
                "near_ties": sum(run.identical is False and bool(run.near_tie) for run in mine),
                "runs": len(mine),
            }
        )
    return rows


def against_peers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row per set, method of ours and peer: geometric means of ratios on the prompts that both ran."""
    by: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        by.setdefault((run.set, run.method), {}).setdefault(run.prompt, []).append(run)
    rows = []
    for (set_, ours), mine in by.items():
        for peer in PEERS if ours in OURS else ():
            theirs = by.get((set_, peer), {})
            shared = [name for name in mine if name in theirs]
            if not shared:
                continue
            rows.append(
                {
                    "set": set_,
                    "method": ours,
                    "peer": peer,
                    "prompts": len(shared),
                    "decode": statistics.geometric_mean(
                        _median(mine[name], "decode_speed") / _median(theirs[name], "decode_speed") for name in shared
                    ),
                    "whole": statistics.geometric_mean(
                        _median(mine[name], "whole_speed") / _median(theirs[name], "whole_speed") for name in shared
                    ),
                }
            )
    return rows


def _median(runs: Sequence[Run], what: str) -> float:
    middle: float = statistics.median(getattr(run, what) for run in runs)
    return middle


def environment(target: Any, draft_model: Any = None) -> dict[str, Any]:
    """Return what a result depends on: versions, processor, threads, dtype, costs, the draft model."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    return {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "specrs": _core.__version__,
        "build": _core.BUILD_PROFILE,
        "python": platform.python_version(),
        "processor": cpu,
        "cpu_features": [name for name, there in _core.cpu_features() if there],
        "model": target.name,
        **(target.environment() if hasattr(target, "environment") else _torch_environment(target)),
        "cost_table": target_cost(target).to_dict(),
        "draft_model": None
        if draft_model is None
        else {"name": draft_model.name, "backend": getattr(draft_model, "backend", "transformers")},
    }


def _torch_environment(target: Any) -> dict[str, Any]:
    import torch
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(target.dtype),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
