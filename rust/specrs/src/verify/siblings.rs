//! Several sampled candidates at one node of a tree, tried one after the other.
//!
//! ```text
//! stage i: accept x[i], drawn from draft[i], with probability min(1, target[i](x[i]) / draft[i](x[i]))
//!          otherwise target[i+1] = norm(max(target[i] - draft[i], 0))
//! ```
//! Each stage is rejection sampling for its own target, so the node emits the first one's law exactly. The variants differ
//! in the draft's law of a stage:
//! - with replacement (`SpecInfer`, arXiv 2305.09781): always the same;
//! - without replacement (Sequoia, arXiv 2402.12374; EAGLE-1): the earlier candidates taken out, renormalised.

use super::blocks::{BLOCK, pick};
use super::draft_law::{DraftLaw, LawRow};
use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::{Job, Round, Status, simd};

/// How the siblings of a node were drawn from their common law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Independently of each other; equal siblings are possible.
    With,
    /// Each from what the earlier ones left.
    Without,
}

/// The target of the current stage, unnormalised, with its total.
struct Stage {
    weights: Vec<f32>,
    total: f64,
}

impl Stage {
    fn prob(&self, token: u32) -> f64 {
        self.weights.get(token as usize).map_or(0.0, |&weight| f64::from(weight) / self.total)
    }

    /// Takes `draft / draft_total`, without the tokens in `taken`, out of the stage's law. Returns the next stage's total;
    /// `None` for an unsound draft row.
    fn subtract(&self, draft: LawRow<'_>, draft_total: f64, taken: &[u32], next: &mut Vec<f32>) -> Option<f64> {
        next.clear();
        let (keep, take) = ((1.0 / self.total) as f32, (1.0 / draft_total) as f32);
        simd::run(
            #[inline(always)]
            || {
                let mut total = 0.0;
                for (index, block) in self.weights.chunks(BLOCK).enumerate() {
                    let (mut draft, sound) = draft.block(index * BLOCK);
                    if !sound {
                        return None;
                    }
                    for &token in taken {
                        if let Some(entry) =
                            (token as usize).checked_sub(index * BLOCK).and_then(|at| draft.get_mut(at))
                        {
                            *entry = 0.0;
                        }
                    }
                    let mut left = [0f32; BLOCK];
                    for ((left, &weight), &prob) in left.iter_mut().zip(block).zip(&draft) {
                        *left = (weight * keep - prob * take).max(0.0);
                    }
                    next.extend_from_slice(&left[..block.len()]);
                    total += simd::sum(&left);
                }
                Some(total)
            },
        )
    }

    fn draw(&self, coin: f64) -> u32 {
        let block = |index: usize| {
            let mut values = [0f32; BLOCK];
            let slice = &self.weights[index * BLOCK..self.weights.len().min((index + 1) * BLOCK)];
            values[..slice.len()].copy_from_slice(slice);
            values
        };
        let sums: Vec<f64> = (0..self.weights.len().div_ceil(BLOCK)).map(|index| simd::sum(&block(index))).collect();
        pick(&sums, coin * sums.iter().sum::<f64>(), block)
    }
}

/// What the node's children came to.
enum Outcome {
    Accepted(usize),
    Emitted(u32, Status),
}

/// Tries the children of `node` in draft order. A child's coin is the accept coin of its own row.
fn try_children<E: Element>(
    job: &Job<'_>,
    law: &RowLaw<'_, E>,
    node: i32,
    draft: &DraftLaw<'_>,
    replacement: Replacement,
) -> Outcome {
    let emit = job.coins.emit[job.request.row(node)];
    let mut stage: Option<Stage> = None;
    let mut spare = Vec::new();
    let mut taken: Vec<u32> = Vec::new();
    let mut status = Status::Ok;
    let mut shared = None;
    for child in job.request.children(node) {
        let token = job.request.tokens[child];
        let row = *shared.get_or_insert_with(|| draft.row(job.request.first_node + child, token));
        let row = if matches!(row, LawRow::OneHot(_)) { LawRow::OneHot(token) } else { row };
        let gone: &[u32] = if matches!(row, LawRow::OneHot(_)) { &[] } else { &taken };
        let draft_total = if gone.is_empty() { 1.0 } else { row.sum_without(gone) };
        let raw = row.prob(token);
        if token as usize >= law.vocabulary() && raw == 0.0 {
            status = Status::BadToken;
            break;
        }
        if !LawRow::is_drawable(raw) || gone.contains(&token) {
            status = Status::BadDraft;
            break;
        }
        let target = stage.as_ref().map_or_else(|| f64::from(law.prob(token)), |stage| stage.prob(token));
        if job.coins.accept[job.request.row(child as i32)] * (f64::from(raw) / draft_total) < target {
            return Outcome::Accepted(child);
        }
        let current = stage.take().unwrap_or_else(|| Stage { weights: law.probs(), total: 1.0 });
        let Some(total) = current.subtract(row, draft_total, gone, &mut spare) else {
            return Outcome::Emitted(current.draw(emit), Status::BadDraft);
        };
        if total > 0.0 {
            let weights = std::mem::replace(&mut spare, current.weights);
            stage = Some(Stage { weights, total });
        } else {
            // Target and draft of this stage are equal to the last bit: draw from the stage's target itself.
            return Outcome::Emitted(current.draw(emit), Status::EmptyResidual);
        }
        if replacement == Replacement::Without {
            taken.push(token);
        }
    }
    let token = stage.map_or_else(|| law.draw(emit), |stage| stage.draw(emit));
    Outcome::Emitted(token, status)
}

/// Verifies one request.
pub(crate) fn verify<E: Element>(
    job: &Job<'_>,
    rows: &[&[E::Bits]],
    draft: &DraftLaw<'_>,
    replacement: Replacement,
    scratch: &mut Scratch,
) -> Round {
    let mut round = Round::new(&job.request);
    let mut node = -1;
    loop {
        let Ok(law) = RowLaw::<E>::new(rows[job.request.row(node)], job.sampling, scratch) else {
            return round.cut();
        };
        match try_children(job, &law, node, draft, replacement) {
            Outcome::Accepted(child) => {
                node = child as i32;
                round.path.push(node);
            }
            Outcome::Emitted(token, status) => return round.end(token, status),
        }
    }
}
