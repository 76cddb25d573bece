//! Distances between a target row's law and the draft's, over the blocks where the target's law has mass.

use super::blocks::BLOCK;
use super::draft_law::LawRow;
use super::element::Element;
use super::law::RowLaw;
use super::simd;

/// A measure of how far two laws are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// Total variation, in [0, 1].
    TotalVariation,
    /// Jensen-Shannon, in nats, at most ln 2.
    JensenShannon,
    /// Kullback-Leibler of the target from the draft, in nats; infinite where the draft misses what the target has.
    KullbackLeibler,
}

/// Where two laws differ.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Comparison {
    /// Σ max(target - draft, 0): their total-variation distance.
    pub(crate) short: f64,
    /// Σ max(draft - target, 0) over the target's support.
    pub(crate) excess: f64,
}

/// Calls `visit` with target and draft probabilities of each block that has target mass; `None` for an unsound row.
#[inline(always)]
fn each_block<E: Element>(
    law: &RowLaw<'_, E>,
    draft: LawRow<'_>,
    mut visit: impl FnMut(&[f32; BLOCK], &[f32; BLOCK]),
) -> Option<()> {
    for block in (0..law.blocks()).filter(|&block| law.has_block(block)) {
        let (draft, sound) = draft.block(block * BLOCK);
        if !sound {
            return None;
        }
        visit(&law.block_probs(block), &draft);
    }
    Some(())
}

/// Compares the two laws; `None` for an unsound draft row.
pub(crate) fn compare<E: Element>(law: &RowLaw<'_, E>, draft: LawRow<'_>) -> Option<Comparison> {
    simd::run(
        #[inline(always)]
        || {
            let mut all = Comparison::default();
            each_block(law, draft, |target, draft| {
                let (mut short, mut excess) = ([0f32; BLOCK], [0f32; BLOCK]);
                for at in 0..BLOCK {
                    short[at] = (target[at] - draft[at]).max(0.0);
                    excess[at] = if target[at] > 0.0 { (draft[at] - target[at]).max(0.0) } else { 0.0 };
                }
                all.short += simd::sum(&short);
                all.excess += simd::sum(&excess);
            })?;
            Some(all)
        },
    )
}

/// The divergence of the two laws; `None` for an unsound draft row.
pub(crate) fn divergence<E: Element>(law: &RowLaw<'_, E>, draft: LawRow<'_>, kind: Divergence) -> Option<f64> {
    if kind == Divergence::TotalVariation {
        return Some(compare(law, draft)?.short);
    }
    let (mut total, mut seen) = (0.0, 0.0);
    each_block(law, draft, |target, draft| {
        for (&target, &draft) in target.iter().zip(draft) {
            let (target, draft) = (f64::from(target), f64::from(draft));
            seen += draft;
            if kind == Divergence::KullbackLeibler {
                total += if target > 0.0 { target * (target / draft).ln() } else { 0.0 };
            } else {
                let middle = f64::midpoint(target, draft);
                let part = |prob: f64| if prob > 0.0 { 0.5 * prob * (prob / middle).ln() } else { 0.0 };
                total += part(target) + part(draft);
            }
        }
    })?;
    if kind == Divergence::JensenShannon {
        // The draft's mass in blocks without any of the target's.
        total += 0.5 * std::f64::consts::LN_2 * (draft.sum_without(&[]) - seen).max(0.0);
    }
    Some(total.max(0.0))
}

/// Total-variation distance between the target's law and what lenience emits.
pub(crate) fn lenient_bias<E: Element>(law: &RowLaw<'_, E>, draft: LawRow<'_>, lenience: f32) -> Option<f64> {
    let lenience = f64::from(lenience);
    let (mut accepted, mut rest) = (0.0, 0.0);
    each_block(law, draft, |target, draft| {
        for (&target, &draft) in target.iter().zip(draft) {
            let (target, draft) = (f64::from(target), f64::from(draft));
            accepted += draft.min(target / lenience);
            rest += (target - lenience * draft).max(0.0);
        }
    })?;
    let factor = if rest > 0.0 { (1.0 - accepted).max(0.0) / rest } else { 0.0 };
    let mut bias = 0.0;
    each_block(law, draft, |target, draft| {
        for (&target, &draft) in target.iter().zip(draft) {
            let (target, draft) = (f64::from(target), f64::from(draft));
            let emitted = draft.min(target / lenience) + factor * (target - lenience * draft).max(0.0);
            bias += (emitted - target).max(0.0);
        }
    })?;
    Some(bias)
}

/// Total-variation distance between the target's law and what an acceptance set emits: with a = draft(set), the law is
/// draft on the set plus (1 - a) * target.
pub(crate) fn set_bias<E: Element>(law: &RowLaw<'_, E>, draft: LawRow<'_>, bound: f32) -> Option<f64> {
    let inside = |target: f32| target > 0.0 && target >= bound;
    let mut accepted = 0.0;
    each_block(law, draft, |target, draft| {
        for (&target, &draft) in target.iter().zip(draft) {
            accepted += if inside(target) { f64::from(draft) } else { 0.0 };
        }
    })?;
    let mut bias = 0.0;
    each_block(law, draft, |target, draft| {
        for (&target, &draft) in target.iter().zip(draft) {
            if inside(target) {
                bias += (f64::from(draft) - accepted * f64::from(target)).max(0.0);
            }
        }
    })?;
    Some(bias)
}
