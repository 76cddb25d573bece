//! What is left of the target's law once a rejected candidate's share is taken out.

use super::law::{BLOCK, RowLaw, lane_sum, pick};
use super::logits::Element;
use super::simd;

/// A token drawn after a rejection, and what was wrong with the draft row if anything.
pub(crate) enum Residual {
    /// The token at the coin of the normalised residual.
    Token(u32),
    /// The residual is empty: target and draft law are equal to the last bit.
    Empty,
    /// The draft row is NaN, negative or above 1 where the target's law has mass.
    BadDraft,
}

/// `max(target - draft, 0)` over one block, and whether the draft's entries are probabilities.
#[inline(always)]
fn block_residual<E: Element>(law: &RowLaw<'_, E>, draft_probs: &[f32], block: usize) -> ([f32; BLOCK], bool) {
    let mut residual = law.block_probs(block);
    let ids = law.block_range(block);
    let covered = draft_probs.len().min(ids.end).saturating_sub(ids.start);
    let draft = &draft_probs[ids.start.min(draft_probs.len())..][..covered];
    let mut bad = false;
    for (left, &prob) in residual.iter_mut().zip(draft) {
        bad |= !(0.0..=1.001).contains(&prob);
        *left = (*left - prob).max(0.0);
    }
    (residual, bad)
}

/// Draws from norm(max(target - draft, 0)) with `coin`. Ids that `draft_probs` does not cover have draft probability 0.
pub(crate) fn draw<E: Element>(law: &mut RowLaw<'_, E>, draft_probs: &[f32], coin: f64) -> Residual {
    let mut sums = law.take_residual();
    let reader = &*law;
    let (total, bad) = simd::run(
        #[inline(always)]
        || {
            let (mut total, mut bad) = (0.0, false);
            for block in 0..reader.blocks() {
                let mut sum = 0.0;
                if reader.has_block(block) {
                    let (residual, wrong) = block_residual(reader, draft_probs, block);
                    sum = lane_sum(&residual);
                    bad |= wrong;
                }
                sums.push(sum);
                total += sum;
            }
            (total, bad)
        },
    );
    let drawn = if bad {
        Residual::BadDraft
    } else if total > 0.0 {
        Residual::Token(pick(&sums, coin * total, |block| block_residual(reader, draft_probs, block).0))
    } else {
        Residual::Empty
    };
    law.return_residual(sums);
    drawn
}
