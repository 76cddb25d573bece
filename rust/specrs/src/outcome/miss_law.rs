//! How often a guess misses, by the number of guesses: a power law, fitted while running.

use crate::error::{Error, Result};

/// Fan-outs above this are not told apart.
const LARGEST: usize = 64;
/// Weight kept by what was seen, per outcome: the last few hundred outcomes decide.
const KEEP: f64 = 1.0 - 1.0 / 512.0;
/// Outcomes that the prior is worth.
const PRIOR: f64 = 8.0;
/// Exponents outside of these say that there are too few misses to see one.
const RHO_RANGE: (f64, f64) = (0.05, 8.0);

/// P(miss at fan-out F) = scale · F^−ρ for F ≥ 1, and 1 for F = 0.
///
/// The paper's law (definition 11) has scale 1, that is, a single guess always misses. A measured scale below 1 says how
/// often the first guess does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissLaw {
    /// Miss rate of a single guess.
    pub scale: f64,
    /// Exponent.
    pub rho: f64,
}

impl MissLaw {
    /// P(miss) at a fan-out.
    pub fn miss(self, fan_out: f64) -> f64 {
        if fan_out < 1.0 { 1.0 } else { (self.scale * fan_out.powf(-self.rho)).min(1.0) }
    }
}

/// Fits the law to miss rates by weighted least squares in logarithms.
///
/// `rates` are (fan-out, miss rate, weight); rates of 0 or 1 need smoothing before. With `through_one`, the scale is 1
/// as in the paper. One usable fan-out alone cannot tell scale and exponent apart, and gives the paper's form.
///
/// # Errors
/// If no rate has a positive weight, a fan-out is below 1, or a rate is not in (0, 1].
pub fn fit_power_law(rates: &[(f64, f64, f64)], through_one: bool) -> Result<MissLaw> {
    let (mut all, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(fan_out, rate, weight) in rates {
        if !(fan_out >= 1.0 && fan_out.is_finite() && rate > 0.0 && rate <= 1.0 && weight >= 0.0 && weight.is_finite())
        {
            return Err(Error::invalid(format!(
                "expected fan-outs from 1, miss rates in (0, 1] and weights from 0, got ({fan_out}, {rate}, {weight})"
            )));
        }
        let (at, value) = (fan_out.ln(), rate.ln());
        all += weight;
        x += weight * at;
        y += weight * value;
        xx += weight * at * at;
        xy += weight * at * value;
    }
    if all <= 0.0 {
        return Err(Error::invalid("expected at least one miss rate of positive weight, got none"));
    }
    let spread = all * xx - x * x;
    let clamp = |rho: f64| rho.clamp(RHO_RANGE.0, RHO_RANGE.1);
    if through_one || spread <= 1e-12 * all * all {
        let rho = if xx > 0.0 { clamp(-xy / xx) } else { 1.0 };
        return Ok(MissLaw { scale: 1.0, rho });
    }
    let rho = clamp(-(all * xy - x * y) / spread);
    Ok(MissLaw { scale: ((y + rho * x) / all).exp().min(1.0), rho })
}

/// Miss counts by fan-out, from the ranks at which outcomes were guessed.
#[derive(Clone, Debug)]
pub struct RankMisses {
    missed: Vec<f64>,
    seen: Vec<f64>,
    prior: MissLaw,
}

impl RankMisses {
    /// Starts from a law that a handful of outcomes outweigh.
    pub fn new(prior: MissLaw) -> Self {
        Self { missed: vec![0.0; LARGEST], seen: vec![0.0; LARGEST], prior }
    }

    /// Learns from one outcome: the rank, from 1, of its bonus token among `fan_out` guesses; none if it was not there.
    ///
    /// Every smaller fan-out is judged too: it would have hit if the rank lies within. A rank beyond the fan-out counts as
    /// a miss, and without guesses there is nothing to learn.
    pub fn observe(&mut self, rank: Option<u32>, fan_out: u32) {
        let rank = rank.filter(|&rank| rank >= 1 && rank <= fan_out).map_or(usize::MAX, |rank| rank as usize);
        for at in 1..=(fan_out as usize).min(LARGEST) {
            self.seen[at - 1] = self.seen[at - 1] * KEEP + 1.0;
            self.missed[at - 1] = self.missed[at - 1] * KEEP + f64::from(u8::from(rank > at));
        }
    }

    /// The miss rate at a fan-out and the weight behind it, the prior included.
    pub fn rate(&self, fan_out: u32) -> (f64, f64) {
        let at = (fan_out.max(1) as usize).min(LARGEST);
        let weight = self.seen[at - 1] + PRIOR;
        ((self.missed[at - 1] + PRIOR * self.prior.miss(at as f64)) / weight, weight)
    }

    /// The law of all that was seen.
    ///
    /// # Errors
    /// Never, as long as the prior is a law.
    pub fn law(&self) -> Result<MissLaw> {
        let used = (1..=LARGEST as u32).filter(|&at| self.seen[at as usize - 1] > 0.0 || at <= 8);
        let rates: Vec<_> = used
            .map(|at| {
                let (rate, weight) = self.rate(at);
                (f64::from(at), rate.max(1e-6), weight)
            })
            .collect();
        fit_power_law(&rates, false)
    }
}
