//! `libra`: as many tokens as pay, by calibrated confidences and measured costs; the exact form of `LibraSpec`
//! (Lin et al., arXiv:2608.08721), for chains, trees and batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::allocate::{allocate, survival};
use super::base::{DraftFacts, LengthPolicy, Outcome, Round, Sight, Step};
use super::cost::CostTable;
use super::learned::{Learned, lock};
use super::length::{usable, worth_going_on};
use crate::error::{Error, Result};

/// Tokens that the outlook reaches ahead.
const HORIZON: usize = 8;
/// Rounds without a draft after which a token-by-token drafter is tried again.
const PROBE: u32 = 32;
/// Drafts that a request gets whatever is expected of them, at its start and again after one whose first token was kept:
/// what other texts taught says little about a new one.
const TRIAL: u8 = 2;

/// What a second is worth while a draft is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Price {
    /// The round's own tokens per second: the largest E(L)/C(L).
    Round,
    /// Tokens per second of the run so far: what the seconds would bring in other rounds.
    Run,
}

/// What [`Libra`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct LibraOptions {
    /// Longest draft to ask for.
    pub max_tokens: usize,
    /// Share by which a draft must beat none.
    pub hysteresis: f64,
    /// A round in so many scores a few nodes more, to learn what they are worth; 0 for never.
    pub probe_every: u64,
    /// What a second is worth.
    pub price: Price,
    /// The drafter takes time per token and asks before each.
    pub stepwise: bool,
    /// Treat every draft as drawn: decide on each token by what is known before it.
    pub causal: bool,
}

impl LibraOptions {
    /// Checks the values.
    ///
    /// # Errors
    /// If the hysteresis is not a share in [0, 1).
    pub fn checked(self) -> Result<Self> {
        if !(0.0..1.0).contains(&self.hysteresis) {
            return Err(Error::invalid(format!("hysteresis must be in [0, 1), got {}", self.hysteresis)));
        }
        Ok(self)
    }
}

/// The policy; see the module.
#[derive(Debug)]
pub struct Libra {
    options: LibraOptions,
    cost: Arc<Mutex<CostTable>>,
    learned: Arc<Mutex<Learned>>,
    /// Chains of the round in the making: survival, expected tokens, length.
    chains: Vec<(f64, f64, usize)>,
    resting: u32,
    /// Drafts on trial that each request has left.
    trials: HashMap<u64, u8>,
    survival: Vec<f32>,
    depths: Vec<u32>,
    seconds: Vec<f64>,
    open: Vec<bool>,
}

impl Libra {
    /// A policy over measured costs and what is known of the drafter.
    ///
    /// # Errors
    /// As [`LibraOptions::checked`].
    pub fn new(options: LibraOptions, cost: Arc<Mutex<CostTable>>, learned: Arc<Mutex<Learned>>) -> Result<Self> {
        Ok(Self {
            options: options.checked()?,
            cost,
            learned,
            chains: Vec::new(),
            resting: 0,
            trials: HashMap::new(),
            survival: Vec::new(),
            depths: Vec::new(),
            seconds: Vec::new(),
            open: Vec::new(),
        })
    }

    fn price(&self, learned: &Learned) -> Option<f64> {
        match self.options.price {
            Price::Round => None,
            Price::Run => learned.rate(),
        }
    }

    fn is_causal(&self, round: &Round<'_>, b: usize) -> bool {
        self.options.causal || round.drawn[b]
    }

    /// Whether request `b`, whose chain so far has `survival`, should go on; all of `going` requests would.
    #[allow(clippy::too_many_arguments, reason = "one decision's facts, used in two places")]
    fn goes_on(
        &self,
        round: &Round<'_>,
        learned: &Learned,
        b: usize,
        survival: f64,
        last: Option<f32>,
        rows: usize,
        steps: usize,
        going: usize,
        room: usize,
    ) -> bool {
        let table = lock(&self.cost);
        let now = table.seconds(round.batch(), round.context, rows);
        let total: f64 = self.chains.iter().map(|chain| chain.1).sum();
        let seconds = learned.other_seconds + steps as f64 * learned.step_seconds + now;
        let price = self.price(learned).unwrap_or(total / seconds);
        let share = going as f64;
        worth_going_on(
            total,
            seconds,
            survival,
            Some(price * if steps == 0 { 1.0 + self.options.hysteresis } else { 1.0 }),
            HORIZON.min(room),
            |k| learned.outlook.ahead(round.modes[b], last, k),
            |k| {
                let more = table.seconds(round.batch(), round.context, rows + going * (k + 1)) - now;
                ((k + 1) as f64 * learned.step_seconds + more) / share
            },
        )
    }

