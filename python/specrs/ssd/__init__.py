"""Drafting while the target verifies: speculative speculative decoding (SSD) and Saguaro, arXiv:2603.03251."""

from __future__ import annotations

from specrs._core import (
    FallbackChooser,
    RankMisses,
    SpeculationCache,
    advise_overlap,
    allocate_fan_out,
    critical_batch,
    expected_tokens,
    fit_power_law,
    fork_ids,
    geometric_fan_out,
    outcome_probs,
    saguaro,
    sd_speedup,
    simulate_overlap,
    ssd_bounds,
    ssd_speedup,
    stationary_hits,
    synthetic_rates,
)
from specrs.ssd.drafter import SsdDrafter
from specrs.ssd.making import close_all, make_ssd
from specrs.ssd.statistics import SsdStatistics
from specrs.ssd.texts import Origin, SsdOptions

__all__ = [
    "FallbackChooser",
    "Origin",
    "RankMisses",
    "SpeculationCache",
    "SsdDrafter",
    "SsdOptions",
    "SsdStatistics",
    "advise_overlap",
    "allocate_fan_out",
    "close_all",
    "critical_batch",
    "expected_tokens",
    "fit_power_law",
    "fork_ids",
    "geometric_fan_out",
    "make_ssd",
    "outcome_probs",
    "saguaro",
    "sd_speedup",
    "simulate_overlap",
    "ssd_bounds",
    "ssd_speedup",
    "stationary_hits",
    "synthetic_rates",
]
