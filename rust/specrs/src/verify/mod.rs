//! Verification: which draft tokens stand, and which token follows them.
//!
//! ```text
//!  anchor ──► row law ──► accept / reject the children ──► descend … ──► bonus
//! ```
//!
//! A rule is a pure function of logits, draft, coins: same inputs, same verdict, whatever the batch around a request.
//! Every rule here emits exactly the target's law in exact arithmetic unless its documentation says *relaxed*.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod batch;
mod block;
pub(crate) mod blocks;
mod chain;
mod coins;
mod divergence;
mod draft_law;
mod draw;
mod element;
mod facts;
mod kept;
mod law;
mod logits;
mod parallel;
mod relaxed;
mod residual;
mod sampling;
mod scale;
mod scan;
mod scores;
mod siblings;
pub(crate) mod simd;
mod spectr;
mod truncate;
mod walk;

pub use batch::{Batch, Coins};
pub use coins::{RoundKeys, round_coins};
pub use divergence::Divergence;
pub use draft_law::DraftLaw;
pub use draw::draw;
pub use logits::Logits;
pub use relaxed::Relaxed;
pub use sampling::Sampling;
pub use scores::{log_probs, top_log_probs};
pub use siblings::Replacement;

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
    pub(crate) bias: f64,
    bonus: u32,
    status: Status,
}

/// What every rule is given about one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) request: batch::Request<'a>,
    pub(crate) sampling: Sampling,
    pub(crate) coins: Coins<'a>,
}

impl Round {
    /// A round of `request` before its first decision. The path's memory is the round's one allocation.
    fn new(request: &batch::Request<'_>) -> Self {
        Self { path: Vec::with_capacity(request.tokens.len()), ..Self::default() }
    }

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Request `b` accepted `path[path_ptr[b]..path_ptr[b + 1]]`.
    pub path_ptr: Vec<i64>,
    /// Accepted nodes, counted within their request, from the anchor down.
    pub path: Vec<i32>,
    /// The token drawn behind each path; [`NO_TOKEN`] where there is none.
    pub bonus: Vec<u32>,
    /// [`Status`] of each request.
    pub status: Vec<u8>,
    /// Bias that each request gathered in this round; 0 under an exact rule.
    pub bias: Vec<f64>,
}

impl Verdict {
    fn from_rounds(rounds: Vec<Round>) -> Self {
        let mut verdict = Self { path_ptr: vec![0], ..Self::default() };
        for round in rounds {
            verdict.path.extend_from_slice(&round.path);
            verdict.path_ptr.push(verdict.path.len() as i64);
            verdict.bonus.push(round.bonus);
            verdict.status.push(round.status as u8);
            verdict.bias.push(round.bias);
        }
        verdict
    }
}

