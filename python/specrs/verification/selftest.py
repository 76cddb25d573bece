"""Checks on this machine that the exact rules are exact: what ``specrs selftest`` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specrs.reference import RULES
from specrs.verification.exactness import Problem, how_drawn, is_possible, native, tree_shapes, worst_distance

#: SpecTr's scale comes out of a bisection: its thresholds are no small fractions, so they are not recognised exactly.
TOLERANCE = {"spectr": 1e-5}


@dataclass(frozen=True)
class Finding:
    """How far one rule's output law is from the target's over all problems tried."""

    rule: str
    #: Problems and tree shapes enumerated.
    cases: int
    #: Largest total-variation distance; 0.0 means equal as fractions.
    distance: float

    @property
    def passed(self) -> bool:
        """Whether the rule is exact."""
        return self.cases > 0 and self.distance <= TOLERANCE.get(self.rule, 0.0)


def selftest(report: Callable[[Finding], None] | None = None) -> list[Finding]:
    """Enumerate every exact rule on small problems through the extension that is installed.

    Parameters
    ----------
    report : callable, optional
        Called with each finding as it is made.

    Returns
    -------
    list of Finding
        One per rule; seconds of work in total.
    """
    findings = []
    for rule in RULES:
        cases, worst = 0, 0.0
        for kind in ("positive", "zeros", "equal"):
            problem = Problem.random(0, 3, 2, 4, kind)
            for nodes in (0, 1, 2):
                chain = [tuple(range(-1, nodes - 1))]
                for parents in chain if rule in ("chain", "block") else tree_shapes(nodes, 2):
                    if is_possible(problem, parents, how_drawn(rule)):
                        cases += 1
                        worst = max(worst, float(worst_distance(rule, native, problem, parents)))
        findings.append(Finding(rule, cases, worst))
        if report is not None:
            report(findings[-1])
    return findings
