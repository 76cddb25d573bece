//! The coins of a round, keyed so that a row's coins depend on its request and its position alone.

use crate::uniforms::{Key, Purpose, uniform};
use crate::{Error, Result};

/// What the coins of a round are keyed by. Arrays of B requests, except `depths` (one entry per node).
#[derive(Clone, Copy, Debug)]
pub struct RoundKeys<'a> {
    /// Seed of each request.
    pub seeds: &'a [u64],
    /// Sample number of each request ([`Key::request`]).
    pub requests: &'a [u32],
    /// Committed tokens of each request.
    pub positions: &'a [u32],
    /// Logit rows of each request, as in [`super::Batch`].
    pub row_ptr: &'a [i64],
    /// Depth of each node, 1 for a child of the anchor.
    pub depths: &'a [i32],
}

/// The accept and the emit coin of every logit row: (seed, request, committed tokens + depth, purpose).
///
/// # Errors
/// Arrays of the wrong length, depths below 1, a position beyond 32 bits.
pub fn round_coins(keys: &RoundKeys<'_>) -> Result<(Vec<f64>, Vec<f64>)> {
    let RoundKeys { seeds, requests, positions, row_ptr, depths } = *keys;
    let count = seeds.len();
    let rows = count + depths.len();
    if requests.len() != count || positions.len() != count || row_ptr.len() != count + 1 {
        return Err(Error::invalid(format!(
            "seeds, requests, positions and row_ptr must have B, B, B and B + 1 entries, got {count}, {}, {} and {}",
            requests.len(),
            positions.len(),
            row_ptr.len()
        )));
    }
    if row_ptr[0] != 0 || row_ptr[count] != rows as i64 || row_ptr.windows(2).any(|w| w[1] <= w[0]) {
        return Err(Error::invalid(format!(
            "row_ptr must grow from 0 to the number of requests and nodes, {rows}, got {row_ptr:?}"
        )));
    }
    let (mut accept, mut emit) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for b in 0..count {
        let (first, end) = (row_ptr[b] as usize, row_ptr[b + 1] as usize);
        for row in first..end {
            let depth = if row == first { 0 } else { depths[row - b - 1] };
            if row > first && depth < 1 {
                return Err(Error::invalid(format!(
                    "a node's depth must be at least 1, got {depth} for node {} of request {b}",
                    row - first - 1
                )));
            }
            let position = positions[b].checked_add(depth as u32).ok_or_else(|| {
                Error::invalid(format!("position {} + depth {depth} of request {b} exceeds 32 bits", positions[b]))
            })?;
            let key = Key { seed: seeds[b], request: requests[b], position, purpose: Purpose::Accept, index: 0 };
            accept.push(uniform(key));
            emit.push(uniform(Key { purpose: Purpose::Emit, ..key }));
        }
    }
    Ok((accept, emit))
}
