//! Which draft to verify, decided before any verification: a cache chain or tree, a model drafter's draft, or none.
//!
//! Hybrid Verified Decoding (Su et al., arXiv:2606.01019, 2026) compares a predicted accepted length with a fixed
//! threshold. Here the arms are compared by the time that their expected tokens save, with costs learned while running, and
//! the cache draft is cut where one more token costs more than it saves.
//!
//! Usage: [`PayoffRouter::choose`] before each round, [`PayoffRouter::note_time`] after each forward,
//! [`PayoffRouter::note_model`] after a round of the model drafter, and [`PayoffRouter::note_cache`] for *every* cache
//! draft, verified or not: the text that follows tells how much of it would have been accepted ([`replayed`]).

mod calibration;
mod cost;
mod router;

pub use calibration::Calibration;
pub use cost::Cost;
pub use router::{Choice, PayoffOptions, PayoffRouter, replayed};
