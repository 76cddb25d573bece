//! A coarse index over a segment: what its binary searches would look up in the text, side by side.
//!
//! A search in the order of a large segment is a chain of cache misses: each step reads a place of the order and then the
//! text it names. For every 32nd place the two tokens before the last one are kept as one number here, so all but the
//! last steps stay within a few lines; the last 32 places are then read at once, without one waiting for the other. A
//! quarter of a byte per token.

use super::context::{SEPARATOR, order_key};

/// Places of the order per key.
pub const STRIDE: usize = 32;
/// Entries of the directory per bucket, about.
const PER_BUCKET: usize = 4;

/// Keys of every [`STRIDE`]th place, and where the ids with the same leading bits start in the directory.
#[derive(Clone, Debug)]
pub struct Coarse {
    keys: Vec<u64>,
    buckets: Vec<u32>,
    shift: u32,
}

/// The two tokens before `position`, the nearer one first; what lies beyond a document's start counts as nothing.
#[inline]
pub fn key_before(text: &[u32], position: u32) -> u64 {
    let Some(near) = position.checked_sub(1).map(|at| text[at as usize]) else { return 0 };
    if near == SEPARATOR {
        return 0;
    }
    let far = position.checked_sub(2).map_or(SEPARATOR, |at| text[at as usize]);
    u64::from(order_key(near)) << 32 | u64::from(order_key(far))
}

/// The same of a context's last token, of which `cap` tokens count: no key of a match is smaller.
#[inline]
pub fn key_of_context(context: &[u32], cap: usize) -> u64 {
    let token = |back: usize| {
        let at = context.len().checked_sub(back).filter(|_| back <= cap);
        at.map_or(0, |at| u64::from(order_key(context[at])))
    };
    token(2) << 32 | token(3)
}

impl Coarse {
    /// The index of a segment with this text, order, and directory of rising tokens.
    pub fn new(text: &[u32], order: &[u32], tokens: &[u32]) -> Self {
        let keys = order.iter().step_by(STRIDE).map(|&position| key_before(text, position)).collect();
        let largest = tokens.last().copied().unwrap_or(0);
        let wanted = (tokens.len() / PER_BUCKET).max(1).ilog2();
        let shift = (u32::BITS - largest.leading_zeros()).saturating_sub(wanted).min(u32::BITS - 1);
        let buckets = (0..=(largest >> shift) + 1)
            .map(|bucket| tokens.partition_point(|&token| token >> shift < bucket) as u32)
            .collect();
        Self { keys, buckets, shift }
    }

    /// Where in the directory `token` stands, if it does.
    #[inline]
    pub fn find(&self, tokens: &[u32], token: u32) -> Option<usize> {
        let bucket = (token >> self.shift) as usize;
        let &[start, end] = self.buckets.get(bucket..bucket + 2)? else { return None };
        let found = tokens.get(start as usize..end as usize)?.binary_search(&token).ok()?;
        Some(start as usize + found)
    }

    /// Narrows the places `start..end`, which hold one token, to those that the keys cannot tell from `key`: places
    /// before are below it, and places after are not. `below` decides on a place where keys are equal.
    #[inline]
    pub fn narrow(&self, start: usize, end: usize, key: u64, below: impl Fn(usize) -> bool) -> (usize, usize) {
        let first = start.div_ceil(STRIDE);
        let last = end.div_ceil(STRIDE);
        let Some(keys) = self.keys.get(first..last.max(first)) else { return (start, end) };
        let low = keys.partition_point(|&own| own < key);
        let equal = keys[low..].partition_point(|&own| own == key);
        let (mut low, mut high) = (first + low, first + low + equal);
        while low < high {
            let middle = low.midpoint(high);
            if below(middle * STRIDE) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let narrowed = if low > first { (low - 1) * STRIDE + 1 } else { start };
        (narrowed, end.min(low * STRIDE))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.keys) + size_of_val(&*self.buckets)
    }
}
