"""``specrs info``: what specrs can do with a model, before its weights are loaded."""

from __future__ import annotations

import argparse
import json
from typing import Any

from specrs.cli.arguments import Parser, one_of
from specrs.cli.table import render
from specrs.models.describe import describe
from specrs.models.loading import DTYPES
from specrs.verification.named import RULES


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs info`` takes."""
    parser.add_argument("model", metavar="MODEL", help="an embedded model on this machine, a folder, or a hub name")
    parser.add_argument("--dtype", type=one_of("dtype", DTYPES), metavar="|".join(DTYPES), help="default: as saved")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs info``; a model that cannot be run is a failure."""
    facts = describe(arguments.model, dtype=arguments.dtype)
    facts["verification"] = {"lossless": "the default", **{name: meaning for name, (_, meaning) in RULES.items()}}
    print(json.dumps(facts, indent=2) if arguments.json else _text(facts))
    return 0 if facts["supported"] else 1


def _text(facts: dict[str, Any]) -> str:
    if not facts["supported"]:
        return f"{facts['name']} is not supported: {facts['reason']}"
    layers = " and ".join(f"{count} layers of {kind}" for kind, count in facts["layers"].items())
    window = f", window of {facts['window']} tokens" if facts["window"] else ""
    if facts["row_invariant"]:
        rounding = "a scored row has the bits of a plain step (our kernels)"
    else:
        rounding = "torch's: near-ties may fall otherwise than in plain steps in half precision; see `specrs compare`"
    context = "any length" if facts["max_context"] is None else f"{facts['max_context']} tokens"
    memory = f"{facts['memory_bytes_per_token'] / 1024:.4g} KiB of keys and values a token"
    size = f"{facts['parameters'] / 1e6:,.0f} M parameters, {facts['dtype']}, {facts['weight_bytes'] / 1e6:,.0f} MB"
    lines = [
        ("model", f"{facts['name']} ({facts['architecture']}), {size}"),
        ("attention", f"{layers}, heads of {facts['head_size']}{window}; rolls back exactly"),
        ("context", f"{context}, {memory}"),
        ("stops at", ", ".join(map(str, facts["eos_token_ids"])) or "nothing of its own"),
        ("rounding", rounding),
        (
            "draft models",
            ", ".join(facts["draft_models"]) or "any smaller one of its vocabulary; none is embedded",
        ),
        ("lossless", "every drafter, greedy or sampled, in batches of any size"),
        ("relaxed", "on request, chains alone: " + ", ".join(f"{name}=NUMBER" for name in RULES)),
    ]
    drafters = [
        (name, drafter["draft_model"], ", ".join(drafter["shapes"]) or "-", drafter["what"])
        for name, drafter in facts["drafters"].items()
    ]
    head = "\n".join(f"{name:<13} {value}" for name, value in lines)
    return f"{head}\n\n{render(('drafter', 'draft model', 'shapes', 'what'), drafters)}"
