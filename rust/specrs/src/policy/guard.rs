//! Never slower: watches what drafting brings and rests it, for a request or for all, while plain decoding is faster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::base::{DraftFacts, LengthPolicy, Outcome, Round, Sight, Step};
use super::cost::CostTable;
use super::learned::lock;

/// Weight kept by past rounds in a record.
const KEEP: f64 = 0.93;
/// Drafting rounds, older ones counting less, after which a record counts.
const FEWEST: f64 = 5.0;
/// Share of the plain time by which drafting may be slower before it rests.
const TOLERANCE: f64 = 1.01;
/// Rounds of the first rest; each further one is twice as long, up to the longest.
const SHORTEST_REST: u32 = 16;
const LONGEST_REST: u32 = 256;
/// Drafting rounds of a trial after a rest.
const TRIAL: u32 = 3;
/// Share of the plain time at which a trial is lost one round early.
const LOST: f64 = 1.25;

/// What drafting cost and brought, lately.
#[derive(Clone, Debug, Default)]
struct Record {
    rounds: f64,
    /// Seconds of drafting rounds, or a request's share of them.
    seconds: f64,
    /// Seconds that plain decoding would have taken for the same tokens.
    plain: f64,
    /// Rounds left to rest, and how long the next rest will be.
    rest: u32,
    next_rest: u32,
    trial: u32,
}

impl Record {
    fn add(&mut self, seconds: f64, plain: f64) {
        for sum in [&mut self.rounds, &mut self.seconds, &mut self.plain] {
            *sum *= KEEP;
        }
        self.rounds += 1.0;
        self.seconds += seconds;
        self.plain += plain;
        let slower = self.seconds > TOLERANCE * self.plain;
        if self.trial > 0 {
            self.trial -= 1;
            let lost = self.trial == 1 && self.seconds > LOST * self.plain;
            if lost || (self.trial == 0 && slower) {
                self.trial = 0;
                self.begin_rest();
            }
        } else if self.rounds >= FEWEST && slower {
            self.begin_rest();
        }
        if !slower && self.trial == 0 && self.rounds >= 2.0 * FEWEST {
            self.next_rest = SHORTEST_REST;
        }
    }

    fn begin_rest(&mut self) {
        self.rest = self.next_rest.max(SHORTEST_REST);
        self.next_rest = (self.rest * 2).min(LONGEST_REST);
    }

    /// Passes one round; whether drafting rests in it.
    fn rests(&mut self) -> bool {
        if self.rest == 0 {
            return false;
        }
        self.rest -= 1;
        if self.rest == 0 {
            // The trial is judged by itself.
            (self.rounds, self.seconds, self.plain) = (0.0, 0.0, 0.0);
            self.trial = TRIAL;
        }
        true
    }
}

/// What the guard did, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GuardFacts {
    /// Rounds in which drafting rested for every request.
    pub rested_rounds: u64,
    /// All rounds seen.
    pub rounds: u64,
    /// How often a rest began, for all or for one request.
    pub rests: u64,
    /// Time of drafting rounds over the time of plain decoding for the same tokens, when the last rest began.
    pub slowdown: f64,
}

/// A policy under watch.
#[derive(Debug)]
pub struct Guarded {
    inner: Box<dyn LengthPolicy>,
    cost: Arc<Mutex<CostTable>>,
    all: Record,
    each: HashMap<u64, Record>,
    facts: GuardFacts,
}

impl Guarded {
    /// Watches `inner`, with plain decoding's cost from the table.
    pub fn new(inner: Box<dyn LengthPolicy>, cost: Arc<Mutex<CostTable>>) -> Self {
        Self { inner, cost, all: Record::default(), each: HashMap::new(), facts: GuardFacts::default() }
    }

    /// What it did so far.
    pub fn facts(&self) -> GuardFacts {
        self.facts
    }
}

impl LengthPolicy for Guarded {
    fn sight(&self) -> Sight {
        self.inner.sight()
    }

    fn budgets(&mut self, round: &Round<'_>, limits: &[usize], out: &mut [usize]) {
        self.facts.rounds += 1;
        let all_rest = self.all.rests();
        self.facts.rested_rounds += u64::from(all_rest);
        let mut allowed = limits.to_vec();
        for (id, limit) in round.ids.iter().zip(&mut allowed) {
            if self.each.get_mut(id).is_some_and(Record::rests) || all_rest {
                *limit = 0;
            }
        }
        self.inner.budgets(round, &allowed, out);
    }

    fn more(&mut self, round: &Round<'_>, steps: &[Step], wanted: &mut [bool]) {
        self.inner.more(round, steps, wanted);
    }

    fn decides_stepwise(&self) -> bool {
        self.inner.decides_stepwise()
    }

    fn trim(&mut self, round: &Round<'_>, draft: &DraftFacts<'_>, kept: &mut [bool]) {
        self.inner.trim(round, draft, kept);
    }

    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        self.inner.observe(round, outcome);
        let nodes = outcome.draft.parents.len();
        let (draft, score) = (outcome.draft_seconds, outcome.score_seconds);
        let sane = draft >= 0.0 && score > 0.0 && (draft + score).is_finite();
        // A round that drafted and scored nothing is judged too: it paid for the drafting.
        if !sane || (nodes == 0 && outcome.steps == 0) {
            return;
        }
        let batch = round.batch();
        let (plain, expected) = {
            let table = lock(&self.cost);
            (table.seconds(batch, round.context, batch), table.seconds(batch, round.context, batch + nodes))
        };
        // By the table on both sides, which follows the rounds: a slow moment of the machine is not the draft's fault.
        let accepted: usize = (0..batch).map(|b| outcome.accepted_of(b)).sum();
        let before = self.all.rest;
        self.all.add(draft + expected, plain * (batch + accepted) as f64 / batch as f64);
        if before == 0 && self.all.rest > 0 {
            self.facts.rests += 1;
            self.facts.slowdown = self.all.seconds / self.all.plain;
        }
        if batch == 1 {
            return;
        }
        let drafting = (0..batch).filter(|&b| !outcome.draft.nodes(b).is_empty()).count().max(1);
        for b in 0..batch {
            let own = outcome.draft.nodes(b).len();
            if own == 0 {
                continue;
            }
            let record = self.each.entry(round.ids[b]).or_default();
            let share = (expected - plain) * own as f64 / nodes as f64 + draft / drafting as f64;
            let own_plain = plain / batch as f64;
            let before = record.rest;
            record.add(own_plain + share, own_plain * (1 + outcome.accepted_of(b)) as f64);
            self.facts.rests += u64::from(before == 0 && record.rest > 0);
        }
    }

    fn forget(&mut self, id: u64) {
        self.each.remove(&id);
        self.inner.forget(id);
    }
}
