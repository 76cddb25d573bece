//! Chain rejection sampling with a dense draft law.
//!
//! Leviathan et al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192), and Chen et al.
//! (arXiv 2302.01318): accept a token with probability min(1, target / draft), after the first rejection draw from
//! norm(max(target - draft, 0)).

use super::batch::{Coins, Request};
use super::law::{RowLaw, Scratch};
use super::logits::Element;
use super::residual::{self, Residual};
use super::sampling::Sampling;
use super::{Round, Status};

/// Verifies one request whose nodes form a chain. `draft_probs[i]` is the law that the token of node `i` was drawn from.
pub(crate) fn verify<E: Element>(
    request: &Request<'_>,
    rows: &[&[E::Bits]],
    draft_probs: &[&[f32]],
    sampling: Sampling,
    coins: Coins<'_>,
    scratch: &mut Scratch,
) -> Round {
    let mut round = Round::default();
    for node in -1..request.tokens.len() as i32 {
        let row = request.row(node);
        let Ok(mut law) = RowLaw::<E>::new(rows[row], sampling, scratch) else {
            return round.cut();
        };
        let child = (node + 1) as usize;
        let Some(&token) = request.tokens.get(child) else {
            return round.end(law.draw(coins.emit[row]), Status::Ok);
        };
        let draft_row = draft_probs[request.first_node + child];
        if token as usize >= law.vocabulary().max(draft_row.len()) {
            return round.end(law.draw(coins.emit[row]), Status::BadToken);
        }
        let draft_prob = draft_row.get(token as usize).copied().unwrap_or(0.0);
        if !(draft_prob > 0.0 && draft_prob <= 1.001) {
            return round.end(law.draw(coins.emit[row]), Status::BadDraft);
        }
        if coins.accept[row] * f64::from(draft_prob) < f64::from(law.prob(token)) {
            round.path.push(child as i32);
            continue;
        }
        let (token, status) = match residual::draw(&mut law, draft_row, coins.emit[row]) {
            Residual::Token(token) => (token, Status::Ok),
            Residual::Empty => (law.draw(coins.emit[row]), Status::EmptyResidual),
            Residual::BadDraft => (law.draw(coins.emit[row]), Status::BadDraft),
        };
        return round.end(token, status);
    }
    unreachable!("the loop ends at the row behind the last node")
}
