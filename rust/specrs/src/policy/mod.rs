//! Policies: how much to draft, how much of the draft to score, from which drafter, and when not to draft at all.
//!
//! [`LengthPolicy`] is asked by an engine at three moments of a round: how many nodes to ask for, whether a drafter that
//! writes token by token goes on, and which nodes of the finished draft are scored. What it may look at is its
//! [`Sight`]: tokens that are *drawn* must not decide about themselves. Costs come from a [`CostTable`] measured on the
//! machine at hand, confidences are made acceptance rates by a [`Calibration`], and [`Guarded`] rests drafting while
//! plain decoding is faster.

mod allocate;
mod base;
mod calibration;
mod cost;
mod guard;
mod learned;
pub mod length;
mod libra;
pub mod payoff;
mod schedules;
mod stopping;

pub use allocate::{allocate, survival};
pub use base::{DraftFacts, LengthPolicy, Outcome, Round, Sight, Step};
pub use calibration::{Calibration, Mode, calibration_error, fit_temperatures};
pub use cost::CostTable;
pub use guard::{GuardFacts, Guarded};
pub use learned::{Learned, Outlook};
pub use libra::{Libra, LibraOptions, Price};
pub use schedules::{EmaTiers, Fixed, Goodput, HfHeuristic, LibraAlpha, Ucb};
pub use stopping::{Rule, Stopping, best_threshold};
