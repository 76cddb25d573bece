//! Which draft to verify, decided before any verification: a cache chain or tree, a model drafter's draft, or none.
//!
//! Hybrid Verified Decoding (Su et al., arXiv:2606.01019, 2026) compares a predicted accepted length with a fixed
//! threshold. Here the arms are compared by the time that their expected tokens save, with costs learned while running, and
//! the cache draft is cut where it brings most tokens per second. Where rows are cheap it may be verified beside the
//! model drafter's, as one tree: a cache draft that is probably wrong still insures a draft that is probably short.
//!
//! Usage: [`PayoffRouter::start`] a request, [`PayoffRouter::route`] before each of its rounds, and
//! [`PayoffRouter::finish`] it. Cache drafts that are offered teach the router whether they were verified or not: the
//! text that follows tells how much of them would have been accepted ([`replayed`]). [`PayoffRouter::note_forward`] and
//! [`PayoffRouter::note_model_time`] tell what rounds cost, [`PayoffRouter::note_model`] how the model drafter fared.

mod calibration;
mod cost;
mod features;
mod mlp;
mod request;
mod round;
mod router;
mod saved;
mod weighing;

pub use calibration::Calibration;
pub use cost::Cost;
pub use features::{CLASSES, FEATURE_VERSION, FEATURES};
pub use mlp::{HIDDEN, Mlp};
pub use request::{Example, Offer, Shape, replayed};
pub use round::{Choice, Round, Rule};
pub use router::{PayoffOptions, PayoffRouter};
