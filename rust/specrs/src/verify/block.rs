//! Block verification: one decision about how much of a chain stands, never shorter in expectation than token by token.
//!
//! Sun et al., "Block verification accelerates speculative decoding" (arXiv 2403.10444):
//! ```text
//! c[0] = 1,  c[i] = min(1, c[i-1] * target(x[i]) / draft(x[i]))
//! s[i] = sum of max(c[i] * target - draft, 0) at the row behind x[i]
//! h[i] = s[i] / (s[i] + 1 - c[i]) for i < K,  h[K] = c[K]
//! ```
//! The longest prefix i whose own coin falls below h\[i\] stands; behind it a token is drawn from
//! norm(max(c * target - draft, 0)), or from the target's law after all K.

use super::chain::{Next, end_rejected, next};
use super::draft_law::DraftLaw;
use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::residual::{self, Factors};
use super::{Job, Round, Status};

/// Verifies one request whose nodes form a chain. Token i's coin is the accept coin of its parent's row.
pub(crate) fn verify<E: Element>(
    job: &Job<'_>,
    rows: &[&[E::Bits]],
    draft: &DraftLaw<'_>,
    scratch: &mut Scratch,
) -> Round {
    let first = job.request.first_row;
    // The longest standing prefix so far and its c; how the draft ended, if it ended early.
    let (mut standing, mut standing_c) = (0, 1.0f64);
    let (mut c, mut length, mut end, mut bad_target) = (1.0f64, 0, Status::Ok, false);
    loop {
        let Ok(law) = RowLaw::<E>::new(rows[first + length], job.sampling, scratch) else {
            // The draft ends at the row without a law: its token stands or falls by c, as the last one does.
            bad_target = true;
            break;
        };
        let (token, row, draft_prob) = match next(job, draft, length, law.vocabulary()) {
            Next::Token(token, row, draft_prob) => (token, row, draft_prob),
            Next::End(status) => {
                end = status;
                break;
            }
        };
        if length > 0 {
            let Some(s) = residual::mass(&law, row, Factors { target: c as f32, draft: 1.0 }) else {
                end = Status::BadDraft;
                break;
            };
            let denominator = s + 1.0 - c;
            let h = if denominator > 0.0 { s / denominator } else { 1.0 };
            if job.coins.accept[first + length - 1] < h {
                (standing, standing_c) = (length, c);
            }
        }
        c = (c * f64::from(law.prob(token)) / f64::from(draft_prob)).min(1.0);
        length += 1;
        if c == 0.0 {
            break;
        }
    }
    let whole = length == 0 || job.coins.accept[first + length - 1] < c;
    if whole {
        standing = length;
    }
    let round = Round { path: (0..standing as i32).collect(), ..Round::default() };
    if whole && bad_target {
        return round.cut();
    }
    let Ok(mut law) = RowLaw::<E>::new(rows[first + standing], job.sampling, scratch) else {
        return round.cut();
    };
    let coin = job.coins.emit[first + standing];
    if whole {
        return round.end(law.draw(coin), end);
    }
    let row = draft.row(job.request.first_node + standing, job.request.tokens[standing]);
    end_rejected(round, &mut law, row, Factors { target: standing_c as f32, draft: 1.0 }, coin)
}
