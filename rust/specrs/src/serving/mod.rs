//! Cache drafting for an engine that decodes many requests at once (continuous batching).
//!
//! The engine shows its rows after every step ([`Batch`]); a [`Proposer`] tells which request stands in which row
//! ([`Rows`]), reads what is new, drafts from a [`crate::draft::SuffixCache`] and cuts the drafts where one more token
//! costs more time than it brings ([`PayoffGate`], by [`StepTimes`]). Nothing here asks the engine for request ids.

mod gate;
mod proposer;
mod rows;
mod times;

pub use gate::PayoffGate;
pub use proposer::{Counts, Proposal, Proposer, ProposerOptions};
pub use rows::{Batch, Matched, PATIENCE, Rows};
pub use times::StepTimes;
