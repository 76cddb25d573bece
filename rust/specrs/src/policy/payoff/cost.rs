//! What a forward costs by the number of its rows: a table of points, learned on while running.

use crate::error::{Error, Result};

/// Row counts of a guessed table; between them the cost is interpolated, never smoothed over a step.
const POINTS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0];
/// Weight of the newest timing.
const RECENT: f64 = 0.1;
/// A timing further off than this factor says more about the machine than about the forward.
const TRUSTED: f64 = 2.0;

/// Seconds of a forward by number of rows; never falling.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    rows: Vec<f64>,
    seconds: Vec<f64>,
    /// Whether the seconds are seconds; a guess holds ratios until the first timing.
    measured: bool,
}

impl Cost {
    /// A guess that timings replace; only ratios of costs matter before.
    pub fn new(base: f64, slope: f64) -> Self {
        let seconds = POINTS.iter().map(|rows| base + slope * rows).collect();
        Self { rows: POINTS.to_vec(), seconds, measured: false }
    }

    /// A measured table: rising row counts, and the seconds of a forward over each.
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
        let mut cost = Self { rows: rows.to_vec(), seconds: seconds.to_vec(), measured: true };
        cost.never_fall();
        Ok(cost)
    }

    fn never_fall(&mut self) {
        for at in 1..self.seconds.len() {
            self.seconds[at] = self.seconds[at].max(self.seconds[at - 1]);
        }
    }

    /// Learns from one timing. Values that no clock gives are ignored.
    pub fn note(&mut self, rows: usize, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        let mut ratio = seconds / self.seconds(rows);
        if !self.measured {
            // The first timing sets the scale of the guess.
            self.measured = true;
            self.seconds.iter_mut().for_each(|point| *point *= ratio);
            return;
        }
        ratio = ratio.clamp(1.0 / TRUSTED, TRUSTED);
        let (low, share) = self.place(rows as f64);
        let high = (low + 1).min(self.rows.len() - 1);
        // All points follow slowly, since a busy machine slows everything; the nearest ones follow at once.
        for (at, point) in self.seconds.iter_mut().enumerate() {
            let near = if at == low { 1.0 - share } else { 0.0 } + if at == high { share } else { 0.0 };
            *point *= 1.0 + RECENT * (0.2 + 0.8 * near.min(1.0)) * (ratio - 1.0);
        }
        self.never_fall();
    }

    /// Whether the seconds are seconds, and not a guess whose ratios alone count.
    pub(super) fn is_measured(&self) -> bool {
        self.measured
    }

    /// Multiplies a guess, so that it keeps its ratio to another cost of which a first timing came.
    pub(super) fn scale_guess(&mut self, ratio: f64) {
        if !self.measured && ratio.is_finite() && ratio > 0.0 {
            self.seconds.iter_mut().for_each(|point| *point *= ratio);
        }
    }

    /// The point at or below `rows`, and how far towards the next one; beyond the table the share exceeds 1.
    fn place(&self, rows: f64) -> (usize, f64) {
        let last = self.rows.len().saturating_sub(2);
        let low = self.rows.partition_point(|&point| point <= rows).saturating_sub(1).min(last);
        match self.rows.get(low + 1) {
            Some(&next) => (low, ((rows - self.rows[low]) / (next - self.rows[low])).max(0.0)),
            None => (low, 0.0),
        }
    }

    /// Seconds for a forward over `rows` rows.
    #[inline]
    pub fn seconds(&self, rows: usize) -> f64 {
        let (low, share) = self.place(rows as f64);
        let next = self.seconds.get(low + 1).copied().unwrap_or(self.seconds[low]);
        self.seconds[low] + share * (next - self.seconds[low])
    }

    pub(super) fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.rows.iter().copied().zip(self.seconds.iter().copied())
    }
}
