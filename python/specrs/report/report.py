"""What a generation cost and what speculation brought: the figures, their definitions, and one warning when slower."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.report.recorder import Recorder

#: Definitions shown next to the numbers.
DEFINITIONS = {
    "tokens_per_pass": "emitted tokens / target passes, the bonus token of each pass included; plain decoding is 1",
    "acceptance_rate": "accepted / drafted tokens (scored by the target), at most 1",
    "acceptance_by_position": "share of the rounds that reached a position of the draft in which it was accepted",
    "speedup": "tokens per second / tokens per second of plain steps measured in this process",
}


@dataclass(frozen=True)
class Report:
    """Figures of one request. Times are those of the run; requests that run together share them.

    Attributes
    ----------
    method : str
        Drafter and length policy.
    lossless : bool
        Whether the output's law is the target's.
    prompt_tokens, reused_tokens, new_tokens : int
        Reused tokens are prompt tokens that an earlier turn had read.
    seconds, first_token_seconds, tokens_per_second : float or None
        Wall time of the run; until the first round was over; new tokens of the run after its first round over the time
        after its first round.
    target_passes, drafted, accepted : int
    tokens_per_pass, acceptance_rate : float or None
        See ``DEFINITIONS``; None where nothing was drafted or emitted.
    acceptance_by_position : list of float
    accepted_lengths : dict of int to int
        How many passes accepted n tokens.
    accepted_by_source : dict of str to int
    time_split : dict of str to float
        Seconds of the run by stage; ``other`` is what no stage took.
    plain_step_seconds, speedup : float or None
        Of plain steps measured in this process; None when none was measured.
    parameters : dict
        Effective sampling and stop parameters.
    warnings : list of str
    memory : dict of str to int
        Bytes at the end: keys and values of the text in the ``target``; what the ``drafter`` holds for all texts, model
        weights apart.
    bias : float or None
        Under a relaxed verification, a bound on the total-variation distance of the text's law from the target's; above
        1 it says nothing.
    ahead : dict or None
        Of drafting while the target verifies, all requests of the run: hit rate, stale rate, seconds by kind; see
        ``specrs.ssd.SsdStatistics``.
    """

    method: str
    lossless: bool
    prompt_tokens: int
    reused_tokens: int
    new_tokens: int
    seconds: float
    first_token_seconds: float | None
    tokens_per_second: float | None
    target_passes: int
    drafted: int
    accepted: int
    tokens_per_pass: float | None
    acceptance_rate: float | None
    acceptance_by_position: list[float]
    accepted_lengths: dict[int, int]
    accepted_by_source: dict[str, int]
    time_split: dict[str, float]
    plain_step_seconds: float | None
    speedup: float | None
    parameters: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    bias: float | None = None
    ahead: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return render(self)


def make_report(
    requests: Sequence[Request],
    recorder: Recorder,
    *,
    method: str,
    plain_step_seconds: float | None,
    policy_message: str | None = None,
    bias: float | None = None,
    ahead: dict[str, Any] | None = None,
) -> Report:
    """Return the report over ``requests``: one of them, or all of a run pooled.

    Ratios are of pooled totals, never means of ratios.
    """
    counts = [request.statistics for request in requests]
    passes = sum(c.rounds for c in counts)
    drafted, accepted = sum(c.drafted for c in counts), sum(c.accepted for c in counts)
    emitted = sum(request.generated for request in requests)
    lengths = sum((c.accepted_lengths for c in counts), Counter[int]())
    reached = sum((c.reached for c in counts), Counter[int]())
    accepted_at = sum((c.accepted_at for c in counts), Counter[int]())
    sources = sum((c.by_source for c in counts), Counter[str]())
    split = dict(recorder.seconds)
    split["other"] = max(0.0, recorder.total_seconds - sum(split.values()))
    speed = recorder.decode_emitted / recorder.decode_seconds if recorder.decode_emitted else None
    if plain_step_seconds is None and recorder.plain_seconds:
        plain_step_seconds = statistics.median(recorder.plain_seconds)
    speedup = None
    if speed is not None and plain_step_seconds and len(requests) == 1 and recorder.emitted == emitted:
        speedup = speed * plain_step_seconds
    first = requests[0]
    report = Report(
        method=method,
        lossless=bias is None,
        bias=bias,
        ahead=ahead,
        prompt_tokens=sum(request.prompt_length for request in requests),
        reused_tokens=sum(request.reused for request in requests),
        new_tokens=emitted,
        seconds=recorder.total_seconds,
        first_token_seconds=recorder.first_token_seconds,
        tokens_per_second=speed,
        target_passes=passes,
        drafted=drafted,
        accepted=accepted,
        tokens_per_pass=emitted / passes if passes else None,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_by_position=[accepted_at[i] / reached[i] for i in sorted(reached)],
        accepted_lengths=dict(sorted(lengths.items())),
        accepted_by_source=dict(sources),
        time_split=split,
        plain_step_seconds=plain_step_seconds,
        speedup=speedup,
        parameters=effective_parameters(first),
        memory={
            "target": sum(c.memory.get("target", 0) for c in counts),
            "drafter": max(c.memory.get("drafter", 0) for c in counts),
        },
    )
    found = (_slower_warning(report, recorder), policy_message or _idle_warning(report, requests))
    report.warnings.extend(text for text in found if text)
    return report


def effective_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters that the request really ran with, as plain values."""
    sampling = {k: v for k, v in vars(request.sampling).items() if k != "logits_processors"}
    sampling["logits_processors"] = [type(p).__name__ for p in request.sampling.logits_processors]
    sampling["logit_bias"] = {str(k): v for k, v in request.sampling.logit_bias.items()}
    sampling["seed"] = request.seed if request.sampling.temperature > 0 else None
    stop = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(request.stop).items()}
    return {**sampling, **stop}


