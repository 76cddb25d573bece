"""What a caller may say of the method: who drafts, how much, how it is verified; made into parts for every door."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from specrs.errors import InvalidInputError
from specrs.methods import SSD_DEFAULTS, make_drafter, make_policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specrs.drafters.base import Drafter
    from specrs.engine.engine import Engine
    from specrs.engine.relaxed import RelaxedVerification
    from specrs.models.base import TargetModel
    from specrs.policies.base import LengthPolicy
    from specrs.policies.cost import CostTable
    from specrs.report.recorder import Recorder
    from specrs.verification.base import Verifier
    from specrs.verification.ensemble_head import EnsembleHead


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """The options of :func:`specrs.generate` that choose a method; their meaning and defaults are described there."""

    drafter: str | Drafter = "cache"
    draft_model: Any = None
    draft_tokens: int | None = None
    draft_shape: str = "chain"
    policy: str | LengthPolicy | None = None
    policy_options: Mapping[str, Any] | None = None
    cost_table: CostTable | str | Path | None = None
    disable_above_batch: int | None = None
    disable_above_context: int | None = None
    verification: Verifier | EnsembleHead | str | Path | None = None
    bias_budget: float | None = None
    payoff: str | Path | None = None
    fan_out: int | None = None
    fallback: str | None = None
    saguaro: float | None = None
    overlap: str | None = None
    draft_cores: Sequence[int] | None = None
    max_batch: int = 8

    def make(self, target: TargetModel, *, sampled: bool, seeded: bool) -> Method:
        """Make drafter, length policy and verify stage for a target.

        Parameters
        ----------
        target : TargetModel
        sampled : bool
            Whether requests have a temperature above 0.
        seeded : bool
            Whether some request's text must repeat.

        Raises
        ------
        SpecrsError
            Options that do not go together, named.
        """
        from specrs.engine.relaxed import relaxed_verification

        for name, least in (("max_batch", 1), ("disable_above_batch", 0), ("disable_above_context", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidInputError(f"{name} must be >= {least}, got {value}")
        drafter = self._drafter(target)
        policy = self._policy(target, drafter, sampled=sampled, seeded=seeded)
        relaxed = relaxed_verification(self.verification, self.bias_budget, target, drafter, sampled=sampled)
        return Method(self, drafter, policy, relaxed)

    def _drafter(self, target: TargetModel) -> Drafter:
        ahead = {name: getattr(self, name) for name in SSD_DEFAULTS if getattr(self, name) is not None}
        if isinstance(self.drafter, str):
            return make_drafter(
                self.drafter,
                target,
                draft_model=self.draft_model,
                shape=self.draft_shape,
                draft_tokens=self.draft_tokens,
                payoff=self.payoff,
                ssd=ahead,
            )
        given = [name for name in ("draft_model", "draft_shape", "payoff") if getattr(self, name) != _DEFAULTS[name]]
        if given or ahead:
            raise InvalidInputError(
                f"{', '.join([*given, *ahead])} is for drafters by name; {self.drafter.name!r} was given as an object"
            )
        return self.drafter

    def _policy(self, target: TargetModel, drafter: Drafter, *, sampled: bool, seeded: bool) -> LengthPolicy:
        if self.policy is None or isinstance(self.policy, str):
            return make_policy(
                target,
                drafter,
                self.policy,
                self.policy_options,
                draft_tokens=self.draft_tokens,
                sampled=sampled,
                seeded=seeded,
                cost_table=self.cost_table,
            )
        if self.policy_options or self.draft_tokens is not None or self.cost_table is not None:
            raise InvalidInputError(
                "policy_options, draft_tokens and cost_table are for policies by name; "
                f"{self.policy.name!r} was given as an object"
            )
        return self.policy


_DEFAULTS = {option.name: option.default for option in fields(MethodOptions)}


@dataclass(frozen=True)
class Method:
    """A drafter, a length policy and a verify stage that go together."""

    options: MethodOptions = field(repr=False)
    drafter: Drafter
    policy: LengthPolicy
    relaxed: RelaxedVerification | None

    @property
    def name(self) -> str:
        """What a report calls it."""
        return self.drafter.name if self.drafter.name == "none" else f"{self.drafter.name} ({self.policy.name})"

    def engine(self, target: TargetModel, recorder: Recorder) -> Engine:
        """Return an engine that runs requests by it."""
        from specrs.engine.engine import Engine

        return Engine(
            target,
            self.drafter,
            self.policy,
            recorder,
            max_batch=self.options.max_batch,
            disable_above_batch=self.options.disable_above_batch,
            disable_above_context=self.options.disable_above_context,
            relaxed=self.relaxed,
        )
