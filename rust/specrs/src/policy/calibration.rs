//! What a stated confidence is worth: acceptance rates learned from verdicts, per kind of round.

use crate::error::{Error, Result};

use super::length::usable;

/// Positions with a record of their own; deeper ones share the last.
const POSITIONS: usize = 16;
/// Bins of stated confidence.
const BINS: usize = 16;
/// Kinds of rounds: drafts chosen or drawn, by four buckets of the target's temperature.
const MODES: usize = 8;
/// Weight of the newest verdict in the ratios' running means.
const RECENT: f64 = 0.05;
/// Verdicts that the prior is worth.
const PRIOR: f64 = 20.0;
/// Verdicts that a bin's stated confidence counts for.
const BIN_PRIOR: f64 = 6.0;
/// What a bin's record loses per verdict, so that a change of workload is followed.
const BIN_FORGETS: f64 = 1.0 / 256.0;

/// The kind of round that confidences and verdicts belong to: they are calibrated apart.
///
/// What "accepted" means depends on it: a greedy target accepts its argmax, a sampled one accepts a chosen token with
/// the target's probability and a drawn one with the overlap of the two laws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mode(usize);

impl Mode {
    /// How many there are.
    pub const COUNT: usize = MODES;

    /// Its number, below [`Mode::COUNT`].
    pub fn index(self) -> usize {
        self.0
    }

    /// The mode of drafts that are drawn from a law or not, for a target at `temperature`.
    pub fn of(drawn: bool, temperature: f32) -> Self {
        let bucket = match temperature {
            t if t <= 0.0 => 0,
            t if t <= 0.5 => 1,
            t if t <= 1.0 => 2,
            _ => 3,
        };
        Self(usize::from(drawn) * 4 + bucket)
    }
}

/// Turns stated confidences into acceptance rates.
#[derive(Clone, Debug, PartialEq)]
pub enum Calibration {
    /// Takes the confidence at its word.
    Identity,
    /// `sigmoid(logit(c) / t_j)` with a temperature per position, fitted by [`fit_temperatures`].
    Temperatures(Vec<f32>),
    /// Scales by accepted over stated, per mode and position.
    Ratio(Box<[[Ratio; POSITIONS]; MODES]>),
    /// Acceptance by the confidence stated, per mode, in equal bins.
    Bins(Box<[[Bin; BINS]; MODES]>),
}

/// Running means of one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    accepted: f64,
    stated: f64,
    weight: f64,
}

/// Verdicts of one bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    accepted: f64,
    seen: f64,
}

impl Calibration {
    /// Online ratios that have seen nothing: a confidence is taken at its word, which a long draft needs, where a doubt
    /// about each token multiplies.
    pub fn ratio() -> Self {
        let new = Ratio { accepted: 1.0, stated: 1.0, weight: 0.0 };
        Self::Ratio(Box::new([[new; POSITIONS]; MODES]))
    }

    /// Bins that have seen nothing: a confidence is worth the middle of its bin.
    pub fn bins() -> Self {
        let of = |bin: usize| Bin { accepted: BIN_PRIOR * (bin as f64 + 0.5) / BINS as f64, seen: BIN_PRIOR };
        Self::Bins(Box::new([std::array::from_fn(of); MODES]))
    }

    /// The acceptance rate that `confidence` at `depth` (from 1) stands for.
    #[inline]
    pub fn rate(&self, mode: Mode, depth: usize, confidence: f32) -> f32 {
        let stated = usable(confidence);
        match self {
            Self::Identity => stated,
            Self::Temperatures(temperatures) => scaled(stated, temperatures[(depth - 1).min(temperatures.len() - 1)]),
            Self::Ratio(cells) => {
                let cell = &cells[mode.0][(depth - 1).min(POSITIONS - 1)];
                (f64::from(stated) * cell.accepted / cell.stated).clamp(0.01, 0.999) as f32
            }
            Self::Bins(cells) => {
                // Linear between the middles of the bins, so that a small change of confidence is a small change here.
                let at = (stated * BINS as f32 - 0.5).clamp(0.0, (BINS - 1) as f32);
                let low = (at as usize).min(BINS - 2);
                let value = |bin: usize| (cells[mode.0][bin].accepted / cells[mode.0][bin].seen) as f32;
                usable(value(low) + (at - low as f32) * (value(low + 1) - value(low)))
            }
        }
    }