    /// The length of a drawn chain: each token by what is known before it is drawn.
    fn causal_length(
        &self,
        round: &Round<'_>,
        draft: &DraftFacts<'_>,
        b: usize,
        learned: &Learned,
        rows: usize,
    ) -> usize {
        let table = lock(&self.cost);
        let nodes = draft.nodes(b);
        let stated = &draft.confidence[nodes];
        let mode = round.modes[b];
        let sunk = learned.other_seconds + if self.options.stepwise { 0.0 } else { learned.draft_seconds };
        let (mut survival, mut expected) = (1.0, round.batch() as f64);
        for length in 0..stated.len() {
            // The law of the token in question is known; a confidence that depends on the token itself is not.
            let known = (!draft.sees_token).then(|| learned.calibration.rate(mode, length + 1, stated[length]));
            let before = length.checked_sub(1).map(|at| stated[at]);
            let now = table.seconds(round.batch(), round.context, rows + length);
            let goes_on = worth_going_on(
                expected,
                sunk + now,
                survival,
                self.price(learned),
                HORIZON.min(stated.len() - length),
                |k| match (k, known) {
                    (0, Some(rate)) => rate,
                    (_, Some(_)) => learned.outlook.ahead(mode, Some(stated[length]), k - 1),
                    (_, None) => learned.outlook.ahead(mode, before, k),
                },
                |k| table.seconds(round.batch(), round.context, rows + length + k + 1) - now,
            );
            if !goes_on {
                return length;
            }
            let rate = match known {
                Some(rate) => rate,
                None => learned.outlook.ahead(mode, before, 0),
            };
            survival *= f64::from(usable(rate));
            expected += survival;
        }
        stated.len()
    }
}

impl LengthPolicy for Libra {
    fn sight(&self) -> Sight {
        Sight::OwnLaw
    }

    fn budgets(&mut self, round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        for (asked, &limit) in out.iter_mut().zip(limits) {
            *asked = limit.min(self.options.max_tokens);
        }
        self.chains.clear();
        self.chains.resize(round.batch(), (1.0, 1.0, 0));
        if !self.options.stepwise {
            return;
        }
        let shared = Arc::clone(&self.learned);
        let learned = lock(&shared);
        let going = out.iter().filter(|&&asked| asked > 0).count();
        if going == 0 {
            return;
        }
        let before = out.iter().copied().max().unwrap_or(0);
        for b in 0..round.batch() {
            let room = out[b];
            let on_trial = *self.trials.entry(round.ids[b]).or_insert(TRIAL) > 0;
            if room > 0 && !on_trial && !self.goes_on(round, &learned, b, 1.0, None, round.batch(), 0, going, room) {
                out[b] = 0;
            }
        }
        if out.iter().all(|&asked| asked == 0) {
            self.resting += 1;
            if self.resting.is_multiple_of(PROBE) {
                // What a draft is worth may have changed; a short one tells.
                for (asked, &limit) in out.iter_mut().zip(limits) {
                    *asked = limit.min(before).min(2);
                }
            }
        } else {
            self.resting = 0;
        }
    }

    fn decides_stepwise(&self) -> bool {
        self.options.stepwise
    }

