//! Cache drafting: text already seen proposes how the present text goes on.

mod cache;
mod coarse;
mod context;
mod disk;
mod evidence;
mod follow;
mod history;
mod live;
mod request;
mod segment;
mod segment_file;
mod step;
mod store;
mod vote;
mod words;

pub use cache::{CacheOptions, CacheStats, SuffixCache};
pub use context::{Limits, Match, SEPARATOR, check_documents};
pub use disk::{Step as WriteStep, watch_writes};
pub use evidence::{Evidence, Odds};
pub use history::{Found, History, HistoryOptions};
pub use live::LiveText;
pub use segment::Segment;
pub use segment_file::{Check, Fingerprint, open_segment, write_segment};
pub use step::StepDrafts;
pub use store::{Entry, Store};
pub use vote::{Draft, DraftOptions, Shape, Vote, Workspace, draft};
