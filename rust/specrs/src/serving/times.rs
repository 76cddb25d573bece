//! What a step of the engine takes, by the rows it scores: learned from its own steps.

use crate::isotonic::rising;

/// Row counts whose step time is measured; between them it is interpolated.
const ROWS: [usize; 22] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096];
/// Least weight of the newest time, and the largest factor by which one time may differ from what was expected.
const RECENT: f64 = 0.2;
const OUTLIER: f64 = 3.0;

/// Seconds of an engine's step by rows: measured where seen, in between and beyond by a straight line.
#[derive(Clone, Debug)]
pub struct StepTimes {
    /// Cost of one more row as a share of the cost of one, where nothing was measured.
    token_cost: f64,
    /// What was measured, and from how many times.
    measured: [Option<(f64, u32)>; ROWS.len()],
    /// Row counts that were seen, and what they take, never falling.
    seen: Vec<(f64, f64)>,
    /// Seconds by rows, from 0; made anew when something was measured.
    table: Vec<f64>,
}

impl StepTimes {
    /// Nothing measured: one more row costs `token_cost` of the first.
    pub fn new(token_cost: f64) -> Self {
        Self { token_cost, measured: [None; ROWS.len()], seen: Vec::new(), table: Vec::new() }
    }

    /// Whether any step was timed yet.
    pub fn is_measured(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Learns that a step over `rows` rows took `seconds`. What no clock that goes forward gives is ignored.
    pub fn observe(&mut self, rows: usize, seconds: f64) {
        if rows == 0 || !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        let rows = rows as f64;
        let away = |at: usize| (ROWS[at] as f64 / rows).ln().abs();
        let nearest = (0..ROWS.len()).min_by(|&a, &b| away(a).total_cmp(&away(b))).unwrap_or(0);
        let expected = self.seconds(ROWS[nearest] as f64);
        let ratio = seconds / self.seconds(rows);
        self.measured[nearest] = Some(match self.measured[nearest] {
            None if !self.is_measured() => (expected * ratio, 1),
            // The line through what is known counts for half a time: a slow step must not stop what would correct it.
            before => {
                let (known, times) = before.unwrap_or((expected, 1));
                let weight = RECENT.max(1.0 / (f64::from(times) + 0.5));
                (known * (1.0 + weight * (ratio.clamp(1.0 / OUTLIER, OUTLIER) - 1.0)), times.saturating_add(1))
            }
        });
        self.refresh();
    }

    /// Takes over what was measured, as the closest times that never fall with the rows.
    fn refresh(&mut self) {
        let measured = || ROWS.iter().zip(&self.measured).filter_map(|(&rows, &seen)| seen.map(|seen| (rows, seen.0)));
        let rows = measured().map(|(rows, _)| rows as f64);
        self.seen = rows.zip(rising(measured().map(|(_, seconds)| (seconds, 1.0)))).collect();
        self.table.clear();
    }

    fn prior(&self, rows: f64) -> f64 {
        1.0 + self.token_cost * (rows - 1.0)
    }

    /// Expected seconds of a step over `rows` rows; in units of a step over one row while nothing was measured.
    pub fn seconds(&self, rows: f64) -> f64 {
        let (Some(&first), Some(&last)) = (self.seen.first(), self.seen.last()) else { return self.prior(rows) };
        if rows < first.0 {
            return first.1 * self.prior(rows) / self.prior(first.0);
        }
        if rows > last.0 {
            let slope = |low: (f64, f64)| (last.1 - low.1) / (last.0 - low.0);
            let assumed = last.1 * self.token_cost / self.prior(last.0);
            let measured = self.seen.iter().rev().nth(1).map_or(0.0, |&before| slope(before));
            return last.1 + assumed.max(measured) * (rows - last.0);
        }
        let above = self.seen.partition_point(|&(at, _)| at < rows);
        let high = self.seen[above];
        let low = self.seen[above.saturating_sub(1)];
        if high.0 <= rows { high.1 } else { low.1 + (high.1 - low.1) * (rows - low.0) / (high.0 - low.0) }
    }

    /// Expected seconds of steps over `first` rows, one more, and so on: `count` of them.
    pub fn run(&mut self, first: usize, count: usize) -> &[f64] {
        let most = first + count;
        if self.table.len() < most {
            self.table = (0..2 * most).map(|rows| self.seconds(rows as f64)).collect();
        }
        &self.table[first..most]
    }

    /// The measured row counts and their seconds.
    pub fn measured(&self) -> &[(f64, f64)] {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rise_and_forgive_outliers() {
        let mut times = StepTimes::new(0.02);
        let mut state = 1u64;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1u64 << 24) as f64
        };
        let cost = |rows: usize| 0.1 + 0.01 * rows as f64;
        for _ in 0..300 {
            let rows = [1, 4, 8, 20, 32][(uniform() * 5.0) as usize];
            let stall = if uniform() < 0.01 { 50.0 } else { 1.0 };
            times.observe(rows, cost(rows) * (0.9 + 0.2 * uniform()) * stall);
        }
        let found: Vec<f64> = [1, 4, 8, 20, 32, 64].iter().map(|&rows| times.seconds(rows as f64)).collect();
        assert!(found.is_sorted(), "{found:?}");
        for (rows, seconds) in [1, 4, 8, 20, 32].into_iter().zip(&found) {
            assert!((seconds / cost(rows) - 1.0).abs() < 0.3, "{rows} {seconds}");
        }
        let at_64 = times.seconds(64.0);
        assert_eq!(times.run(1, 64)[63], at_64);
    }

    #[test]
    fn what_was_not_seen_lies_on_the_lines() {
        let mut times = StepTimes::new(0.5);
        let near = |times: &StepTimes, rows: f64, seconds: f64| (times.seconds(rows) - seconds).abs() < 1e-9;
        assert!(!times.is_measured() && near(&times, 3.0, 2.0));
        times.observe(4, 10.0);
        assert!(near(&times, 4.0, 10.0));
        assert!(near(&times, 1.0, 4.0), "the assumed line, scaled");
        assert!(near(&times, 6.0, 14.0));
        times.observe(8, 36.0);
        assert!(near(&times, 8.0, 30.0), "between what came and the 18 of the line: {}", times.seconds(8.0));
        assert!(near(&times, 6.0, 20.0));
        assert!(near(&times, 10.0, 40.0), "as steep as it was measured");
        let before = times.measured().to_vec();
        for nothing in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            times.observe(8, nothing);
        }
        times.observe(0, 1.0);
        assert_eq!(times.measured(), before);
    }

    #[test]
    fn one_slow_step_over_rows_that_were_not_seen_is_believed_in_part_and_soon_outweighed() {
        let mut times = StepTimes::new(0.02);
        for _ in 0..20 {
            times.observe(1, 1.0);
        }
        times.observe(4, 3.0); // it took 1.06 on the line, and will again
        assert!(times.seconds(4.0) < 2.4);
        for _ in 0..4 {
            times.observe(4, 1.06);
        }
        assert!(times.seconds(4.0) < 1.45, "{}", times.seconds(4.0));
    }
}
