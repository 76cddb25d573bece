//! Greedy and fixed candidates: take the token that plain decoding takes, and descend while the draft has it.
//!
//! Exact for every tree and every way of drafting that does not look at the emit coins, duplicates included: the token at
//! a node is drawn from the target's law before the draft is looked at.

use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::sampling::Sampling;
use super::scan::argmax;
use super::{Job, Round, Status};

/// The token that plain decoding takes at a row with this emit coin; `None` if the row has no law.
pub(crate) fn plain<E: Element>(row: &[E::Bits], sampling: Sampling, coin: f64, scratch: &mut Scratch) -> Option<u32> {
    if sampling.is_greedy() {
        argmax::<E>(row, scratch).ok()
    } else {
        RowLaw::<E>::new(row, sampling, scratch).ok().map(|law| law.draw(coin))
    }
}

/// Verifies one request.
pub(crate) fn verify<E: Element>(job: &Job<'_>, rows: &[&[E::Bits]], scratch: &mut Scratch) -> Round {
    let mut round = Round::new(&job.request);
    let mut node = -1;
    loop {
        let row = job.request.row(node);
        let Some(token) = plain::<E>(rows[row], job.sampling, job.coins.emit[row], scratch) else {
            return round.cut();
        };
        match job.request.child_with(node, token) {
            Some(child) => {
                node = child as i32;
                round.path.push(node);
            }
            None => return round.end(token, Status::Ok),
        }
    }
}
