//! Rules that decide token by token whether a chain goes on: append a token, look at it, draft another or stop.
//!
//! The token that is looked at is verified in any case, so every rule here is exact for drawn drafts too. Over a drafter
//! that brings a whole chain at once (cache, block) the same rules cut the finished chain behind the first token that
//! stops it.

use super::base::{DraftFacts, LengthPolicy, Outcome, Round, Sight, Step};
use crate::error::{Error, Result};

/// Nats of entropy above which SVIP stops: sqrt(0.15 H) > 0.3.
pub const SVIP_ENTROPY_SHARE: f64 = 0.15;
/// `AdaEDL`'s bound on acceptance: 1 − sqrt(0.2 H).
pub const ADAEDL_ENTROPY_SHARE: f64 = 0.2;
/// Misses weigh three times as much as false alarms when the threshold of `hf_confidence` is chosen.
const MISS_WEIGHT: f64 = 3.0;
/// Fewer verdicts than this leave the threshold of `hf_confidence` where it is.
const FEWEST: usize = 6;

/// One rule of this module.
#[derive(Clone, Debug)]
pub enum Rule {
    /// transformers' assisted generation: stop behind a token of a probability below the threshold; `adapts` moves the
    /// threshold to the best point of the ROC curve of what was accepted.
    HfConfidence {
        /// Probability below which to stop.
        threshold: f64,
        /// Learn it from verdicts.
        adapts: bool,
    },
    /// SVIP (arXiv:2411.18462): stop behind a token whose law has an entropy H with sqrt(0.15 H) above the threshold.
    Svip {
        /// Of sqrt(0.15 H); 0.3 in the paper.
        threshold: f64,
    },
    /// `AdaEDL` (arXiv:2410.18351): stop *before* a token whose law promises an acceptance 1 − sqrt(0.2 H) below λ; λ
    /// follows the acceptance rate.
    AdaEdl {
        /// λ at the start.
        threshold: f64,
    },
    /// `SpecDec++` (arXiv:2405.19715): stop when a trained head's P(any rejection so far) exceeds the threshold.
    SpecDecPp {
        /// Of 1 − the product of the head's predictions.
        threshold: f64,
        /// Tokens that are drafted in any case.
        least: usize,
    },
    /// DISCO (arXiv:2405.04304): stop behind a token that a trained classifier expects to be rejected.
    Disco {
        /// Of the expected probability of a rejection.
        threshold: f64,
    },
    /// `DLoop` (arXiv:2610.07659): whole blocks, another one while the last block's log-probabilities sum to the gate or
    /// more.
    DLoop {
        /// Nats, at most 0.
        gate: f64,
        /// Tokens of a block.
        block: usize,
    },
}

impl Rule {
    /// Refuses thresholds that mean nothing.
    ///
    /// # Errors
    /// If a threshold is outside the range of what it is compared with.
    pub fn checked(self) -> Result<Self> {
        let share = |name: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(format!("threshold of {name} must be in [0, 1], got {value}")))
        };
        match self {
            Self::HfConfidence { threshold, .. } => share("hf_confidence", threshold)?,
            Self::AdaEdl { threshold } => share("adaedl", threshold)?,
            Self::SpecDecPp { threshold, .. } => share("specdecpp", threshold)?,
            Self::Disco { threshold } => share("disco", threshold)?,
            Self::Svip { threshold } if !(threshold.is_finite() && threshold > 0.0) => {
                return Err(Error::invalid(format!("threshold of svip must be above 0, got {threshold}")));
            }
            Self::DLoop { gate, block } if !(gate <= 0.0 && gate.is_finite() && block > 0) => {
                return Err(Error::invalid(format!(
                    "dloop needs a gate of at most 0 and blocks of at least 1 token, got {gate} and {block}"
                )));
            }
            Self::Svip { .. } | Self::DLoop { .. } => {}
        }
        Ok(self)
    }
}

/// One request's chain of the round in the making.
#[derive(Clone, Debug)]
struct Chain {
    /// Probabilities of the drafted tokens.
    probs: Vec<f32>,
    /// Product of a head's predictions (`SpecDec++`), or log-probability sum of the block (`DLoop`).
    sum: f64,
    /// The last token was looked at and found not worth verifying (`AdaEDL`).
    drop_last: bool,
}