    /// Learns the verdict on a node whose ancestors were all accepted. Others must not be passed: nobody knows.
    pub fn observe(&mut self, mode: Mode, depth: usize, confidence: f32, accepted: bool) {
        let stated = usable(confidence);
        let hit = f64::from(u8::from(accepted));
        match self {
            Self::Identity | Self::Temperatures(_) => {}
            Self::Ratio(cells) => {
                let cell = &mut cells[mode.0][(depth - 1).min(POSITIONS - 1)];
                // The prior is worth `PRIOR` verdicts; from then on the newest counts as any.
                cell.weight += 1.0;
                let share = RECENT.max(1.0 / (PRIOR + cell.weight));
                cell.accepted += share * (hit - cell.accepted);
                cell.stated += share * (f64::from(stated.max(0.01)) - cell.stated);
            }
            Self::Bins(cells) => {
                // Shared by the two bins that `rate` reads, in the shares that it reads them.
                let at = (stated * BINS as f32 - 0.5).clamp(0.0, (BINS - 1) as f32);
                let low = (at as usize).min(BINS - 2);
                let high = f64::from(at - low as f32);
                for (bin, share) in [(low, 1.0 - high), (low + 1, high)] {
                    let bin = &mut cells[mode.0][bin];
                    let kept = 1.0 - share * BIN_FORGETS;
                    bin.accepted = bin.accepted * kept + share * hit;
                    bin.seen = bin.seen * kept + share;
                }
            }
        }
    }
}

fn scaled(confidence: f32, temperature: f32) -> f32 {
    let p = confidence.clamp(1e-4, super::length::SUREST);
    let logit = (p / (1.0 - p)).ln() / temperature;
    1.0 / (1.0 + (-logit).exp())
}

/// Fits sequential temperature scaling (`DeepSpec`): left to right, position j gets the temperature whose cumulative
/// products have the least expected calibration error, with the temperatures before it fixed.
///
/// `confidence` holds n stated confidences per draft and `accepted` how many of each draft's tokens were.
///
/// # Errors
/// If there is no draft, or lengths do not fit.
pub fn fit_temperatures(confidence: &[f32], n: usize, accepted: &[usize]) -> Result<Vec<f32>> {
    if n == 0 || accepted.is_empty() || confidence.len() != n * accepted.len() {
        return Err(Error::invalid(format!(
            "temperatures are fitted to at least one draft of n >= 1 confidences, got {} confidences for {} drafts of {n}",
            confidence.len(),
            accepted.len()
        )));
    }
    if let Some(wrong) = accepted.iter().find(|&&count| count > n) {
        return Err(Error::invalid(format!("a draft of {n} tokens cannot have {wrong} accepted")));
    }
    let mut survival = vec![1.0f32; accepted.len()];
    let mut temperatures = Vec::with_capacity(n);
    for j in 0..n {
        let mut best = (f64::INFINITY, 1.0);
        for step in 0..=60 {
            let temperature = 0.25 * 16.0f32.powf(step as f32 / 60.0);
            let products =
                survival.iter().enumerate().map(|(d, s)| s * scaled(usable(confidence[d * n + j]), temperature));
            let error = calibration_error(products.zip(accepted.iter().map(|&count| count > j)));
            if error < best.0 - 1e-12 {
                best = (error, temperature);
            }
        }
        for (d, s) in survival.iter_mut().enumerate() {
            *s *= scaled(usable(confidence[d * n + j]), best.1);
        }
        temperatures.push(best.1);
    }
    Ok(temperatures)
}

