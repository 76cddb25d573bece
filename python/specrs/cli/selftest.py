"""``specrs selftest``: enumerate every exact rule on this machine, through the extension that is installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser
    from specrs.verification.selftest import Finding


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs selftest`` takes."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs selftest``: exit code 0 when every rule is exact."""
    from specrs.verification.selftest import selftest

    findings = selftest(None if arguments.json else _show)
    if arguments.json:
        print(json.dumps([{**vars(one), "passed": one.passed} for one in findings], indent=2))
    return 0 if all(one.passed for one in findings) else 1


def _show(finding: Finding) -> None:
    verdict = "exact" if finding.passed else "NOT EXACT: please report this"
    print(f"{finding.rule:20} {finding.cases:4} cases  distance {finding.distance:.1e}  {verdict}", flush=True)
