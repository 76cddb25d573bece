//! The drafts of one step over many requests, flat.

use super::vote::Draft;

/// The drafts of many requests, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDrafts {
    /// All nodes; parents count from the start of their own request's nodes.
    pub nodes: Draft,
    /// Where each request's nodes start; one more entry than requests.
    pub row_ptr: Vec<i64>,
    /// Longest match of each request.
    pub match_lengths: Vec<i32>,
    /// Expected accepted tokens of each request.
    pub expected: Vec<f32>,
}

impl StepDrafts {
    pub(super) fn append(&mut self, one: &Draft) {
        self.nodes.tokens.extend_from_slice(&one.tokens);
        self.nodes.parents.extend_from_slice(&one.parents);
        self.nodes.depths.extend_from_slice(&one.depths);
        self.nodes.confidence.extend_from_slice(&one.confidence);
        self.row_ptr.push(self.nodes.tokens.len() as i64);
        self.match_lengths.push(one.match_length as i32);
        self.expected.push(one.expected_accepted);
    }

    pub(super) fn join(&mut self, other: Self) {
        let base = self.nodes.tokens.len() as i64;
        self.nodes.tokens.extend(other.nodes.tokens);
        self.nodes.parents.extend(other.nodes.parents);
        self.nodes.depths.extend(other.nodes.depths);
        self.nodes.confidence.extend(other.nodes.confidence);
        self.row_ptr.extend(other.row_ptr.iter().map(|end| end + base));
        self.match_lengths.extend(other.match_lengths);
        self.expected.extend(other.expected);
    }
}
