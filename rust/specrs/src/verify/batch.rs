//! The checked input of a verification: drafts of several requests and the target's logits over them.

use super::logits::Logits;
use super::sampling::Sampling;
use crate::{Error, Result};

/// Drafts of B requests, ragged, with the target's logits for every anchor and node.
///
/// Request `b` owns the logit rows `row_ptr[b]..row_ptr[b + 1]`: its anchor's first, then one for each of its nodes. Its
/// nodes start at `row_ptr[b] - b` in `tokens` and `parents`.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(crate) logits: Logits<'a>,
    pub(crate) vocabulary: usize,
    row_ptr: &'a [i64],
    tokens: &'a [u32],
    parents: &'a [i32],
}

/// One request's share of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// Which request of the batch.
    pub(crate) index: usize,
    /// The anchor's row; node `i` has row `first_row + 1 + i`.
    pub(crate) first_row: usize,
    /// Where the request's nodes start among all nodes.
    pub(crate) first_node: usize,
    /// Draft tokens.
    pub(crate) tokens: &'a [u32],
    /// Parent of each node, -1 for the anchor.
    pub(crate) parents: &'a [i32],
}

impl Request<'_> {
    /// The logit row of `node`, where -1 is the anchor.
    pub(crate) fn row(&self, node: i32) -> usize {
        self.first_row.wrapping_add_signed(node as isize + 1)
    }

    /// The children of `node` in draft order. A parent precedes its children, so the search starts after it.
    pub(crate) fn children(&self, node: i32) -> impl Iterator<Item = usize> + '_ {
        ((node + 1) as usize..self.parents.len()).filter(move |&child| self.parents[child] == node)
    }

    /// The first child of `node` that proposes `token`.
    pub(crate) fn child_with(&self, node: i32, token: u32) -> Option<usize> {
        self.children(node).find(|&child| self.tokens[child] == token)
    }

    /// Refuses a draft in which some node has two children; `rule` names who asks.
    pub(crate) fn require_chain(&self, rule: &str) -> Result<()> {
        match self.parents.iter().enumerate().find(|&(node, &parent)| parent != node as i32 - 1) {
            None => Ok(()),
            Some((node, parent)) => Err(Error::invalid(format!(
                "{rule} verifies chains: node {node} of request {} must have parent {}, got {parent}",
                self.index,
                node as i32 - 1
            ))),
        }
    }
}

impl<'a> Batch<'a> {
    /// Checks shapes and trees.
    ///
    /// # Errors
    /// Row pointers that do not start at 0, shrink, leave a request without its anchor's row or do not end at the
    /// number of logit rows; token or parent arrays of another length; a parent that does not come before its child.
    pub fn new(logits: Logits<'a>, row_ptr: &'a [i64], tokens: &'a [u32], parents: &'a [i32]) -> Result<Self> {
        let rows = logits.rows();
        let vocabulary = logits.vocabulary()?;
        let Some((&first, &last)) = row_ptr.first().zip(row_ptr.last()) else {
            return Err(Error::invalid("row_ptr must have one entry more than there are requests, got none"));
        };
        if first != 0 || last != rows as i64 {
            return Err(Error::invalid(format!(
                "row_ptr must run from 0 to the number of logit rows, {rows}, got {first} to {last}"
            )));
        }
        if let Some(request) = row_ptr.windows(2).position(|w| w[1] <= w[0]) {
            return Err(Error::invalid(format!(
                "each request needs at least its anchor's row, got {} to {} for request {request}",
                row_ptr[request],
                row_ptr[request + 1]
            )));
        }
        let batch = Self { logits, vocabulary, row_ptr, tokens, parents };
        let nodes = rows - batch.len();
        if tokens.len() != nodes || parents.len() != nodes {
            return Err(Error::invalid(format!(
                "tokens and parents must have one entry per node, {nodes}, got {} and {}",
                tokens.len(),
                parents.len()
            )));
        }
        for request in batch.requests() {
            for (node, &parent) in request.parents.iter().enumerate() {
                if parent < -1 || parent >= node as i32 {
                    return Err(Error::invalid(format!(
                        "a parent must come before its child: node {node} of request {} must have a parent in -1..{node}, got {parent}",
                        request.index
                    )));
                }
            }
        }
        Ok(batch)
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.row_ptr.len() - 1
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of nodes of all requests together.
    pub fn nodes(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn request(&self, index: usize) -> Request<'a> {
        let (first_row, end_row) = (self.row_ptr[index] as usize, self.row_ptr[index + 1] as usize);
        let (first_node, end_node) = (first_row - index, end_row - index - 1);
        Request {
            index,
            first_row,
            first_node,
            tokens: &self.tokens[first_node..end_node],
            parents: &self.parents[first_node..end_node],
        }
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = Request<'a>> + '_ {
        (0..self.len()).map(|index| self.request(index))
    }
}

/// Coins of every logit row, each in [0, 1). The accept and emit streams must be independent of each other and of the
/// draft.
#[derive(Clone, Copy, Debug)]
pub struct Coins<'a> {
    /// Decides about the children of the row's node.
    pub accept: &'a [f64],
    /// Draws the token that is emitted at the row's node.
    pub emit: &'a [f64],
}

impl Coins<'_> {
    pub(crate) fn check(&self, rows: usize) -> Result<()> {
        for (name, coins) in [("accept", self.accept), ("emit", self.emit)] {
            if coins.len() != rows {
                return Err(Error::invalid(format!(
                    "{name} coins must have one entry per logit row, {rows}, got {}",
                    coins.len()
                )));
            }
            if let Some(row) = coins.iter().position(|coin| !(0.0..1.0).contains(coin)) {
                return Err(Error::invalid(format!("a coin must be in [0, 1), got {} at row {row}", coins[row])));
            }
        }
        Ok(())
    }
}

/// Checks that there is one sampling per request and that each is meaningful.
pub(crate) fn check_sampling(sampling: &[Sampling], requests: usize) -> Result<()> {
    if sampling.len() != requests {
        return Err(Error::invalid(format!(
            "sampling must have one entry per request, {requests}, got {}",
            sampling.len()
        )));
    }
    sampling.iter().enumerate().try_for_each(|(request, sampling)| sampling.check(request))
}