/// A stopping rule as a policy.
#[derive(Debug)]
pub struct Stopping {
    rule: Rule,
    max_tokens: usize,
    /// The drafter asks after each token; otherwise finished chains are cut.
    stepwise: bool,
    chains: Vec<Chain>,
    /// Verdicts on tokens of known probability (`hf_confidence`).
    verdicts: Vec<(f32, bool)>,
    /// `AdaEDL`'s running acceptance rate.
    acceptance: f64,
}

impl Stopping {
    /// A policy that drafts at most `max_tokens` tokens a round.
    ///
    /// # Errors
    /// As [`Rule::checked`].
    pub fn new(rule: Rule, max_tokens: usize, stepwise: bool) -> Result<Self> {
        let rule = rule.checked()?;
        Ok(Self { rule, max_tokens, stepwise, chains: Vec::new(), verdicts: Vec::new(), acceptance: 1.0 })
    }

    /// The threshold as it is now.
    pub fn threshold(&self) -> f64 {
        match self.rule {
            Rule::HfConfidence { threshold, .. }
            | Rule::Svip { threshold }
            | Rule::AdaEdl { threshold }
            | Rule::SpecDecPp { threshold, .. }
            | Rule::Disco { threshold } => threshold,
            Rule::DLoop { gate, .. } => gate,
        }
    }

    /// Takes a token into its chain and tells whether the chain goes on.
    fn goes_on(rule: &Rule, chain: &mut Chain, step: &Step) -> bool {
        chain.probs.push(step.token_prob);
        match *rule {
            Rule::HfConfidence { threshold, .. } => f64::from(step.token_prob) >= threshold,
            Rule::Svip { threshold } => (SVIP_ENTROPY_SHARE * f64::from(step.entropy)).sqrt() <= threshold,
            Rule::AdaEdl { threshold } => {
                let promised = 1.0 - (ADAEDL_ENTROPY_SHARE * f64::from(step.entropy)).sqrt();
                let stops = promised < threshold;
                // The first token is always verified, or nothing would ever be learned.
                chain.drop_last = stops && step.length > 1;
                !stops
            }
            Rule::SpecDecPp { threshold, least } => {
                chain.sum *= f64::from(step.head);
                step.length < least || 1.0 - chain.sum <= threshold
            }
            Rule::Disco { threshold } => 1.0 - f64::from(step.head) <= threshold,
            Rule::DLoop { gate, block } => {
                chain.sum += f64::from(step.token_prob).ln();
                if !step.length.is_multiple_of(block) {
                    return true;
                }
                // Each block answers for itself: a sure one does not make up for a doubtful one.
                std::mem::take(&mut chain.sum) >= gate
            }
        }
    }

    fn restart(&mut self, batch: usize) {
        let sum = if matches!(self.rule, Rule::SpecDecPp { .. }) { 1.0 } else { 0.0 };
        self.chains.clear();
        self.chains.resize(batch, Chain { probs: Vec::new(), sum, drop_last: false });
    }
}

impl LengthPolicy for Stopping {
    fn sight(&self) -> Sight {
        match self.rule {
            Rule::AdaEdl { .. } => Sight::OwnLaw,
            _ => Sight::DraftedTokens,
        }
    }

    fn budgets(&mut self, round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        self.restart(round.batch());
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = limit.min(self.max_tokens);
        }
    }

    fn decides_stepwise(&self) -> bool {
        self.stepwise
    }

    fn more(&mut self, _round: &Round<'_>, steps: &[Step], wanted: &mut [bool]) {
        for (step, wanted) in steps.iter().zip(wanted) {
            *wanted = Self::goes_on(&self.rule, &mut self.chains[step.request], step);
        }
    }

    fn trim(&mut self, round: &Round<'_>, draft: &DraftFacts<'_>, kept: &mut [bool]) {
        if self.stepwise {
            for (b, chain) in self.chains.iter().enumerate() {
                let nodes = draft.nodes(b);
                if chain.drop_last && nodes.len() > 1 {
                    kept[nodes.end - 1] = false;
                }
            }
            return;
        }
        if draft.confidence.len() != draft.parents.len() {
            return;
        }
        for b in 0..round.batch() {
            let nodes = draft.nodes(b);
            if !draft.is_chain(b) {
                continue;
            }
            let first = nodes.start;
            for node in nodes.clone() {
                let confidence = draft.confidence[node];
                let length = node - first + 1;
                let step =
                    Step { request: b, length, confidence, entropy: f32::NAN, token_prob: confidence, head: f32::NAN };
                if !Self::goes_on(&self.rule, &mut self.chains[b], &step) {
                    kept[node + 1..nodes.end].fill(false);
                    break;
                }
            }
        }
    }

    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        // A round that no draft was asked for leaves the chains of an earlier one, perhaps of more requests.
        for (b, chain) in self.chains.iter().enumerate().take(round.batch()) {
            let scored = outcome.draft.nodes(b).len();
            if scored == 0 {
                continue;
            }
            let accepted = outcome.accepted_of(b);
            match &mut self.rule {
                Rule::HfConfidence { threshold, adapts: true } => {
                    let known = chain.probs.iter().take(scored.min(accepted + 1)).enumerate();
                    self.verdicts.extend(known.map(|(at, &prob)| (prob, at < accepted)));
                    if let Some(best) = best_threshold(&self.verdicts) {
                        *threshold = best;
                    }
                }
                Rule::AdaEdl { threshold } => {
                    self.acceptance = 0.5 * self.acceptance + 0.5 * accepted as f64 / scored as f64;
                    let step = if self.acceptance < 0.9 {
                        0.01
                    } else if accepted == self.max_tokens {
                        0.0
                    } else {
                        -0.01
                    };
                    let aim = *threshold + step;
                    *threshold = (0.9 * *threshold + 0.1 * aim).clamp(0.0, 1.0);
                }
                _ => {}
            }
        }
    }
}

