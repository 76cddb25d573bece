//! Verification: which draft tokens stand, and which token follows them.
//!
//! ```text
//!  anchor ──► row law ──► accept / reject the children ──► descend … ──► bonus
//! ```
//!
//! A rule is a pure function of logits, draft, coins: same inputs, same verdict, whatever the batch around a request.
//! Every rule here emits exactly the target's law in exact arithmetic unless its documentation says *relaxed*.

mod batch;
mod chain;
mod coins;
mod draw;
mod law;
mod logits;
mod parallel;
mod residual;
mod sampling;
mod scores;
mod simd;
mod walk;

pub use batch::{Batch, Coins};
pub use coins::{RoundKeys, round_coins};
pub use draw::draw;
pub use logits::{Bf16, Element, F16, F32, Logits};
pub use sampling::Sampling;
pub use scores::{log_probs, top_log_probs};

use crate::{Error, Result};
use law::Scratch;
use logits::with_rows;

/// How a request's verification ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// As the rule says.
    #[default]
    Ok = 0,
    /// A rejection left nothing of the target's law (it equals the draft's to the last bit): the bonus was drawn from
    /// the whole law.
    EmptyResidual = 1,
    /// The target's row is NaN, +∞ or masked throughout: the path ends before it and nothing is emitted there.
    BadTarget = 2,
    /// The draft's row is not a law, or gives its own token no probability: the bonus was drawn from the target's law.
    BadDraft = 3,
    /// The draft token is in neither vocabulary: the draft was cut before it.
    BadToken = 4,
}

/// The bonus of a request that emits none ([`Status::BadTarget`]).
pub const NO_TOKEN: u32 = u32::MAX;

/// The outcome of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    pub(crate) path: Vec<i32>,
    bonus: u32,
    status: Status,
}

impl Round {
    /// Ends with `bonus` after the path so far.
    fn end(mut self, bonus: u32, status: Status) -> Self {
        (self.bonus, self.status) = (bonus, status);
        self
    }

    /// Ends at a row that has no law. The path up to it stands: its tokens came from rows that have one.
    fn cut(self) -> Self {
        self.end(NO_TOKEN, Status::BadTarget)
    }
}

/// What stands of each request's draft.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Request `b` accepted `path[path_ptr[b]..path_ptr[b + 1]]`.
    pub path_ptr: Vec<i64>,
    /// Accepted nodes, counted within their request, from the anchor down.
    pub path: Vec<i32>,
    /// The token drawn behind each path; [`NO_TOKEN`] where there is none.
    pub bonus: Vec<u32>,
    /// [`Status`] of each request.
    pub status: Vec<u8>,
}

impl Verdict {
    fn from_rounds(rounds: Vec<Round>) -> Self {
        let mut verdict = Self { path_ptr: vec![0], ..Self::default() };
        for round in rounds {
            verdict.path.extend_from_slice(&round.path);
            verdict.path_ptr.push(verdict.path.len() as i64);
            verdict.bonus.push(round.bonus);
            verdict.status.push(round.status as u8);
        }
        verdict
    }
}

/// An acceptance rule, with what it needs to know about the draft.
#[derive(Clone, Copy, Debug)]
pub enum Rule<'a> {
    /// Take what plain decoding takes (the argmax, or the draw of the row's emit coin) and descend while the draft has
    /// it. Any tree, any drafter; token for token the text of plain decoding with the same coins.
    GreedyOrFixed,
    /// Rejection sampling along a chain; `draft_probs[i]` is the law of node `i`'s token, of any length (ids it does not
    /// cover have probability 0). Requests at temperature 0 are walked as [`Rule::GreedyOrFixed`].
    Chain {
        /// One row per node of the batch.
        draft_probs: &'a [&'a [f32]],
    },
}

/// Verifies the drafts of a batch.
///
/// # Shapes
/// One [`Sampling`] per request, one accept and one emit coin per logit row.
///
/// # Errors
/// Before any work: arrays of the wrong length, sampling parameters or coins outside their range, a draft law that the
/// rule needs and does not get, a branching draft for a chain rule.
///
/// # Examples
/// ```
/// use specrs::verify::{Batch, Coins, Logits, Rule, Sampling, verify};
///
/// // The target prefers token 2, then token 0; the draft guessed 2, then 1.
/// let rows: [&[f32]; 3] = [&[0.0, 1.0, 3.0], &[2.0, 1.0, 0.0], &[0.0, 0.0, 9.0]];
/// let batch = Batch::new(Logits::F32(&rows), &[0, 3], &[2, 1], &[-1, 0])?;
/// let coins = Coins { accept: &[0.0; 3], emit: &[0.0; 3] };
/// let verdict = verify(&batch, &[Sampling::GREEDY], &Rule::GreedyOrFixed, coins)?;
/// assert_eq!((verdict.path, verdict.bonus), (vec![0], vec![0]));
/// # Ok::<(), specrs::Error>(())
/// ```
pub fn verify(batch: &Batch<'_>, sampling: &[Sampling], rule: &Rule<'_>, coins: Coins<'_>) -> Result<Verdict> {
    batch::check_sampling(sampling, batch.len())?;
    coins.check(batch.logits.rows())?;
    if let Rule::Chain { draft_probs } = rule {
        if draft_probs.len() != batch.nodes() {
            return Err(Error::invalid(format!(
                "draft_probs must have one row per node, {}, got {}",
                batch.nodes(),
                draft_probs.len()
            )));
        }
        for request in batch.requests().filter(|request| !sampling[request.index].is_greedy()) {
            request.require_chain("chain")?;
        }
    }
    let work = batch.logits.rows().saturating_mul(batch.vocabulary);
    Ok(Verdict::from_rounds(with_rows!(batch.logits, |rows: E| {
        parallel::map(batch.len(), work, Scratch::default, |index, scratch| {
            let request = batch.request(index);
            let sampling = sampling[index];
            match rule {
                Rule::Chain { draft_probs } if !sampling.is_greedy() => {
                    chain::verify::<E>(&request, rows, draft_probs, sampling, coins, scratch)
                }
                _ => walk::verify::<E>(&request, rows, sampling, coins.emit, scratch),
            }
        })
    })))
}
