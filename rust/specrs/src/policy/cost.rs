//! What a round costs on this machine: measured seconds by rows, batch and context, refined by every round.

use crate::error::{Error, Result};
use crate::isotonic::rising;

/// Weight of the newest timing in a row count's running mean.
const RECENT: f64 = 0.25;
/// Timings after which a row count's own mean is trusted instead of the measured one.
const TRUSTED: u32 = 2;
/// How far one timing may lie from what was expected; beyond it is an outlier and counts as this far.
const FARTHEST: f64 = 2.0;
/// Most rows that a table holds one by one.
const LONGEST: usize = 4096;

/// Seconds of a forward by rows, for one batch size and context length.
#[derive(Clone, Debug, PartialEq)]
struct Cell {
    batch: usize,
    context: usize,
    /// Measured seconds of `index + 1` rows.
    seed: Vec<f64>,
    /// Running mean and number of the timings of production rounds.
    seen: Vec<(f64, u32)>,
    /// Derived: what a forward over `index + 1` rows is expected to take, never falling.
    value: Vec<f64>,
}

impl Cell {
    fn new(batch: usize, context: usize, rows: &[usize], seconds: &[f64]) -> Self {
        let mut seed = Vec::new();
        for (&rows, &seconds) in rows.iter().zip(seconds) {
            // What lies between two measured counts costs as the larger one: cautious, and a step stays a step.
            seed.resize(rows, seconds);
        }
        let seen = vec![(0.0, 0); seed.len()];
        let mut cell = Self { batch, context, value: seed.clone(), seed, seen };
        cell.refresh();
        cell
    }

    /// Puts what was seen in place of what was measured; the rest is scaled as the most often seen row count was.
    fn refresh(&mut self) {
        let most = (0..self.seen.len()).max_by_key(|&at| (self.seen[at].1, std::cmp::Reverse(at)));
        let unit = match most {
            Some(at) if self.seen[at].1 >= TRUSTED => self.seen[at].0 / self.seed[at],
            _ => 1.0,
        };
        let best = self.seed.iter().zip(&self.seen).map(|(seed, &(mean, count))| {
            if count >= TRUSTED { (mean, f64::from(count.min(20))) } else { (seed * unit, 1.0) }
        });
        self.value.clear();
        self.value.extend(rising(best));
    }

    fn seconds(&self, rows: usize) -> f64 {
        let known = self.value.len();
        if rows <= known {
            return self.value[rows.max(1) - 1];
        }
        // Beyond what was measured: the average slope of the second half, so that one flat stair does not make it free.
        let half = known.div_ceil(2);
        let slope = match known {
            1 => self.value[0],
            _ => (self.value[known - 1] - self.value[half - 1]) / (known - half) as f64,
        };
        self.value[known - 1] + slope * (rows - known) as f64
    }
}

/// Measured costs of a target (and of its drafters) on one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    /// Ordered by batch, then context.
    cells: Vec<Cell>,
}

impl CostTable {
    /// A table of one measured row of costs, for batch 1 and any context: `seconds[i]` for `rows[i]` rows.
    ///
    /// # Errors
    /// As [`CostTable::add`].
    pub fn new(rows: &[usize], seconds: &[f64]) -> Result<Self> {
        let mut table = Self { cells: Vec::new() };
        table.add(1, 0, rows, seconds)?;
        Ok(table)
    }