def _slower_warning(report: Report, recorder: Recorder) -> str | None:
    """Name the likely cause when the method was slower than plain decoding."""
    if report.speedup is None or report.speedup >= 0.98 or report.target_passes < 10:
        return None
    split, total = report.time_split, max(report.seconds, 1e-9)
    if split.get("draft", 0.0) > 0.25 * total:
        cause = f"drafting took {split['draft'] / total:.0%} of the time; use a smaller drafter or drafter='cache'"
    elif (report.acceptance_rate or 0.0) < 0.4:
        cause = f"only {report.acceptance_rate or 0.0:.0%} of the drafted tokens were accepted; use fewer draft_tokens"
    else:
        cause = "scoring several rows costs much more than one on this machine; use fewer draft_tokens"
    return f"{report.method} ran at {report.speedup:.2f}x of plain decoding: {cause}, or drafter='none'"


def _idle_warning(report: Report, requests: Sequence[Request]) -> str | None:
    """Say why nothing was drafted where drafts were asked for."""
    wanted = report.method != "none" and any(request.speculate for request in requests)
    if report.drafted or not wanted or report.target_passes < 10:
        return None
    if all(request.statistics.switched_off == request.statistics.rounds for request in requests):
        cause = "disable_above_batch or disable_above_context switched drafting off"
    else:
        cause = "the drafter had nothing to propose, or the length policy asked for nothing"
    return f"{report.method} drafted nothing in {report.target_passes} passes: {cause}"


def render(report: Report) -> str:
    """Return the report as text for a terminal."""

    def number(value: float | None, form: str = ".2f", unit: str = "") -> str:
        return "-" if value is None else f"{value:{form}}{unit}"

    split = {k: v for k, v in report.time_split.items() if v > 0}
    total = sum(split.values()) or 1.0
    lines = [
        f"method            {report.method} ({'lossless' if report.lossless else 'LOSSY'})",
        *(
            []
            if report.bias is None
            else [f"bias              at most {report.bias:.3f} from the target's law (bound)"]
        ),
        f"tokens            {report.prompt_tokens} prompt ({report.reused_tokens} reused) + {report.new_tokens} new",
        f"speed             {number(report.tokens_per_second, '.1f')} tokens/s, first token after "
        f"{number(report.first_token_seconds, '.2f', ' s')}, {report.seconds:.2f} s in all",
        f"target passes     {report.target_passes}, {number(report.tokens_per_pass)} tokens per pass "
        "(bonus token included; plain decoding is 1)",
        f"acceptance        {report.accepted} of {report.drafted} drafted tokens accepted "
        f"({number(report.acceptance_rate, '.0%')})",
    ]
    if report.acceptance_by_position:
        shares = " ".join(f"{share:.2f}" for share in report.acceptance_by_position[:16])
        lines.append(f"  by position     {shares}")
    if report.ahead is not None:
        waited, rounds = report.ahead["wait_seconds"], report.ahead["rounds"]
        lines.append(
            f"drafted ahead     {number(report.ahead['hit_rate'], '.0%')} of the outcomes guessed, "
            f"{number(report.ahead['stale_rate'], '.0%')} of the drafts stale, waited {waited:.2f} s in {rounds} rounds"
        )
    lengths = " ".join(f"{n}:{count}" for n, count in report.accepted_lengths.items())
    lines.append(f"  lengths         {lengths or '-'} (accepted tokens:passes)")
    lines.append("time              " + ", ".join(f"{k} {v / total:.1%}" for k, v in split.items()))
    lines.append(
        f"speed-up          {number(report.speedup, '.2f', 'x')} over plain steps of "
        f"{number(None if report.plain_step_seconds is None else report.plain_step_seconds * 1e3, '.1f', ' ms')}"
    )
    held = ", ".join(f"{who} {size / 1e6:.1f} MB" for who, size in report.memory.items())
    lines.append(f"memory            {held} beside the weights")
    lines += [f"warning: {text}" for text in report.warnings]
    return "\n".join(lines)
