//! Chain rejection sampling.
//!
//! Leviathan et al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192), and Chen et al.
//! (arXiv 2302.01318): accept a token with probability min(1, target / draft), after the first rejection draw from
//! norm(max(target - draft, 0)). A token chosen with certainty has draft probability 1.

use super::draft_law::{DraftLaw, LawRow};
use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::residual::{self, Factors, Residual};
use super::{Job, Round, Status};

/// The law of the token behind `node` of a chain, or how the round ends there without one.
pub(crate) enum Next<'a> {
    /// The child's token, its law and its draft probability.
    Token(u32, LawRow<'a>, f32),
    /// No further token, or one that nobody can have drawn.
    End(Status),
}

/// Looks at the chain's token with index `child`.
pub(crate) fn next<'a>(job: &Job<'_>, law: &DraftLaw<'a>, child: usize, vocabulary: usize) -> Next<'a> {
    let Some(&token) = job.request.tokens.get(child) else { return Next::End(Status::Ok) };
    let row = law.row(job.request.first_node + child, token);
    let draft_prob = row.prob(token);
    if token as usize >= vocabulary && (draft_prob == 0.0 || matches!(row, LawRow::OneHot(_))) {
        Next::End(Status::BadToken)
    } else if LawRow::is_drawable(draft_prob) {
        Next::Token(token, row, draft_prob)
    } else {
        Next::End(Status::BadDraft)
    }
}

/// Ends the round with a draw from the residual, or from the target's law where there is none.
pub(crate) fn end_rejected<E: Element>(
    round: Round,
    law: &mut RowLaw<'_, E>,
    draft: LawRow<'_>,
    factors: Factors,
    coin: f64,
) -> Round {
    let (token, status) = match residual::draw(law, draft, factors, coin) {
        Residual::Token(token) => (token, Status::Ok),
        Residual::Empty => (law.draw(coin), Status::EmptyResidual),
        Residual::BadDraft => (law.draw(coin), Status::BadDraft),
    };
    round.end(token, status)
}

/// Verifies one request whose nodes form a chain.
pub(crate) fn verify<E: Element>(
    job: &Job<'_>,
    rows: &[&[E::Bits]],
    draft: &DraftLaw<'_>,
    scratch: &mut Scratch,
) -> Round {
    let mut round = Round::new(&job.request);
    loop {
        let child = round.path.len();
        let row = job.request.first_row + child;
        let Ok(mut law) = RowLaw::<E>::new(rows[row], job.sampling, scratch) else {
            return round.cut();
        };
        match next(job, draft, child, law.vocabulary()) {
            Next::End(status) => return round.end(law.draw(job.coins.emit[row]), status),
            Next::Token(token, draft, draft_prob) => {
                if job.coins.accept[row] * f64::from(draft_prob) >= f64::from(law.prob(token)) {
                    return end_rejected(round, &mut law, draft, Factors::PLAIN, job.coins.emit[row]);
                }
                round.path.push(child as i32);
            }
        }
    }
}
