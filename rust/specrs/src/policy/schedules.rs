//! Rules that choose the next round's length from past rounds alone.

use std::sync::{Arc, Mutex};

use super::base::{DraftFacts, LengthPolicy, Outcome, Round, Sight};
use super::cost::CostTable;
use super::learned::{Learned, lock};
use super::length::{Convention, Shrinks, libra_alpha};
use crate::error::{Error, Result};

/// The same length every round.
#[derive(Debug)]
pub struct Fixed {
    /// Nodes to ask for.
    pub tokens: usize,
}

impl LengthPolicy for Fixed {
    fn sight(&self) -> Sight {
        Sight::PastRounds
    }

    fn budgets(&mut self, _round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = self.tokens.min(limit);
        }
    }
}

/// `LibraSpec`'s published iteration with a constant, on finished drafts; see [`libra_alpha`].
#[derive(Debug)]
pub struct LibraAlpha {
    /// Longest draft.
    pub max_tokens: usize,
    /// A round's cost per token over the cost of one more row.
    pub alpha: f64,
    /// How positions are counted.
    pub convention: Convention,
    /// When shrinking ends.
    pub shrinks: Shrinks,
}

impl LengthPolicy for LibraAlpha {
    fn sight(&self) -> Sight {
        Sight::WholeDraft
    }

    fn budgets(&mut self, _round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = self.max_tokens.min(limit);
        }
    }

    fn trim(&mut self, round: &Round<'_>, draft: &DraftFacts<'_>, kept: &mut [bool]) {
        if draft.confidence.len() != draft.parents.len() {
            return;
        }
        for b in 0..round.batch() {
            let nodes = draft.nodes(b);
            // The best path's length, applied to depth, is the rule for trees; a chain is its own best path.
            let mut depths = vec![0usize; nodes.len()];
            let mut path: Vec<f32> = Vec::new();
            for (node, &parent) in draft.parents[nodes.clone()].iter().enumerate() {
                depths[node] = if parent < 0 { 1 } else { depths[parent as usize] + 1 };
                // Within a layer the largest confidence stands for the best path.
                let confidence = draft.confidence[nodes.start + node];
                match path.get_mut(depths[node] - 1) {
                    Some(best) => *best = best.max(confidence),
                    None => path.push(confidence),
                }
            }
            let length = libra_alpha(&path, self.alpha, self.convention, self.shrinks).unwrap_or(path.len());
            for (kept, depth) in kept[nodes].iter_mut().zip(depths) {
                *kept = depth <= length;
            }
        }
    }
}

/// transformers' schedule: two more after a round that accepted everything, one less after any other.
#[derive(Debug)]
pub struct HfHeuristic {
    length: usize,
    max_tokens: usize,
    /// Where the length is kept from call to call; None forgets it.
    learned: Option<Arc<Mutex<Learned>>>,
}

impl HfHeuristic {
    /// Starts at `initial`, or where the last call ended if `learned` is given.
    pub fn new(initial: usize, max_tokens: usize, learned: Option<Arc<Mutex<Learned>>>) -> Self {
        let length = learned.as_ref().and_then(|shared| lock(shared).length).unwrap_or(initial);
        Self { length, max_tokens, learned }
    }
}

impl LengthPolicy for HfHeuristic {
    fn sight(&self) -> Sight {
        Sight::PastRounds
    }

    fn budgets(&mut self, _round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = self.length.min(self.max_tokens).min(limit);
        }
    }

    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        for b in 0..round.batch() {
            let scored = outcome.draft.nodes(b).len();
            if scored == 0 {
                continue;
            }
            let all = outcome.accepted_of(b) == scored;
            self.length =
                if all { (self.length + 2).min(self.max_tokens) } else { self.length.saturating_sub(1).max(1) };
        }
        if let Some(shared) = &self.learned {
            lock(shared).length = Some(self.length);
        }
    }
}

