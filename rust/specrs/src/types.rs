//! Ids that must not be mixed up.

/// A token of the vocabulary. Any vocabulary of up to 2³² − 2 tokens fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct TokenId(pub u32);

/// A node of a draft tree, counted from 0 in topological order. The anchor is not a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct NodeId(pub u32);
