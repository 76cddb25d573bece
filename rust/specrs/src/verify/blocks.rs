//! Rows in blocks of a fixed length: the unit of every loop, and the inverse of a cumulative law over them.

use super::element::Element;

/// Logits per block. Small, so that a truncated law touches little; large enough for wide vectors.
pub(crate) const BLOCK: usize = 128;

/// The last, incomplete block of a row, padded with −∞; `None` if there is none.
pub(super) fn padded<E: Element>(rest: &[E::Bits]) -> Option<[E::Bits; BLOCK]> {
    (!rest.is_empty()).then(|| {
        let mut block = [E::MASKED; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        block
    })
}

/// The first index whose running sum exceeds `goal`; rounding at the very end falls back to the last index with mass.
///
/// `sums` holds the total of each block, `values` gives a block's entries.
pub(crate) fn pick(sums: &[f64], goal: f64, values: impl Fn(usize) -> [f32; BLOCK]) -> u32 {
    let mut below = 0.0;
    let mut chosen = 0;
    let mut reached = false;
    for (block, &sum) in sums.iter().enumerate() {
        if sum > 0.0 {
            chosen = block;
            reached = goal < below + sum;
            if reached {
                break;
            }
            below += sum;
        }
    }
    let mut last = 0;
    for (index, &value) in values(chosen).iter().enumerate() {
        if value > 0.0 {
            last = index;
            below += f64::from(value);
            if reached && goal < below {
                break;
            }
        }
    }
    (chosen * BLOCK + last) as u32
}