/// An acceptance rule, with what it needs to know about the draft.
///
/// Requests at temperature 0 are walked greedily under every rule (an ensemble takes the mixture's argmax instead).
#[derive(Clone, Copy, Debug)]
pub enum Rule<'a> {
    /// Take what plain decoding takes (the argmax, or the draw of the row's emit coin) and descend while the draft has
    /// it. Any tree, any drafter; token for token the text of plain decoding with the same coins.
    GreedyOrFixed,
    /// Rejection sampling along a chain. The accept coin of a row decides about its child.
    Chain(DraftLaw<'a>),
    /// Block verification of a chain; coins as for [`Rule::Chain`].
    Block(DraftLaw<'a>),
    /// A tree whose siblings were sampled from one law. A node's coin is the accept coin of its own row.
    Siblings(DraftLaw<'a>, Replacement),
    /// A tree whose siblings were sampled independently, `SpecTr`'s k-sequential selection; coins as for siblings.
    SpecTr(DraftLaw<'a>),
    /// A relaxed rule along a chain; coins as for [`Rule::Chain`].
    Relaxed {
        /// The rule and its knob.
        rule: Relaxed<'a>,
        /// The draft's law; rules that accept by the target's law alone also take [`DraftLaw::OneHot`] for an unknown one.
        draft: DraftLaw<'a>,
        /// Whether the rule may emit what the target's law excludes (top-p, grammar). Refuse it by default.
        beyond_support: bool,
        /// How much bias each request may still gather; none for no limit.
        budget: Option<&'a [f64]>,
    },
}

impl Rule<'_> {
    /// Whether the output law is the target's in exact arithmetic.
    pub fn is_lossless(&self) -> bool {
        !matches!(self, Self::Relaxed { .. })
    }

    fn check(&self, batch: &Batch<'_>, sampling: &[Sampling]) -> Result<()> {
        let (law, chain) = match self {
            Self::GreedyOrFixed => return Ok(()),
            Self::Chain(law) => (law, Some("chain")),
            Self::Block(law) => (law, Some("block")),
            Self::Siblings(law, _) | Self::SpecTr(law) => (law, None),
            Self::Relaxed { draft, .. } => (draft, Some("a relaxed rule")),
        };
        law.check(batch.nodes())?;
        let sampled = |request: &batch::Request<'_>| !sampling[request.index].is_greedy();
        let ensemble = matches!(self, Self::Relaxed { rule: Relaxed::Ensemble { .. }, .. });
        if let Some(name) = chain {
            batch.requests().filter(|r| ensemble || sampled(r)).try_for_each(|request| request.require_chain(name))?;
        }
        let Self::Relaxed { rule, draft, budget, .. } = self else { return Ok(()) };
        rule.check(batch.nodes())?;
        if rule.needs_law() && matches!(draft, DraftLaw::OneHot) && batch.nodes() > 0 {
            return Err(Error::invalid(format!("{rule:?} needs the law that the draft was drawn from, got none")));
        }
        match budget {
            Some(budget) if budget.len() != batch.len() => Err(Error::invalid(format!(
                "the bias budget must have one entry per request, {}, got {}",
                batch.len(),
                budget.len()
            ))),
            Some(budget) => match budget.iter().find(|left| left.is_nan() || **left < 0.0) {
                Some(left) => Err(Error::invalid(format!("a bias budget must be at least 0, got {left}"))),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
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
    rule.check(batch, sampling)?;
    let work = batch.logits.rows().saturating_mul(batch.vocabulary);
    Ok(Verdict::from_rounds(with_rows!(batch.logits, |rows: E| {
        parallel::map(batch.len(), work, Scratch::default, |index, scratch| {
            let job = Job { request: batch.request(index), sampling: sampling[index], coins };
            let greedy = job.sampling.is_greedy();
            match rule {
                Rule::Relaxed { rule, draft, beyond_support, budget } => {
                    let budget = budget.map_or(f64::INFINITY, |budget| budget[index]);
                    let relaxation =
                        relaxed::Relaxation { rule: *rule, draft: *draft, beyond_support: *beyond_support, budget };
                    match rule {
                        Relaxed::Ensemble { target_weight } if greedy => {
                            relaxed::verify_greedy_ensemble::<E>(&job, rows, &relaxation, target_weight, scratch)
                        }
                        _ if greedy => walk::verify::<E>(&job, rows, scratch),
                        _ => relaxed::verify::<E>(&job, rows, &relaxation, scratch),
                    }
                }
                _ if greedy => walk::verify::<E>(&job, rows, scratch),
                Rule::GreedyOrFixed => walk::verify::<E>(&job, rows, scratch),
                Rule::Chain(law) => chain::verify::<E>(&job, rows, law, scratch),
                Rule::Block(law) => block::verify::<E>(&job, rows, law, scratch),
                Rule::Siblings(law, replacement) => siblings::verify::<E>(&job, rows, law, *replacement, scratch),
                Rule::SpecTr(law) => spectr::verify::<E>(&job, rows, law, scratch),
            }
        })
    })))
}
