//! Layouts that engines take: root-to-leaf paths, child and sibling links, padded rows.

use super::draft_tree::check_parents;
use crate::error::{Error, Result};

/// Root-to-leaf paths as rows of indices into (anchor, nodes): 0 is the anchor, `i + 1` is node `i`, −1 pads.
///
/// # Shapes
/// `parents`: (N,). Result: one row per leaf, in the order of the leaves, of `1 + deepest` entries; one row of the
/// anchor alone if there are no nodes. Second value: entries per row.
///
/// # Errors
/// If a parent is not an earlier node.
pub fn retrieve_indices(parents: &[i32]) -> Result<(Vec<i32>, usize)> {
    let mut depths = Vec::with_capacity(parents.len());
    check_parents(parents, &mut depths)?;
    let width = 1 + depths.iter().copied().max().unwrap_or(0) as usize;
    if parents.is_empty() {
        return Ok((vec![0], width));
    }
    let mut leaf = vec![true; parents.len()];
    for &parent in parents.iter().filter(|&&parent| parent >= 0) {
        leaf[parent as usize] = false;
    }
    let mut rows = Vec::new();
    for node in (0..parents.len()).filter(|&node| leaf[node]) {
        let start = rows.len();
        rows.resize(start + width, -1);
        rows[start] = 0;
        let mut at = node as i32;
        while at >= 0 {
            rows[start + depths[at as usize] as usize] = at + 1;
            at = parents[at as usize];
        }
    }
    Ok((rows, width))
}

/// First child and next sibling of the anchor (index 0) and every node (index `i + 1`); −1 is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// Index of the first child, shape (1 + N,).
    pub first_child: Vec<i32>,
    /// Index of the next sibling, shape (1 + N,).
    pub next_sibling: Vec<i32>,
}

/// Links of a tree; children keep the order of their nodes.
///
/// # Errors
/// If a parent is not an earlier node.
pub fn links(parents: &[i32]) -> Result<Links> {
    check_parents(parents, &mut Vec::with_capacity(parents.len()))?;
    let mut links = Links { first_child: vec![-1; parents.len() + 1], next_sibling: vec![-1; parents.len() + 1] };
    let mut last_child = vec![-1_i32; parents.len() + 1];
    for (node, &parent) in parents.iter().enumerate() {
        let (index, above) = (node as i32 + 1, (parent + 1) as usize);
        match last_child[above] {
            -1 => links.first_child[above] = index,
            before => links.next_sibling[before as usize] = index,
        }
        last_child[above] = index;
    }
    Ok(links)
}

/// Ragged rows of tokens as a rectangle of i32, `fill` at the end of each row, and the rows' lengths.
///
/// # Shapes
/// `tokens`: (N,), `row_ptr`: (B + 1,). Result: (B, width) and (B,).
///
/// # Errors
/// If a row is longer than `width`, the offsets do not fit, or a token is larger than 2³¹ − 1.
pub fn pad_tokens(tokens: &[u32], row_ptr: &[i64], width: usize, fill: i32) -> Result<(Vec<i32>, Vec<i32>)> {
    crate::draft::check_documents(tokens, row_ptr)?;
    let rows = row_ptr.len() - 1;
    let mut padded = vec![fill; rows * width];
    let mut lengths = Vec::with_capacity(rows);
    for (row, ends) in row_ptr.windows(2).enumerate() {
        let own = &tokens[ends[0] as usize..ends[1] as usize];
        if own.len() > width {
            return Err(Error::invalid(format!("row {row} has {} tokens, more than the width {width}", own.len())));
        }
        for (place, &token) in padded[row * width..].iter_mut().zip(own) {
            *place = i32::try_from(token)
                .map_err(|_| Error::invalid(format!("token {token} of row {row} does not fit into int32")))?;
        }
        lengths.push(own.len() as i32);
    }
    Ok((padded, lengths))
}