    fn more(&mut self, round: &Round<'_>, steps: &[Step], wanted: &mut [bool]) {
        let shared = Arc::clone(&self.learned);
        let learned = lock(&shared);
        for step in steps {
            let chain = &mut self.chains[step.request];
            let rate = learned.calibration.rate(round.modes[step.request], step.length, step.confidence);
            chain.0 *= f64::from(rate);
            chain.1 += chain.0;
            chain.2 = step.length;
        }
        let rows = round.batch() + self.chains.iter().map(|chain| chain.2).sum::<usize>();
        let drafted = self.chains.iter().map(|chain| chain.2).max().unwrap_or(0);
        let room = self.options.max_tokens.saturating_sub(drafted);
        for (step, wanted) in steps.iter().zip(wanted) {
            let survival = self.chains[step.request].0;
            let last = Some(step.confidence);
            *wanted =
                self.goes_on(round, &learned, step.request, survival, last, rows, drafted, steps.len(), room.max(1));
        }
    }

    fn trim(&mut self, round: &Round<'_>, draft: &DraftFacts<'_>, kept: &mut [bool]) {
        if draft.confidence.len() != draft.parents.len() || kept.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.learned);
        let learned = lock(&shared);
        let (mut all, mut depths) = (std::mem::take(&mut self.survival), std::mem::take(&mut self.depths));
        let rate = |b: usize, node: usize, depth: usize| {
            learned.calibration.rate(round.modes[b], depth, draft.confidence[node])
        };
        survival(draft.parents, draft.node_ptr, rate, &mut all, &mut depths);
        kept.fill(false);
        self.open.clear();
        self.open.resize(kept.len(), true);
        let mut fixed = 0;
        let mut expected = round.batch() as f64;
        for b in 0..round.batch() {
            if !self.is_causal(round, b) {
                continue;
            }
            let nodes = draft.nodes(b);
            self.open[nodes.clone()].fill(false);
            // Siblings drawn without replacement are verified together: their tree stays whole.
            let length = if draft.is_chain(b) {
                self.causal_length(round, draft, b, &learned, round.batch() + fixed)
            } else {
                nodes.len()
            };
            kept[nodes.start..nodes.start + length].fill(true);
            expected += all[nodes.start..nodes.start + length].iter().map(|&s| f64::from(s)).sum::<f64>();
            fixed += length;
        }
        let open = self.open.iter().filter(|&&open| open).count();
        if open > 0 {
            self.seconds.clear();
            self.seconds.resize(open + 1, 0.0);
            lock(&self.cost).fill(round.batch(), round.context, round.batch() + fixed, &mut self.seconds);
            let sunk = learned.other_seconds + learned.draft_seconds;
            for seconds in &mut self.seconds {
                *seconds += sunk;
            }
            let price = self.price(&learned);
            allocate(&all, &self.open, kept, expected, &self.seconds, price, self.options.hysteresis);
            if self.options.probe_every > 0 && learned.rounds % self.options.probe_every == self.options.probe_every - 1
            {
                probe(draft, &self.open, kept);
            }
        }
        (self.survival, self.depths) = (all, depths);
    }

    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        let rows = round.batch() + outcome.draft.parents.len();
        lock(&self.cost).observe(round.batch(), round.context, rows, outcome.score_seconds);
        lock(&self.learned).observe(round, outcome);
        if !self.options.stepwise {
            return;
        }
        for (b, (id, chain)) in round.ids.iter().zip(&self.chains).enumerate() {
            let kept = outcome.accepted_of(b) > 0;
            // What was drafted and cut is a draft for nothing, too.
            if kept || chain.2 > 0 || !outcome.draft.nodes(b).is_empty() {
                let trials = self.trials.entry(*id).or_insert(TRIAL);
                *trials = if kept { TRIAL } else { trials.saturating_sub(1) };
            }
        }
    }

    fn forget(&mut self, id: u64) {
        self.trials.remove(&id);
    }
}

/// Keeps one more node of each open request, the first that was cut below what is kept.
fn probe(draft: &DraftFacts<'_>, open: &[bool], kept: &mut [bool]) {
    for b in 0..draft.node_ptr.len() - 1 {
        let first = draft.node_ptr[b];
        let cut = draft.nodes(b).find(|&node| {
            let parent = draft.parents[node];
            open[node] && !kept[node] && (parent < 0 || kept[first + parent as usize])
        });
        if let Some(node) = cut {
            kept[node] = true;
        }
    }
}