/// The threshold on probabilities with the least `FPR + 3 FNR`, the largest of equals, over all that were seen; None
/// with fewer than six verdicts or verdicts of one kind.
pub fn best_threshold(verdicts: &[(f32, bool)]) -> Option<f64> {
    let positive = verdicts.iter().filter(|(_, accepted)| *accepted).count();
    let negative = verdicts.len() - positive;
    if verdicts.len() < FEWEST || positive == 0 || negative == 0 {
        return None;
    }
    let mut sorted = verdicts.to_vec();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
    // A threshold above all probabilities: no false alarm, every acceptance missed.
    let mut best = (MISS_WEIGHT, f64::INFINITY);
    let (mut hits, mut alarms) = (0, 0);
    for (at, &(prob, accepted)) in sorted.iter().enumerate() {
        if accepted {
            hits += 1;
        } else {
            alarms += 1;
        }
        if sorted.get(at + 1).is_some_and(|next| next.0 == prob) {
            continue;
        }
        let missed = 1.0 - f64::from(hits) / positive as f64;
        let loss = f64::from(alarms) / negative as f64 + MISS_WEIGHT * missed;
        if loss < best.0 {
            best = (loss, f64::from(prob));
        }
    }
    Some(best.1)
}

#[cfg(test)]
mod tests {
    use super::super::calibration::Mode;
    use super::*;

    fn run(policy: &mut Stopping, entropies: &[f32], probs: &[f32], heads: &[f32]) -> usize {
        let (ids, modes, drawn) = ([0], [Mode::default()], [true]);
        let round = Round { ids: &ids, modes: &modes, drawn: &drawn, context: 0 };
        let mut asked = [0];
        policy.budgets(&round, &[100], &mut asked);
        let mut length = 0;
        while length < asked[0] {
            let at = |values: &[f32]| values.get(length).copied().unwrap_or(f32::NAN);
            let (confidence, entropy, token_prob, head) = (at(probs), at(entropies), at(probs), at(heads));
            length += 1;
            let step = Step { request: 0, length, confidence, entropy, token_prob, head };
            let mut wanted = [true];
            policy.more(&round, &[step], &mut wanted);
            if !wanted[0] {
                break;
            }
        }
        length
    }

