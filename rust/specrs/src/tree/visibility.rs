//! Which nodes a node sees: the anchor, its ancestors and itself, as bits.

use super::draft_tree::check_parents;
use crate::error::Result;

/// Rows of bits: row `i` belongs to node `i`, bit 0 is the anchor, bit `j + 1` is node `j`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// Words of all rows, row after row, low bits first.
    pub words: Vec<u64>,
    /// Words per row.
    pub row_words: usize,
}

/// Visibility of a tree, in rows of `row_words` words or as many as it needs.
///
/// # Shapes
/// `parents`: (N,). Result: N rows of at least ⌈(N + 1) / 64⌉ words.
///
/// # Errors
/// If a parent is not an earlier node.
pub fn visibility(parents: &[i32], row_words: usize) -> Result<Visibility> {
    check_parents(parents, &mut Vec::with_capacity(parents.len()))?;
    let row_words = row_words.max((parents.len() + 1).div_ceil(64));
    let mut words = vec![0_u64; parents.len() * row_words];
    for (node, &parent) in parents.iter().enumerate() {
        let (above, rest) = words.split_at_mut(node * row_words);
        let row = &mut rest[..row_words];
        if parent < 0 {
            row[0] = 1;
        } else {
            row.copy_from_slice(&above[parent as usize * row_words..][..row_words]);
        }
        row[(node + 1) / 64] |= 1 << ((node + 1) % 64);
    }
    Ok(Visibility { words, row_words })
}

impl Visibility {
    /// Whether `node` sees `other` (−1 is the anchor).
    pub fn sees(&self, node: usize, other: i32) -> bool {
        let bit = (other + 1) as usize;
        self.words[node * self.row_words + bit / 64] >> (bit % 64) & 1 == 1
    }
}