/// Expected calibration error over ten equal bins: the mean distance of what was promised from what happened.
pub fn calibration_error(promises: impl Iterator<Item = (f32, bool)>) -> f64 {
    let mut bins = [(0.0f64, 0.0f64, 0.0f64); 10];
    let mut all = 0.0;
    for (promise, kept) in promises {
        let bin = &mut bins[((promise * 10.0) as usize).min(9)];
        bin.0 += f64::from(promise);
        bin.1 += f64::from(u8::from(kept));
        bin.2 += 1.0;
        all += 1.0;
    }
    bins.iter().map(|(promised, kept, _)| (promised - kept).abs()).sum::<f64>() / f64::max(all, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy() -> Mode {
        Mode::of(false, 0.0)
    }

    #[test]
    fn ratios_and_bins_find_the_rate_of_an_overconfident_drafter() {
        for mut calibration in [Calibration::ratio(), Calibration::bins()] {
            for round in 0..4000 {
                calibration.observe(greedy(), 1, 0.9, round % 10 < 6);
                calibration.observe(Mode::of(true, 1.0), 1, 0.9, round % 10 < 3);
            }
            let greedy_rate = calibration.rate(greedy(), 1, 0.9);
            assert!((greedy_rate - 0.6).abs() < 0.1, "{greedy_rate}");
            let drawn_rate = calibration.rate(Mode::of(true, 0.8), 1, 0.9);
            assert!((drawn_rate - 0.3).abs() < 0.1, "modes are calibrated apart: {drawn_rate}");
        }
        assert!((Calibration::Identity.rate(greedy(), 3, 0.9) - 0.9).abs() < 1e-6);
    }

    #[test]
    fn ratios_keep_positions_apart_and_pool_the_tail() {
        let mut calibration = Calibration::ratio();
        for _ in 0..200 {
            calibration.observe(greedy(), 2, 0.8, false);
            calibration.observe(greedy(), 40, 0.8, true);
        }
        assert!(calibration.rate(greedy(), 2, 0.8) < 0.05);
        assert!(calibration.rate(greedy(), 1, 0.8) > 0.7);
        assert!(calibration.rate(greedy(), 60, 0.8) > 0.95);
    }

    #[test]
    fn nothing_is_certain_and_nothing_is_worth_less_than_nothing() {
        for calibration in
            [Calibration::Identity, Calibration::ratio(), Calibration::bins(), Calibration::Temperatures(vec![1.0])]
        {
            for stated in [f32::NAN, -1.0, 0.0, 0.5, 1.0, 7.0, f32::INFINITY] {
                let rate = calibration.rate(greedy(), 1, stated);
                assert!((0.0..1.0).contains(&rate), "{calibration:?} {stated} {rate}");
            }
        }
    }

    #[test]
    fn fitted_temperatures_undo_an_overconfidence() {
        // True rate at each position: sigmoid(logit(c) / 2).
        let mut state = 7u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        let (n, drafts) = (3, 6000);
        let (mut confidence, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..drafts {
            let stated: Vec<f32> = (0..n).map(|_| 0.5 + 0.49 * next()).collect();
            let count = stated.iter().take_while(|&&c| next() < scaled(c, 2.0)).count();
            confidence.extend(&stated);
            accepted.push(count);
        }
        let fitted = fit_temperatures(&confidence, n, &accepted).expect("valid");
        assert!(fitted.iter().all(|t| (1.5..2.8).contains(t)), "{fitted:?}");
        let after = |temperatures: &[f32]| {
            let calibration = Calibration::Temperatures(temperatures.to_vec());
            calibration_error((0..drafts).map(|d| {
                let product: f32 = (0..n).map(|j| calibration.rate(greedy(), j + 1, confidence[d * n + j])).product();
                (product, accepted[d] == n)
            }))
        };
        assert!(after(&fitted) < 0.3 * after(&[1.0]), "{} {}", after(&fitted), after(&[1.0]));
    }

    #[test]
    fn wrong_records_are_refused() {
        assert!(fit_temperatures(&[], 0, &[]).is_err());
        assert!(fit_temperatures(&[0.5], 1, &[2]).is_err());
        assert!(fit_temperatures(&[0.5, 0.5], 1, &[1]).is_err());
    }
}
