//! Cache drafting: text already seen proposes how the present text goes on.

mod cache;
mod context;
mod live;
mod vote;

pub use cache::{CacheOptions, CacheStats, StepDrafts, SuffixCache};
pub use context::{Match, SEPARATOR};
pub use live::LiveText;
pub use vote::{Draft, DraftOptions, Evidence, Shape, Vote};