    /// Adds what was measured with `batch` requests of `context` committed tokens each. Row counts are of the whole batch.
    ///
    /// # Errors
    /// If row counts do not rise from 1 or a cost is not a positive number.
    pub fn add(&mut self, batch: usize, context: usize, rows: &[usize], seconds: &[f64]) -> Result<()> {
        if rows.is_empty() || rows.len() != seconds.len() {
            return Err(Error::invalid(format!(
                "a cost table needs one cost per row count, got {} for {} row counts",
                seconds.len(),
                rows.len()
            )));
        }
        if batch == 0
            || rows[0] == 0
            || rows.windows(2).any(|pair| pair[0] >= pair[1])
            || rows[rows.len() - 1] > LONGEST
        {
            return Err(Error::invalid(format!(
                "row counts of a cost table must rise from 1 to at most {LONGEST} for a batch of at least 1, \
                 got batch {batch} and {rows:?}"
            )));
        }
        if let Some(wrong) = seconds.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
            return Err(Error::invalid(format!("costs must be positive seconds, got {wrong}")));
        }
        let cell = Cell::new(batch, context, rows, seconds);
        match self.cells.binary_search_by_key(&(batch, context), |old| (old.batch, old.context)) {
            Ok(at) => self.cells[at] = cell,
            Err(at) => self.cells.insert(at, cell),
        }
        Ok(())
    }

    /// The cell measured with the most requests not above `batch`, and among those the nearest context.
    fn place(&self, batch: usize, context: usize) -> usize {
        let bucket =
            self.cells.iter().rev().map(|cell| cell.batch).find(|&b| b <= batch).unwrap_or(self.cells[0].batch);
        let of_bucket = self.cells.iter().enumerate().filter(|(_, cell)| cell.batch == bucket);
        of_bucket.min_by_key(|(_, cell)| cell.context.abs_diff(context)).map_or(0, |(at, _)| at)
    }

    /// Expected seconds of a forward over `rows` rows of `batch` requests whose longest text has `context` tokens.
    pub fn seconds(&self, batch: usize, context: usize, rows: usize) -> f64 {
        self.cells[self.place(batch, context)].seconds(rows)
    }

    /// Writes the costs of `first`, `first + 1`, … rows into `out`, in one look-up.
    pub fn fill(&self, batch: usize, context: usize, first: usize, out: &mut [f64]) {
        let cell = &self.cells[self.place(batch, context)];
        for (at, value) in out.iter_mut().enumerate() {
            *value = cell.seconds(first + at);
        }
    }

    /// Learns from a forward of production. What no clock that goes forward gives is ignored.
    pub fn observe(&mut self, batch: usize, context: usize, rows: usize, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) || rows == 0 {
            return;
        }
        let at = self.place(batch, context);
        let cell = &mut self.cells[at];
        let Some(&expected) = cell.value.get(rows - 1) else { return };
        let (mean, count) = cell.seen[rows - 1];
        let seconds = if count < TRUSTED { seconds } else { seconds.clamp(expected / FARTHEST, expected * FARTHEST) };
        let mean = match count {
            0 => seconds,
            1 => 0.5 * (mean + seconds),
            _ => mean + RECENT * (seconds - mean),
        };
        cell.seen[rows - 1] = (mean, count.saturating_add(1));
        cell.refresh();
    }

    /// Batch, context and present seconds of 1, 2, … rows, cell by cell.
    pub fn cells(&self) -> impl Iterator<Item = (usize, usize, &[f64])> {
        self.cells.iter().map(|cell| (cell.batch, cell.context, &cell.value[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_measured_counts_the_larger_one_is_paid() {
        let table = CostTable::new(&[1, 2, 4, 8], &[1.0, 1.1, 1.2, 3.0]).expect("valid");
        let costs: Vec<f64> = (1..=8).map(|rows| table.seconds(1, 0, rows)).collect();
        assert_eq!(costs, [1.0, 1.1, 1.2, 1.2, 3.0, 3.0, 3.0, 3.0]);
        assert!(table.seconds(1, 0, 9) > 3.0);
        assert!((table.seconds(1, 0, 0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn costs_never_fall_and_stairs_stay() {
        let noisy = [1.0, 1.2, 1.1, 1.15, 2.0, 1.9, 2.1, 2.05];
        let table = CostTable::new(&[1, 2, 3, 4, 5, 6, 7, 8], &noisy).expect("valid");
        let costs: Vec<f64> = (1..=8).map(|rows| table.seconds(1, 0, rows)).collect();
        assert!(costs.is_sorted(), "{costs:?}");
        assert!(costs[4] - costs[3] > 0.7, "the stair is smoothed away: {costs:?}");
    }

    #[test]
    fn rounds_refine_the_rows_they_had_and_scale_the_others() {
        let mut table = CostTable::new(&[1, 2, 3, 4], &[1.0, 1.0, 2.0, 2.0]).expect("valid");
        table.observe(1, 0, 1, 3.0);
        assert!((table.seconds(1, 0, 1) - 1.0).abs() < 1e-12, "one timing is no evidence");
        table.observe(1, 0, 1, 3.0);
        assert!((table.seconds(1, 0, 1) - 3.0).abs() < 1e-9);
        assert!((table.seconds(1, 0, 4) - 6.0).abs() < 1e-9, "what was not seen is scaled alike");
        for _ in 0..10 {
            table.observe(1, 0, 4, 3.5);
        }
        assert!(table.seconds(1, 0, 4) < 4.5);
        table.observe(1, 0, 1, 1e6);
        assert!(table.seconds(1, 0, 1) < 4.0, "an outlier counts as far as it may");
        let before = table.clone();
        for wrong in [0.0, -5.0, f64::NAN, f64::INFINITY] {
            table.observe(1, 0, 1, wrong);
        }
        assert_eq!(table, before, "a clock that goes backwards says nothing");
    }

    #[test]
    fn batch_and_context_have_cells_of_their_own() {
        let mut table = CostTable::new(&[1, 8], &[1.0, 1.0]).expect("valid");
        table.add(4, 0, &[4, 8], &[4.0, 5.0]).expect("valid");
        table.add(4, 4096, &[4, 8], &[40.0, 50.0]).expect("valid");
        assert!((table.seconds(3, 9000, 4) - 1.0).abs() < 1e-12);
        assert!((table.seconds(6, 100, 5) - 5.0).abs() < 1e-12);
        assert!((table.seconds(4, 4000, 5) - 50.0).abs() < 1e-12);
        assert_eq!(table.cells().count(), 3);
    }

    #[test]
    fn wrong_tables_are_refused() {
        for (rows, seconds) in [
            (&[][..], &[][..]),
            (&[0], &[1.0]),
            (&[2, 2], &[1.0, 1.0]),
            (&[1], &[0.0]),
            (&[1], &[f64::NAN]),
            (&[1, 2], &[1.0]),
        ] {
            assert!(CostTable::new(rows, seconds).is_err(), "{rows:?} {seconds:?}");
        }
        assert!(CostTable::new(&[1], &[1.0]).expect("valid").add(0, 0, &[1], &[1.0]).is_err());
    }
}
