"""``specrs compare``: plain decoding against a method with identical parameters."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specrs.cli import generation_options as shared

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser
    from specrs.compare import Comparison


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs compare`` takes."""
    shared.add_prompt(parser)
    shared.add_model(parser)
    shared.add_method(parser)
    shared.add_law(parser)
    parser.add_argument(
        "--shape-check", action="store_true",
        help="decode the text again by forwards of one row and of several: what differs by rounding, what by a fault",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs compare``: exit code 0 for the same texts or ones that part at a near-tie, 1 otherwise."""
    text = shared.read_prompt(arguments)
    target, draft_model = shared.load_models(arguments)
    from specrs.compare import compare

    prompt = shared.as_prompt(text, target, arguments)
    options = {**shared.method(arguments, draft_model), **shared.law(arguments)}
    if options["temperature"] > 0 and options["seed"] is None:
        options["seed"] = 0
    found = compare(target, prompt, shape_check=arguments.shape_check, **options)
    print(json.dumps(_facts(found), indent=2) if arguments.json else _text(found, target.tokenizer))
    faultless = found.shapes is None or not found.shapes.unexplained
    return 0 if faultless and (found.difference is None or found.difference.near_tie) else 1


def _facts(found: Comparison) -> dict[str, Any]:
    return {
        "identical": found.identical,
        "difference": None if found.difference is None else asdict(found.difference),
        "shapes": None if found.shapes is None else asdict(found.shapes),
        "plain": {"ids": found.plain.ids, "report": found.plain.report.to_dict()},
        "method": {"ids": found.method.ids, "report": found.method.report.to_dict()},
    }


def _text(found: Comparison, tokenizer: Any) -> str:
    plain, method = found.plain.report, found.method.report
    lines = [
        f"parameters  {plain.parameters}",
        f"plain       {plain.new_tokens} tokens, {plain.target_passes} target passes, {plain.seconds:.2f} s",
        f"method      {method.new_tokens} tokens, {method.target_passes} target passes, {method.seconds:.2f} s "
        f"({method.method})",
    ]
    if shapes := found.shapes:
        lines.append(
            f"shapes      of {shapes.positions} positions, forwards of 1 and of {shapes.rows} rows choose differently "
            f"at {shapes.by_shape}; the text leaves the choice of 1 row at {shapes.unlike_one_row}, of both at "
            f"{shapes.unexplained}" + (" (a fault: please report this)" if shapes.unexplained else "")
        )
    difference = found.difference
    if difference is None:
        return "\n".join([*lines, "identical   every token is the same"])

    def name(token: int | None) -> str:
        return "end of text" if token is None else f"{token} {tokenizer.decode([token])!r}"

    kind = "a near-tie: rounding decides" if difference.near_tie else "NOT a near-tie: please report this"
    return "\n".join(
        [
            *lines,
            f"differs     at output token {difference.position}, {kind} (gap bound {difference.bound:.4g})",
            f"            plain  {name(difference.plain_token)}: logit {difference.one_row[0]:.5f} from one row, "
            f"{difference.many_rows[0]:.5f} from several",
            f"            method {name(difference.method_token)}: logit {difference.one_row[1]:.5f} from one row, "
            f"{difference.many_rows[1]:.5f} from several",
        ]
    )