/// `SGLang`'s tiers: a running mean of accepted lengths selects one of a few lengths, with hysteresis.
#[derive(Debug)]
pub struct EmaTiers {
    tiers: Vec<usize>,
    at: usize,
    mean: Option<f64>,
    weight: f64,
    up: f64,
    down: f64,
}

impl EmaTiers {
    /// `tiers` rise; `weight` is the newest round's; `up` and `down` shift the thresholds half-way below a tier.
    ///
    /// # Errors
    /// If the tiers do not rise or the weight is no share.
    pub fn new(tiers: Vec<usize>, weight: f64, up: f64, down: f64) -> Result<Self> {
        if tiers.is_empty() || tiers.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Error::invalid(format!("tiers must be lengths that rise, got {tiers:?}")));
        }
        if !(weight > 0.0 && weight <= 1.0 && up.is_finite() && down.is_finite()) {
            return Err(Error::invalid(format!(
                "ema_tiers needs a weight in (0, 1] and finite shifts, got weight {weight}, up {up}, down {down}"
            )));
        }
        let at = tiers.len() / 2;
        Ok(Self { tiers, at, mean: None, weight, up, down })
    }
}

impl LengthPolicy for EmaTiers {
    fn sight(&self) -> Sight {
        Sight::PastRounds
    }

    fn budgets(&mut self, _round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = self.tiers[self.at].min(limit);
        }
    }

    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        let drafted = (0..round.batch()).filter(|&b| !outcome.draft.nodes(b).is_empty()).count();
        if drafted == 0 {
            return;
        }
        let accepted: usize = (0..round.batch()).map(|b| outcome.accepted_of(b)).sum();
        let accepted = accepted as f64 / drafted as f64;
        let mean = self.mean.map_or(accepted, |mean| mean + self.weight * (accepted - mean));
        self.mean = Some(mean);
        if self.at + 1 < self.tiers.len() && mean > self.tiers[self.at] as f64 - 0.5 + self.up {
            self.at += 1;
        } else if self.at > 0 && mean <= self.tiers[self.at - 1] as f64 - 0.5 + self.down {
            self.at -= 1;
        }
    }
}

/// Weight of the newest verdict in `goodput`'s acceptance rates.
const RECENT: f64 = 0.1;
/// Share by which another length must beat the present one.
const HYSTERESIS: f64 = 0.02;
/// Rounds without drafts between two probes.
const PROBE: u64 = 16;

/// The length with the most expected tokens per second by the running acceptance of each position (`vLLM` #47111).
#[derive(Debug)]
pub struct Goodput {
    max_tokens: usize,
    cost: Arc<Mutex<CostTable>>,
    learned: Arc<Mutex<Learned>>,
    stepwise: bool,
    acceptance: Vec<f64>,
    length: usize,
    rounds: u64,
}

impl Goodput {
    /// Starts from a falling guess, 0.85 · 0.98^i.
    pub fn new(max_tokens: usize, cost: Arc<Mutex<CostTable>>, learned: Arc<Mutex<Learned>>, stepwise: bool) -> Self {
        let acceptance = (0..max_tokens).map(|at| 0.85 * 0.98f64.powi(at as i32)).collect();
        Self { max_tokens, cost, learned, stepwise, acceptance, length: max_tokens.min(4), rounds: 0 }
    }

    fn choose(&self, batch: usize, context: usize) -> usize {
        let (table, learned) = (lock(&self.cost), lock(&self.learned));
        let rate_of = |length: usize| {
            let mut survival = 1.0;
            let tokens: f64 = 1.0
                + self.acceptance[..length]
                    .iter()
                    .map(|a| {
                        survival *= a;
                        survival
                    })
                    .sum::<f64>();
            let drafting = match (self.stepwise, length) {
                (_, 0) => 0.0,
                (true, steps) => steps as f64 * learned.step_seconds,
                (false, _) => learned.draft_seconds,
            };
            let seconds = learned.other_seconds + drafting + table.seconds(batch, context, batch * (1 + length));
            batch as f64 * tokens / seconds
        };
        let mut best = (rate_of(self.length) * (1.0 + HYSTERESIS), self.length);
        for length in 0..=self.max_tokens {
            let rate = rate_of(length);
            if rate > best.0 {
                best = (rate, length);
            }
        }
        best.1
    }
}