    #[test]
    fn each_rule_stops_where_it_says() {
        let of = |rule| Stopping::new(rule, 20, true).expect("valid");
        let mut hf = of(Rule::HfConfidence { threshold: 0.4, adapts: false });
        assert_eq!(run(&mut hf, &[], &[0.9, 0.41, 0.39, 0.9], &[]), 3, "the doubtful token is verified too");
        let mut svip = of(Rule::Svip { threshold: 0.3 });
        assert_eq!(run(&mut svip, &[0.1, 0.59, 0.61, 0.0], &[], &[]), 3);
        let mut adaedl = of(Rule::AdaEdl { threshold: 0.5 });
        assert_eq!(run(&mut adaedl, &[0.1, 1.2, 1.3], &[], &[]), 3, "1 - sqrt(0.2 * 1.3) < 0.5 < 1 - sqrt(0.2 * 1.2)");
        assert!(adaedl.chains[0].drop_last);
        assert_eq!(run(&mut adaedl, &[9.0], &[], &[]), 1);
        assert!(!adaedl.chains[0].drop_last, "the first token is always verified");
        let mut specdec = of(Rule::SpecDecPp { threshold: 0.3, least: 2 });
        assert_eq!(run(&mut specdec, &[], &[], &[0.1, 0.9, 0.9]), 2, "at least two");
        assert_eq!(run(&mut specdec, &[], &[], &[0.95, 0.95, 0.95, 0.8, 0.9]), 4);
        let mut disco = of(Rule::Disco { threshold: 0.5 });
        assert_eq!(run(&mut disco, &[], &[], &[0.9, 0.6, 0.4, 0.9]), 3);
        let mut dloop = of(Rule::DLoop { gate: -0.5, block: 2 });
        assert_eq!(run(&mut dloop, &[], &[0.9, 0.8, 0.99, 0.5, 0.9], &[]), 4, "whole blocks");
        assert_eq!(run(&mut dloop, &[], &[0.9; 20], &[]), 20);
    }

    #[test]
    fn finished_chains_are_cut_behind_the_token_that_stops_them() {
        let mut policy = Stopping::new(Rule::HfConfidence { threshold: 0.4, adapts: true }, 20, false).expect("valid");
        let (ids, modes, drawn) = ([0, 1], [Mode::default(); 2], [false; 2]);
        let round = Round { ids: &ids, modes: &modes, drawn: &drawn, context: 0 };
        let mut asked = [0, 0];
        policy.budgets(&round, &[4, 1], &mut asked);
        assert_eq!(asked, [4, 1]);
        let draft = DraftFacts {
            parents: &[-1, 0, 1, 2, -1],
            confidence: &[0.9, 0.2, 0.9, 0.9, 0.1],
            node_ptr: &[0, 4, 5],
            sees_token: true,
        };
        let mut kept = [true; 5];
        policy.trim(&round, &draft, &mut kept);
        assert_eq!(kept, [true, true, false, false, true]);
    }

    #[test]
    fn the_threshold_moves_to_the_best_point_of_the_roc_curve() {
        assert_eq!(best_threshold(&[(0.9, true); 10]), None, "one class says nothing");
        let verdicts = [(0.9, true), (0.8, true), (0.7, false), (0.6, true), (0.3, false), (0.2, false)];
        // At 0.6: no miss, one false alarm in three. At 0.8: a miss in three weighs 1.
        assert!((best_threshold(&verdicts).expect("both classes") - 0.6).abs() < 1e-6);
        assert_eq!(best_threshold(&verdicts[..5]), None, "five are too few");
    }

    #[test]
    fn adaedl_follows_the_acceptance_rate() {
        let mut policy = Stopping::new(Rule::AdaEdl { threshold: 0.5 }, 4, true).expect("valid");
        let (ids, modes, drawn) = ([0], [Mode::default()], [true]);
        let round = Round { ids: &ids, modes: &modes, drawn: &drawn, context: 0 };
        let mut asked = [0];
        let draft = DraftFacts { parents: &[-1, 0], confidence: &[], node_ptr: &[0, 2], sees_token: false };
        let mut outcome = Outcome {
            draft,
            accepted: &[false, false],
            steps: 2,
            draft_seconds: 0.0,
            score_seconds: 1.0,
            other_seconds: 0.0,
        };
        for _ in 0..50 {
            policy.budgets(&round, &[4], &mut asked);
            policy.observe(&round, &outcome);
        }
        assert!(policy.threshold() > 0.54, "rejections raise the bar: {}", policy.threshold());
        let raised = policy.threshold();
        outcome.accepted = &[true, true];
        for _ in 0..50 {
            policy.observe(&round, &outcome);
        }
        assert!(policy.threshold() < raised);
    }

    #[test]
    fn wrong_thresholds_are_refused() {
        for rule in [
            Rule::HfConfidence { threshold: 1.5, adapts: false },
            Rule::Svip { threshold: 0.0 },
            Rule::AdaEdl { threshold: f64::NAN },
            Rule::DLoop { gate: 0.5, block: 2 },
            Rule::DLoop { gate: -0.5, block: 0 },
            Rule::Disco { threshold: -0.1 },
        ] {
            assert!(Stopping::new(rule.clone(), 4, true).is_err(), "{rule:?}");
        }
    }
}
