//! What a forward costs by the number of its rows: timings where there are any, a guess's shape beyond them.

use crate::error::{Error, Result};

/// Weight of the newest timing.
const RECENT: f64 = 0.1;
/// How much of that goes to the row counts that were not timed: a busy machine slows everything.
const SHARED: f64 = 0.2;
/// A timing further off than this factor says more about the machine than about the forward.
const TRUSTED: f64 = 2.0;
/// Row counts closer than this factor share a point, so that a batch of any size leaves few of them.
const APART: f64 = 1.125;
/// Least guess of a forward, so that ratios to it exist.
const LEAST: f64 = 1e-9;

/// A straight line whose ratios alone count until the first timing gives it a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Guess {
    pub(super) base: f64,
    pub(super) slope: f64,
}

impl Guess {
    fn seconds(self, rows: f64) -> f64 {
        self.base + self.slope * rows
    }
}

/// Seconds of a forward by number of rows; never falling. Between timed row counts the cost is interpolated, never smoothed
/// over a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    guess: Guess,
    /// Timed row counts, rising, and their seconds.
    timed: Vec<(f64, f64)>,
}

impl Cost {
    /// A guess that timings replace; only ratios of costs matter before.
    pub fn new(base: f64, slope: f64) -> Self {
        Self { guess: Guess { base: base.max(LEAST), slope }, timed: Vec::new() }
    }

    /// A measured table: rising row counts, and the seconds of a forward over each. Beyond it the line from its
    /// first point to its last goes on.
    ///
    /// # Errors
    /// If the two differ in length or are empty, rows do not rise from 1, or a time is not positive.
    pub fn table(rows: &[f64], seconds: &[f64]) -> Result<Self> {
        let rising = rows.first() == Some(&1.0) && rows.is_sorted_by(|a, b| a < b);
        if rows.len() != seconds.len() || !rising || seconds.iter().any(|&s| !(s.is_finite() && s > 0.0)) {
            return Err(Error::invalid(format!(
                "a cost table needs row counts that rise from 1 and as many positive times, got {rows:?} and {seconds:?}"
            )));
        }
        let timed = rows.iter().copied().zip(seconds.iter().copied()).collect();
        let mut cost = Self { guess: Guess { base: seconds[0], slope: 0.0 }, timed };
        cost.never_fall();
        Ok(cost)
    }

    fn never_fall(&mut self) {
        let mut most = 0.0_f64;
        for (_, seconds) in &mut self.timed {
            most = most.max(*seconds);
            *seconds = most;
        }
    }

    /// Learns from one timing. Values that no clock gives are ignored.
    pub fn note(&mut self, rows: usize, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0 && rows > 0) {
            return;
        }
        // The first timing sets the scale of the guess.
        self.scale_guess(seconds / self.seconds(rows));
        let expected = self.seconds(rows);
        let ratio = (seconds / expected).clamp(1.0 / TRUSTED, TRUSTED);
        let rows = rows as f64;
        let near = |&(point, _): &(f64, f64)| rows.max(point) < APART * rows.min(point);
        if let Some(at) = self.timed.iter().position(near) {
            self.timed[at].1 *= 1.0 + RECENT * (ratio - 1.0);
        } else {
            let at = self.timed.partition_point(|&(point, _)| point < rows);
            // Between timed points their line is known about as well; beyond them there was a guess.
            let weight = if (1..self.timed.len()).contains(&at) { RECENT } else { 1.0 };
            self.timed.insert(at, (rows, expected * (1.0 + weight * (ratio - 1.0))));
        }
        // The row counts that were not timed now follow a little.
        let shared = 1.0 + SHARED * RECENT * (ratio - 1.0);
        for point in self.timed.iter_mut().filter(|point| !near(point)) {
            point.1 *= shared;
        }
        self.never_fall();
    }

    /// Whether the seconds are seconds, and not a guess whose ratios alone count.
    pub(super) fn is_measured(&self) -> bool {
        !self.timed.is_empty()
    }

    /// Multiplies a guess, so that it keeps its ratio to another cost of which a first timing came.
    pub(super) fn scale_guess(&mut self, ratio: f64) {
        if !self.is_measured() && ratio.is_finite() && ratio > 0.0 {
            self.guess = Guess { base: self.guess.base * ratio, slope: self.guess.slope * ratio };
        }
    }

    /// Seconds for a forward over `rows` rows.
    #[inline]
    pub fn seconds(&self, rows: usize) -> f64 {
        let rows = rows as f64;
        let after = self.timed.partition_point(|&(point, _)| point < rows);
        let line = |(x0, y0): (f64, f64), (x1, y1): (f64, f64)| y0 + (rows - x0) / (x1 - x0) * (y1 - y0);
        let guessed = |(point, seconds): (f64, f64)| seconds * self.guess.seconds(rows) / self.guess.seconds(point);
        match (after.checked_sub(1).map(|before| self.timed[before]), self.timed.get(after).copied()) {
            (None, None) => self.guess.seconds(rows),
            (Some(before), Some(after)) => line(before, after),
            (None, Some(first)) => guessed(first),
            // On the line from the first point, for the last two may be level by chance, or as was guessed if that is more.
            (Some(last), None) => {
                let onward = if self.timed.len() > 1 { line(self.timed[0], last) } else { last.1 };
                onward.max(guessed(last))
            }
        }
    }

    pub(super) fn guess(&self) -> Guess {
        self.guess
    }

    /// The timed row counts and their seconds.
    pub(super) fn timed(&self) -> &[(f64, f64)] {
        &self.timed
    }

    /// A cost of these parts, if they make one.
    pub(super) fn from_parts(guess: Guess, timed: Vec<(f64, f64)>) -> Option<Self> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let sound = positive(guess.seconds(1.0))
            && guess.base.min(guess.slope) >= 0.0
            && timed.iter().all(|&(rows, seconds)| positive(rows) && positive(seconds))
            && timed.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        sound.then_some(Self { guess, timed })
    }
}
