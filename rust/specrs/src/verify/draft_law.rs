//! The law that a draft token was drawn from, in the forms that drafters have it.

use super::blocks::BLOCK;
use crate::{Error, Result};

/// Draft probabilities above this are no probabilities; the slack is float rounding of a drafter's own softmax.
const LARGEST: f32 = 1.001;

/// The laws that the nodes' tokens were drawn from. Siblings share the row of their first draw.
///
/// `row_of[i]` is the row of node `i`; without it every node has a row of its own.
#[derive(Clone, Copy, Debug)]
pub enum DraftLaw<'a> {
    /// Each token was chosen with certainty: argmax, cache drafts, fixed trees.
    OneHot,
    /// Probability rows of any length; ids beyond it have probability 0.
    Dense {
        /// Rows of probabilities.
        rows: &'a [&'a [f32]],
        /// Row of each node.
        row_of: Option<&'a [i64]>,
    },
    /// Rows of ids, ascending, with their probabilities; every other id has probability 0.
    Sparse {
        /// Row `r` is `ptr[r]..ptr[r + 1]`.
        ptr: &'a [i64],
        /// Token ids.
        ids: &'a [u32],
        /// Their probabilities.
        probs: &'a [f32],
        /// Row of each node.
        row_of: Option<&'a [i64]>,
    },
}

/// One row of a [`DraftLaw`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum LawRow<'a> {
    OneHot(u32),
    Dense(&'a [f32]),
    Sparse(&'a [u32], &'a [f32]),
}

impl<'a> DraftLaw<'a> {
    /// Checks the shapes for a batch of `nodes` nodes.
    pub(crate) fn check(&self, nodes: usize) -> Result<()> {
        let (count, row_of) = match *self {
            Self::OneHot => return Ok(()),
            Self::Dense { rows, row_of } => (rows.len(), row_of),
            Self::Sparse { ptr, ids, probs, row_of } => {
                let sound = ptr.first() == Some(&0)
                    && ptr.last() == Some(&(ids.len() as i64))
                    && ids.len() == probs.len()
                    && ptr.windows(2).all(|w| w[0] <= w[1]);
                if !sound {
                    return Err(Error::invalid(format!(
                        "a sparse draft law needs growing row pointers from 0 to the number of ids and one probability per id, got {} pointers, {} ids, {} probabilities",
                        ptr.len(),
                        ids.len(),
                        probs.len()
                    )));
                }
                for (row, w) in ptr.windows(2).enumerate() {
                    let ids = &ids[w[0] as usize..w[1] as usize];
                    if let Some(at) = ids.windows(2).position(|w| w[0] >= w[1]) {
                        return Err(Error::invalid(format!(
                            "the ids of a sparse draft law must ascend, got {} before {} in row {row}",
                            ids[at],
                            ids[at + 1]
                        )));
                    }
                }
                (ptr.len() - 1, row_of)
            }
        };
        match row_of {
            None if count != nodes => {
                Err(Error::invalid(format!("draft_probs must have one row per node, {nodes}, got {count}")))
            }
            Some(row_of) if row_of.len() != nodes => {
                Err(Error::invalid(format!("draft_rows must have one entry per node, {nodes}, got {}", row_of.len())))
            }
            Some(row_of) => match row_of.iter().find(|&&row| row < 0 || row >= count as i64) {
                Some(row) => Err(Error::invalid(format!("draft_rows must be in 0..{count}, got {row}"))),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// The row that node `node` of the batch, whose token is `token`, was drawn from.
    pub(crate) fn row(&self, node: usize, token: u32) -> LawRow<'a> {
        let index = |row_of: Option<&[i64]>| row_of.map_or(node, |rows| rows[node] as usize);
        match *self {
            Self::OneHot => LawRow::OneHot(token),
            Self::Dense { rows, row_of } => LawRow::Dense(rows[index(row_of)]),
            Self::Sparse { ptr, ids, probs, row_of } => {
                let row = index(row_of);
                let range = ptr[row] as usize..ptr[row + 1] as usize;
                LawRow::Sparse(&ids[range.clone()], &probs[range])
            }
        }
    }
}

impl LawRow<'_> {
    /// Probability of `token`; 0 where the row does not reach.
    pub(crate) fn prob(&self, token: u32) -> f32 {
        match *self {
            Self::OneHot(only) => f32::from(u8::from(only == token)),
            Self::Dense(probs) => probs.get(token as usize).copied().unwrap_or(0.0),
            Self::Sparse(ids, probs) => ids.binary_search(&token).map_or(0.0, |at| probs[at]),
        }
    }

    /// Whether `prob` can be the probability of a token that was drawn.
    pub(crate) fn is_drawable(prob: f32) -> bool {
        prob > 0.0 && prob <= LARGEST
    }

    /// The probabilities of one block of ids, and whether each of them is a probability.
    #[inline(always)]
    pub(crate) fn block(&self, start: usize) -> ([f32; BLOCK], bool) {
        let mut block = [0f32; BLOCK];
        match *self {
            Self::OneHot(token) => {
                if let Some(at) = (token as usize).checked_sub(start).filter(|&at| at < BLOCK) {
                    block[at] = 1.0;
                }
            }
            Self::Dense(probs) => {
                let probs = &probs[start.min(probs.len())..];
                let probs = &probs[..probs.len().min(BLOCK)];
                block[..probs.len()].copy_from_slice(probs);
            }
            Self::Sparse(ids, probs) => {
                let from = ids.partition_point(|&id| (id as usize) < start);
                for (&id, &prob) in ids[from..].iter().zip(&probs[from..]) {
                    let at = id as usize - start;
                    if at >= BLOCK {
                        break;
                    }
                    block[at] = prob;
                }
            }
        }
        let sound = block.iter().fold(true, |sound, prob| sound & (0.0..=LARGEST).contains(prob));
        (block, sound)
    }

    /// The largest probability of the row.
    pub(crate) fn max(&self) -> f32 {
        match *self {
            Self::OneHot(_) => 1.0,
            Self::Dense(probs) | Self::Sparse(_, probs) => probs.iter().copied().fold(0.0, f32::max),
        }
    }

    /// The total of the row without the tokens in `taken`.
    pub(crate) fn sum_without(&self, taken: &[u32]) -> f64 {
        let all: f64 = match *self {
            Self::OneHot(_) => 1.0,
            Self::Dense(probs) | Self::Sparse(_, probs) => {
                let free = |id: u32| !taken.contains(&id);
                let ids = |at: usize| if let Self::Sparse(ids, _) = *self { ids[at] } else { at as u32 };
                return probs
                    .iter()
                    .enumerate()
                    .filter(|&(at, &prob)| prob > 0.0 && free(ids(at)))
                    .map(|(_, &prob)| f64::from(prob))
                    .sum();
            }
        };
        if taken.is_empty() { all } else { all - f64::from(u8::from(taken.iter().any(|&t| self.prob(t) > 0.0))) }
    }
}
