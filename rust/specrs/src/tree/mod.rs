//! Draft trees: flat nodes in topological order, builders, and the layouts that engines take.
//!
//! Node `i` has a token and a parent, an earlier node or the anchor (−1). The anchor is the last committed token; it is no
//! node. A chain is a tree with one child per node.

mod build;
mod draft_tree;
mod layout;
mod visibility;

pub use build::{Expand, best_first, layered, merge, prune};
pub use draft_tree::DraftTree;
pub use layout::{Links, links, pad_tokens, retrieve_indices};
pub use visibility::{Visibility, visibility};
