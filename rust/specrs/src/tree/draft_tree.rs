//! The tree itself and the invariants it is checked for.

use crate::error::{Error, Result};

/// A draft as a tree below the anchor.
///
/// Invariants: arrays of one length; a parent is −1 or an earlier node; siblings differ in their token; confidences are
/// between 0 and 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftTree {
    tokens: Vec<u32>,
    parents: Vec<i32>,
    depths: Vec<i32>,
    confidence: Vec<f32>,
}

impl DraftTree {
    /// An empty tree: one plain step.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a tree of flat arrays and checks them.
    ///
    /// # Shapes
    /// All of length N.
    ///
    /// # Errors
    /// If an invariant does not hold; the message names the node.
    pub fn from_parts(tokens: Vec<u32>, parents: Vec<i32>, confidence: Vec<f32>) -> Result<Self> {
        if tokens.len() != parents.len() || tokens.len() != confidence.len() {
            return Err(Error::invalid(format!(
                "a tree needs as many parents and confidences as tokens, got {} and {} for {}",
                parents.len(),
                confidence.len(),
                tokens.len()
            )));
        }
        let mut depths = Vec::with_capacity(parents.len());
        check_parents(&parents, &mut depths)?;
        let mut edges: Vec<(i32, u32)> = parents.iter().copied().zip(tokens.iter().copied()).collect();
        edges.sort_unstable();
        if let Some(at) = (1..edges.len()).find(|&at| edges[at - 1] == edges[at]) {
            let (parent, token) = edges[at];
            return Err(Error::invalid(format!("token {token} is drafted twice below node {parent}")));
        }
        if let Some(node) = confidence.iter().position(|value| !(0.0..=1.0).contains(value)) {
            return Err(Error::invalid(format!(
                "confidence of node {node} must be between 0 and 1, got {}",
                confidence[node]
            )));
        }
        Ok(Self { tokens, parents, depths, confidence })
    }

    /// A chain of tokens.
    ///
    /// # Errors
    /// If the lengths differ or a confidence is out of its range.
    pub fn chain(tokens: Vec<u32>, confidence: Vec<f32>) -> Result<Self> {
        let parents = (0..tokens.len() as i32).map(|node| node - 1).collect();
        Self::from_parts(tokens, parents, confidence)
    }

    /// Adds a node below `parent` and returns its index; the existing node if the token is there already.
    ///
    /// # Panics
    /// If `parent` is not −1 or a node of the tree.
    pub fn push(&mut self, token: u32, parent: i32, confidence: f32) -> i32 {
        assert!((-1..self.len() as i32).contains(&parent), "node {parent} is not in the tree");
        if let Some(known) = self.child(parent, token) {
            return known;
        }
        let depth = if parent < 0 { 1 } else { self.depths[parent as usize] + 1 };
        self.tokens.push(token);
        self.parents.push(parent);
        self.depths.push(depth);
        self.confidence.push(confidence);
        self.len() as i32 - 1
    }

    /// The child of `parent` with this token.
    pub fn child(&self, parent: i32, token: u32) -> Option<i32> {
        let from = (parent + 1) as usize;
        (from..self.len())
            .find(|&node| self.parents[node] == parent && self.tokens[node] == token)
            .map(|node| node as i32)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens, shape (N,).
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Parents, shape (N,); −1 is the anchor.
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// Depths, shape (N,), from 1.
    pub fn depths(&self) -> &[i32] {
        &self.depths
    }

    /// Estimated probability that a node is accepted given that its parent is, shape (N,).
    pub fn confidence(&self) -> &[f32] {
        &self.confidence
    }

    /// Probability that a node is accepted, shape (N,): the product of confidences along its path.
    pub fn path_probs(&self) -> Vec<f32> {
        let mut path: Vec<f32> = Vec::with_capacity(self.len());
        for (&parent, &confidence) in self.parents.iter().zip(&self.confidence) {
            path.push(if parent < 0 { confidence } else { path[parent as usize] * confidence });
        }
        path
    }

    /// Nodes from the anchor's child down to `node`.
    pub fn path(&self, node: i32) -> Vec<i32> {
        let mut path = Vec::new();
        let mut at = node;
        while at >= 0 {
            path.push(at);
            at = self.parents[at as usize];
        }
        path.reverse();
        path
    }
}

/// Checks topological order and adds depths.
///
/// # Errors
/// If a parent is neither −1 nor an earlier node.
pub fn check_parents(parents: &[i32], depths: &mut Vec<i32>) -> Result<()> {
    for (node, &parent) in parents.iter().enumerate() {
        if parent < -1 || parent >= node as i32 {
            return Err(Error::invalid(format!("parent of node {node} must be -1 or an earlier node, got {parent}")));
        }
        depths.push(if parent < 0 { 1 } else { depths[parent as usize] + 1 });
    }
    Ok(())
}