impl LengthPolicy for Goodput {
    fn sight(&self) -> Sight {
        Sight::PastRounds
    }

    fn budgets(&mut self, round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        self.length = self.choose(round.batch(), round.context);
        self.rounds = if self.length == 0 { self.rounds + 1 } else { 0 };
        // A position that is never drafted is never learned: look again now and then.
        let probing = self.length == 0 && self.rounds.is_multiple_of(PROBE);
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = if probing { limit.min(2) } else { self.length.min(limit) };
        }
    }

    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        let rows = round.batch() + outcome.draft.parents.len();
        lock(&self.cost).observe(round.batch(), round.context, rows, outcome.score_seconds);
        lock(&self.learned).observe(round, outcome);
        let acceptance = &mut self.acceptance;
        outcome.judged(|_, node, depth| {
            let hit = f64::from(u8::from(outcome.accepted[node]));
            if let Some(mean) = acceptance.get_mut(depth - 1) {
                *mean += RECENT * (hit - *mean);
            }
        });
    }
}

/// UCB over lengths (`BanditSpec`, arXiv:2505.15141): rewards are tokens per second of the round.
#[derive(Debug)]
pub struct Ucb {
    arms: Vec<usize>,
    /// Discounted plays and reward sums.
    plays: Vec<(f64, f64)>,
    discount: f64,
    /// As published: one count for all arms in the bonus, instead of each arm's own.
    compat: bool,
    largest: f64,
    played: usize,
}

impl Ucb {
    /// `arms` are lengths; each play multiplies what was learned before by `discount`.
    ///
    /// # Errors
    /// If there is no arm or the discount is no share.
    pub fn new(arms: Vec<usize>, discount: f64, compat: bool) -> Result<Self> {
        if arms.is_empty() {
            return Err(Error::invalid("ucb needs at least one arm, got none"));
        }
        if !(discount > 0.0 && discount <= 1.0) {
            return Err(Error::invalid(format!("discount must be in (0, 1], got {discount}")));
        }
        let plays = vec![(0.0, 0.0); arms.len()];
        Ok(Self { arms, plays, discount, compat, largest: 0.0, played: 0 })
    }

    fn choose(&self) -> usize {
        // Each arm twice first.
        if let Some(arm) =
            self.plays.iter().position(|&(count, _)| count < 1.5 * self.discount.powi(self.arms.len() as i32))
        {
            return arm;
        }
        let total: f64 = self.plays.iter().map(|play| play.0).sum();
        let value = |&(count, sum): &(f64, f64)| {
            let n = if self.compat { total } else { count };
            sum / count / self.largest.max(f64::MIN_POSITIVE) + (6.0 * total.ln() / n).sqrt() / 10.0
        };
        (0..self.arms.len())
            .max_by(|&a, &b| value(&self.plays[a]).total_cmp(&value(&self.plays[b])).then(b.cmp(&a)))
            .unwrap_or(0)
    }
}

impl LengthPolicy for Ucb {
    fn sight(&self) -> Sight {
        Sight::PastRounds
    }

    fn budgets(&mut self, _round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        self.played = self.choose();
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = self.arms[self.played].min(limit);
        }
    }

    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        let seconds = outcome.draft_seconds + outcome.score_seconds + outcome.other_seconds;
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        let tokens: usize = (0..round.batch()).map(|b| outcome.accepted_of(b) + 1).sum();
        let reward = tokens as f64 / seconds;
        self.largest = self.largest.max(reward);
        for play in &mut self.plays {
            play.0 *= self.discount;
            play.1 *= self.discount;
        }
        self.plays[self.played].0 += 1.0;
        self.plays[self.played].1 += reward;
    }
}
