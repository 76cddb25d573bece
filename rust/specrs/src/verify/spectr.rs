//! Several independent candidates at one node, each tried against the same scaled law.
//!
//! Sun et al., "`SpecTr`: fast speculative decoding via optimal transport" (arXiv 2310.15141), k-sequential selection:
//! ```text
//! accept a candidate with probability min(1, target / (rho * draft))
//! beta = sum of min(draft, target / rho),  a = 1 - (1 - beta)^k
//! all k failed: draw from norm(target - min(draft, target / rho) * a / beta)
//! ```
//! Exact for every rho with a / beta ≤ rho, and best for the smallest of them.

use super::blocks::{BLOCK, pick};
use super::draft_law::{DraftLaw, LawRow};
use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::{Job, Round, Status, simd};

/// Bisection steps for rho; any end of the interval is exact, more steps accept a little more.
const STEPS: usize = 16;

/// beta of `rho`, or `None` for an unsound draft row.
fn beta<E: Element>(law: &RowLaw<'_, E>, draft: LawRow<'_>, rho: f64) -> Option<f64> {
    let inverse = (1.0 / rho) as f32;
    simd::run(
        #[inline(always)]
        || {
            let mut total = 0.0;
            for block in (0..law.blocks()).filter(|&block| law.has_block(block)) {
                let (mut shared, sound) = draft.block(block * BLOCK);
                if !sound {
                    return None;
                }
                for (shared, prob) in shared.iter_mut().zip(law.block_probs(block)) {
                    *shared = shared.min(prob * inverse);
                }
                total += simd::sum(&shared);
            }
            Some(total)
        },
    )
}

/// a / beta for k candidates: the expected number of accepted drafts of a token per its share of beta.
fn gain(beta: f64, k: i32) -> f64 {
    if beta > 0.0 { (1.0 - (1.0 - beta.min(1.0)).powi(k)) / beta } else { f64::from(k) }
}

/// The smallest valid rho found, with its beta.
fn smallest_rho<E: Element>(law: &RowLaw<'_, E>, draft: LawRow<'_>, k: i32) -> Option<(f64, f64)> {
    if k == 1 {
        return Some((1.0, beta(law, draft, 1.0)?));
    }
    let (mut low, mut high) = (1.0, f64::from(k));
    let mut best = (high, beta(law, draft, high)?);
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        let beta = beta(law, draft, middle)?;
        if gain(beta, k) <= middle {
            high = middle;
            best = (middle, beta);
        } else {
            low = middle;
        }
    }
    Some(best)
}

/// What is left when all candidates fail.
fn draw_rest<E: Element>(law: &mut RowLaw<'_, E>, draft: LawRow<'_>, rho: f64, gain: f64, coin: f64) -> (u32, Status) {
    let (inverse, gain) = ((1.0 / rho) as f32, gain as f32);
    let mut sums = law.take_residual();
    let reader = &*law;
    let rest = |block: usize| {
        let mut left = reader.block_probs(block);
        for (left, prob) in left.iter_mut().zip(draft.block(block * BLOCK).0) {
            *left = (*left - prob.min(*left * inverse) * gain).max(0.0);
        }
        left
    };
    for block in 0..reader.blocks() {
        sums.push(if reader.has_block(block) { simd::sum(&rest(block)) } else { 0.0 });
    }
    let total: f64 = sums.iter().sum();
    let drawn = if total > 0.0 {
        (pick(&sums, coin * total, rest), Status::Ok)
    } else {
        (law.draw(coin), Status::EmptyResidual)
    };
    law.return_residual(sums);
    drawn
}

/// Verifies one request. A child's coin is the accept coin of its own row.
pub(crate) fn verify<E: Element>(
    job: &Job<'_>,
    rows: &[&[E::Bits]],
    draft: &DraftLaw<'_>,
    scratch: &mut Scratch,
) -> Round {
    let mut round = Round::new(&job.request);
    let mut node = -1;
    'descend: loop {
        let row = job.request.row(node);
        let Ok(mut law) = RowLaw::<E>::new(rows[row], job.sampling, scratch) else {
            return round.cut();
        };
        let Some(first) = job.request.children(node).next() else {
            return round.end(law.draw(job.coins.emit[row]), Status::Ok);
        };
        let draft_row = draft.row(job.request.first_node + first, job.request.tokens[first]);
        let drawable = |child: usize| LawRow::is_drawable(draft_row.prob(job.request.tokens[child]));
        if !job.request.children(node).all(drawable) {
            return round.end(law.draw(job.coins.emit[row]), Status::BadDraft);
        }
        let k = job.request.children(node).count() as i32;
        let Some((rho, beta)) = smallest_rho(&law, draft_row, k) else {
            return round.end(law.draw(job.coins.emit[row]), Status::BadDraft);
        };
        for child in job.request.children(node) {
            let token = job.request.tokens[child];
            let scaled = rho * f64::from(draft_row.prob(token));
            if job.coins.accept[job.request.row(child as i32)] * scaled < f64::from(law.prob(token)) {
                node = child as i32;
                round.path.push(node);
                continue 'descend;
            }
        }
        let (token, status) = draw_rest(&mut law, draft_row, rho, gain(beta, k), job.coins.emit[row]);
        return round.end(token, status);
    }
}
