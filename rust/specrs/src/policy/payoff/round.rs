//! A round's question and answer: what is known when it begins, what to verify in it.

use super::request::{Offer, Shape};
use crate::error::Result;

/// What is known of a request when its next round begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round<'a> {
    /// All committed tokens.
    pub text: &'a [u32],
    /// The cache's chain.
    pub chain: Offer<'a>,
    /// The cache's tree; empty if trees cannot be verified.
    pub tree: Offer<'a>,
    /// Most nodes to verify.
    pub budget: usize,
    /// Requests that share the forward.
    pub batch: usize,
    /// Tokens that may still be written.
    pub remaining: usize,
    /// Committed tokens that the model drafter has not read, at least 1; none where it cannot draft.
    pub backlog: Option<usize>,
    /// Whether the cache's draft may be verified beside the model's: both begin at the anchor, so this makes a tree.
    pub beside: bool,
    /// A coin in [0, 1) that decides on exploration.
    pub uniform: f64,
}

impl Round<'_> {
    /// Refuses drafts whose arrays do not fit together.
    pub(super) fn check(&self) -> Result<()> {
        self.chain.check()?;
        self.tree.check()
    }
}

/// What to verify in the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first nodes of the cache's chain.
    Chain {
        /// How many nodes are worth verifying.
        nodes: usize,
    },
    /// The first nodes of the cache's tree.
    Tree {
        /// How many nodes are worth verifying.
        nodes: usize,
    },
    /// A draft of the model drafter.
    Model {
        /// How many tokens are worth drafting.
        nodes: usize,
    },
    /// A draft of the model drafter, and beside it the first nodes of the cache's draft.
    Both {
        /// Which of the cache's drafts.
        shape: Shape,
        /// How many of its nodes are worth verifying beside the model's.
        nodes: usize,
        /// How many tokens the model drafts.
        model: usize,
    },
    /// No draft: one plain step.
    Plain,
}

/// How a cache draft and the other arm are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// Seconds saved at the costs learned, with the draft cut where that is most.
    #[default]
    Rate,
    /// The whole chain if more than this many accepted tokens are expected of it (Hybrid Verified Decoding: 6).
    Expected(f32),
    /// The whole chain if it continues a match of at least this many tokens (SAM-Decoding: 5, `TensorRT-LLM`: 4).
    Match(u32),
}
