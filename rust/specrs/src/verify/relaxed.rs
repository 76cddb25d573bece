//! Relaxed acceptance along a chain: more drafts stand, the output law differs from the target's by a metered amount.
//!
//! At each tested position the rule becomes one of three choices, made from the two laws alone, never from the coin or
//! the token:
//! - a *mixture* w * target + (1 - w) * draft (ensembles; `SpecCascade` and fuzzy acceptance are w = 0 or 1);
//! - *lenience* l: accept with probability min(1, target / (l * draft)), else norm(max(target - l * draft, 0));
//! - an acceptance *set*: tokens whose target probability is at least a bound stand, else the target's law.
//!
//! The bias of a position is the total-variation distance between the law it emits and the target's; their sum bounds
//! the distance of the whole text's law from the target's. A position that would exceed the request's budget is
//! verified exactly.

use super::chain::{Next, end_rejected, next};
use super::divergence::{Comparison, Divergence, compare, divergence, lenient_bias, set_bias};
use super::draft_law::{DraftLaw, LawRow};
use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::residual::Factors;
use super::sampling::Sampling;
use super::{Job, Round, Status};
use crate::{Error, Result};

/// A relaxed rule and its knob. The output law is not the target's.
#[derive(Clone, Copy, Debug)]
pub enum Relaxed<'a> {
    /// Emits from w * target + (1 - w) * draft; w in (0, 1] per node. Static ensemble and DIVERSED (arXiv 2604.07622).
    /// At temperature 0: the argmax of the mixture at temperature 1.
    Ensemble {
        /// Weight of the target at each node of the batch.
        target_weight: &'a [f32],
    },
    /// Leviathan's lenience l in (0, 1].
    Lenience(f32),
    /// Medusa's typical acceptance (arXiv 2401.10774): target probability above min(epsilon, delta * exp(-entropy)).
    Typical {
        /// Bound that always suffices, in (0, 1].
        epsilon: f32,
        /// Factor of the entropy term, above 0.
        delta: f32,
    },
    /// The token is among the k most probable of the target's law.
    TopK(u32),
    /// `SpecCascade`'s deferral (arXiv 2405.19261): the draft's law where its peak is at least the target's peak minus
    /// alpha times their distance, the target's law elsewhere; alpha at least 0.
    Cascade(f32),
    /// Fuzzy speculative decoding (arXiv 2502.20704): the draft's law where the divergence is below the threshold.
    Fuzzy(Divergence, f32),
}

impl Relaxed<'_> {
    /// Refuses knobs that have no meaning.
    pub(crate) fn check(&self, nodes: usize) -> Result<()> {
        let refuse =
            |name: &str, range: &str, value: f32| Err(Error::invalid(format!("{name} must be {range}, got {value}")));
        match *self {
            Self::Ensemble { target_weight } => {
                if target_weight.len() != nodes {
                    return Err(Error::invalid(format!(
                        "target_weight must have one entry per node, {nodes}, got {}",
                        target_weight.len()
                    )));
                }
                match target_weight.iter().find(|&&weight| !(weight > 0.0 && weight <= 1.0)) {
                    Some(&weight) => refuse("target_weight", "in (0, 1]", weight),
                    None => Ok(()),
                }
            }
            Self::Lenience(l) if !(l > 0.0 && l <= 1.0) => refuse("lenience", "in (0, 1]", l),
            Self::Typical { epsilon, .. } if !(epsilon > 0.0 && epsilon <= 1.0) => {
                refuse("epsilon", "in (0, 1]", epsilon)
            }
            Self::Typical { delta, .. } if !(delta > 0.0 && delta.is_finite()) => refuse("delta", "above 0", delta),
            Self::TopK(0) => refuse("k", "at least 1", 0.0),
            Self::Cascade(alpha) if !(alpha >= 0.0 && alpha.is_finite()) => refuse("alpha", "at least 0", alpha),
            Self::Fuzzy(_, threshold) if !(threshold >= 0.0 && threshold.is_finite()) => {
                refuse("threshold", "at least 0", threshold)
            }
            _ => Ok(()),
        }
    }

    /// Whether the rule cannot work without the law that the draft was drawn from.
    pub(crate) fn needs_law(&self) -> bool {
        !matches!(self, Self::Typical { .. } | Self::TopK(_))
    }
}

/// What a rule comes down to at one position.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Mixture(f32),
    Lenience(f32),
    /// Target probabilities from this bound on stand.
    Set(f32),
}

/// What a verification with a relaxed rule is told besides the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relaxation<'a> {
    pub(crate) rule: Relaxed<'a>,
    pub(crate) draft: DraftLaw<'a>,
    /// Whether mixtures may emit what the target's law excludes (top-p, grammar).
    pub(crate) beyond_support: bool,
    /// How much bias the request may still gather.
    pub(crate) budget: f64,
}

