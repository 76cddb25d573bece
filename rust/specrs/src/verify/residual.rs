//! What is left of the target's law once a rejected candidate's share is taken out.

use super::blocks::{BLOCK, pick};
use super::draft_law::LawRow;
use super::element::Element;
use super::law::RowLaw;
use super::simd;

/// Factors of `max(target_factor * target - draft_factor * draft, 0)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors {
    pub(crate) target: f32,
    pub(crate) draft: f32,
}

impl Factors {
    /// Plain rejection sampling.
    pub(crate) const PLAIN: Self = Self { target: 1.0, draft: 1.0 };
}

/// A token drawn after a rejection, or why there is none.
pub(crate) enum Residual {
    /// The token at the coin of the normalised residual.
    Token(u32),
    /// The residual is empty: target and draft law are equal to the last bit.
    Empty,
    /// The draft row is NaN, negative or above 1 where the target's law has mass.
    BadDraft,
}

/// The residual of one block, and whether the draft's entries are probabilities.
#[inline(always)]
fn block_residual<E: Element>(
    law: &RowLaw<'_, E>,
    draft: LawRow<'_>,
    factors: Factors,
    block: usize,
) -> ([f32; BLOCK], bool) {
    let mut residual = law.block_probs(block);
    let (draft, sound) = draft.block(block * BLOCK);
    for (left, prob) in residual.iter_mut().zip(draft) {
        *left = (factors.target * *left - factors.draft * prob).max(0.0);
    }
    (residual, sound)
}

/// Block sums of the residual into `sums`; the total, or `None` for an unsound draft row.
fn block_sums<E: Element>(
    law: &RowLaw<'_, E>,
    draft: LawRow<'_>,
    factors: Factors,
    mut keep: impl FnMut(f64),
) -> Option<f64> {
    simd::run(
        #[inline(always)]
        || {
            let mut total = 0.0;
            for block in 0..law.blocks() {
                let mut sum = 0.0;
                if law.has_block(block) {
                    let (residual, sound) = block_residual(law, draft, factors, block);
                    if !sound {
                        return None;
                    }
                    sum = simd::sum(&residual);
                }
                keep(sum);
                total += sum;
            }
            Some(total)
        },
    )
}

/// Total of the residual; `None` for an unsound draft row.
pub(crate) fn mass<E: Element>(law: &RowLaw<'_, E>, draft: LawRow<'_>, factors: Factors) -> Option<f64> {
    block_sums(law, draft, factors, |_| {})
}

/// Draws from the normalised residual with `coin`.
pub(crate) fn draw<E: Element>(law: &mut RowLaw<'_, E>, draft: LawRow<'_>, factors: Factors, coin: f64) -> Residual {
    let mut sums = law.take_residual();
    let drawn = match block_sums(law, draft, factors, |sum| sums.push(sum)) {
        None => Residual::BadDraft,
        Some(total) if total > 0.0 => {
            let reader = &*law;
            Residual::Token(pick(&sums, coin * total, |block| block_residual(reader, draft, factors, block).0))
        }
        Some(_) => Residual::Empty,
    };
    law.return_residual(sums);
    drawn
}
