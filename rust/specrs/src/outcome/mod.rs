//! Drafting while the target verifies: which outcomes of a round to draft for, and what that is worth.
//!
//! Speculative speculative decoding (Kumar, Dao and May, arXiv:2603.03251, 2026) lets the drafter guess the *outcome* of
//! the round that the target is verifying, that is the number of accepted drafts and the bonus token, and draft behind
//! each guess. If the outcome was guessed, the next draft is there at once (a *hit*).
//!
//! A round of the drafter: [`allocate`] says how many bonus tokens to guess behind each number of accepted drafts,
//! [`fork_tokens`] which ones, [`SpeculationCache`] keeps the drafts behind them until the outcome is known, and after a
//! miss [`FallbackChooser`] says whether to draft anew, cheaply, or not at all. [`RankMisses`] learns from the outcomes
//! how often a guess misses. [`ssd_speedup`], [`advise`] and [`simulate`] say what it is worth.

mod advisor;
mod cache;
mod fallback;
mod fan_out;
mod fork;
mod language;
#[cfg(unix)]
pub mod link;
mod miss_law;
mod saguaro;
mod simulate;
mod speedup;

pub use advisor::{Advice, Devices, StageCosts, Verdict, advise};
pub use cache::{CacheCounts, Continuation, Outcome, SpeculationCache};
pub use fallback::{Fallback, FallbackChooser};
pub use fan_out::{allocate, allocate_by, geometric, outcome_probs};
pub use fork::{Forks, fork_tokens};
pub use language::{Language, Rates};
pub use miss_law::{MissLaw, RankMisses, fit_power_law};
pub use saguaro::saguaro;
pub use simulate::{Run, Scene, simulate};
pub use speedup::{
    Backup, Batch, critical_batch, expected_tokens, sd_speedup, ssd_bounds, ssd_speedup, stationary_hits,
};