impl Relaxation<'_> {
    /// The choice at a position; `None` for an unsound draft row.
    fn choose<E: Element>(&self, law: &RowLaw<'_, E>, row: LawRow<'_>, node: usize) -> Option<Choice> {
        let deferred = |defer: bool| Choice::Mixture(f32::from(u8::from(!defer)));
        Some(match self.rule {
            Relaxed::Ensemble { target_weight } => Choice::Mixture(target_weight[node]),
            Relaxed::Lenience(lenience) => Choice::Lenience(lenience),
            Relaxed::Typical { epsilon, delta } => {
                Choice::Set(((f64::from(delta) * (-law.entropy()).exp()) as f32).min(epsilon).next_up())
            }
            Relaxed::TopK(k) => Choice::Set(law.kth_prob(k as usize)),
            Relaxed::Cascade(alpha) => {
                let distance = compare(law, row)?.short;
                deferred(f64::from(row.max()) >= f64::from(law.max_prob()) - f64::from(alpha) * distance)
            }
            Relaxed::Fuzzy(kind, threshold) => deferred(divergence(law, row, kind)? < f64::from(threshold)),
        })
    }

    /// Total-variation distance between what `choice` emits and the target's law; `None` for an unsound draft row.
    fn bias<E: Element>(&self, law: &RowLaw<'_, E>, row: LawRow<'_>, choice: Choice) -> Option<f64> {
        match choice {
            Choice::Mixture(weight) => {
                let Comparison { short, excess } = compare(law, row)?;
                Some((1.0 - f64::from(weight)) * if self.beyond_support { short } else { excess })
            }
            Choice::Lenience(lenience) => lenient_bias(law, row, lenience),
            Choice::Set(bound) => set_bias(law, row, bound),
        }
    }

    /// Whether the token stands under `choice`, and the residual's factors if it falls (`None`: the target's law).
    fn decide(&self, choice: Choice, target: f32, draft: f32, coin: f64) -> (bool, Option<Factors>) {
        let (target, draft) = (f64::from(target), f64::from(draft));
        match choice {
            Choice::Mixture(weight) => {
                let weight = f64::from(weight);
                let supported = self.beyond_support || target > 0.0;
                let mixed = (1.0 - weight) * draft + weight * target;
                (supported && coin * draft < mixed, Some(Factors::PLAIN))
            }
            Choice::Lenience(lenience) => {
                let stands = coin * f64::from(lenience) * draft < target;
                (stands, Some(Factors { target: 1.0, draft: lenience }))
            }
            Choice::Set(bound) => (target > 0.0 && target >= f64::from(bound), None),
        }
    }
}

/// Verifies one request whose nodes form a chain, at a positive temperature.
pub(crate) fn verify<E: Element>(
    job: &Job<'_>,
    rows: &[&[E::Bits]],
    relaxation: &Relaxation<'_>,
    scratch: &mut Scratch,
) -> Round {
    let mut round = Round::new(&job.request);
    loop {
        let child = round.path.len();
        let row = job.request.first_row + child;
        let Ok(mut law) = RowLaw::<E>::new(rows[row], job.sampling, scratch) else {
            return round.cut();
        };
        let (token, draft, draft_prob) = match next(job, &relaxation.draft, child, law.vocabulary()) {
            Next::End(status) => return round.end(law.draw(job.coins.emit[row]), status),
            Next::Token(token, draft, draft_prob) => (token, draft, draft_prob),
        };
        let node = job.request.first_node + child;
        let choice = relaxation.choose(&law, draft, node);
        let Some((choice, bias)) = choice.and_then(|c| relaxation.bias(&law, draft, c).map(|bias| (c, bias))) else {
            return round.end(law.draw(job.coins.emit[row]), Status::BadDraft);
        };
        let affordable = round.bias + bias <= relaxation.budget;
        let choice = if affordable { choice } else { Choice::Mixture(1.0) };
        let (stands, factors) = relaxation.decide(choice, law.prob(token), draft_prob, job.coins.accept[row]);
        round.bias += if affordable { bias } else { 0.0 };
        if !stands {
            return match factors {
                Some(factors) => end_rejected(round, &mut law, draft, factors, job.coins.emit[row]),
                None => round.end(law.draw(job.coins.emit[row]), Status::Ok),
            };
        }
        round.path.push(child as i32);
    }
}

/// Verifies one request under an ensemble at temperature 0: greedy decoding of the mixture of both models' laws at
/// temperature 1, the target's own argmax as the bonus behind the whole draft.
pub(crate) fn verify_greedy_ensemble<E: Element>(
    job: &Job<'_>,
    rows: &[&[E::Bits]],
    relaxation: &Relaxation<'_>,
    target_weight: &[f32],
    scratch: &mut Scratch,
) -> Round {
    let mut round = Round::new(&job.request);
    let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    loop {
        let child = round.path.len();
        let row = job.request.first_row + child;
        let Ok(law) = RowLaw::<E>::new(rows[row], sampling, scratch) else {
            return round.cut();
        };
        let plain = law.argmax();
        let Some(&token) = job.request.tokens.get(child) else {
            return round.end(plain, Status::Ok);
        };
        let node = job.request.first_node + child;
        let mixed = law.mixture_argmax(relaxation.draft.row(node, token), target_weight[node]);
        let bias = f64::from(u8::from(mixed != plain));
        let affordable = round.bias + bias <= relaxation.budget;
        let wanted = if affordable { mixed } else { plain };
        round.bias += if affordable { bias } else { 0.0 };
        if token != wanted {
            return round.end(wanted, Status::Ok);
        }
        round.path.push(child as i32);
    }
}
