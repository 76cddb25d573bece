//! How many bonus tokens to guess behind each number of accepted drafts.

use super::miss_law::MissLaw;
use crate::error::{Error, Result};

fn check_share(name: &str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} must be between 0 and 1, got {value}")))
}

fn check_rho(rho: f64) -> Result<()> {
    if rho > 0.0 && rho.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(format!("rho must be positive and finite, got {rho}")))
}

/// P(k drafts accepted) for k in 0..=K when each is accepted with probability `acceptance`, independently.
///
/// # Errors
/// If `acceptance` is not in [0, 1].
pub fn outcome_probs(acceptance: f64, lookahead: usize) -> Result<Vec<f64>> {
    check_share("acceptance", acceptance)?;
    let mut reached = 1.0;
    let mut probs = Vec::with_capacity(lookahead + 1);
    for _ in 0..lookahead {
        probs.push(reached * (1.0 - acceptance));
        reached *= acceptance;
    }
    probs.push(reached);
    Ok(probs)
}

/// The fan-out that maximises Σ P(k)(1 − `F_k`^−ρ) under Σ `F_k` = S, as real numbers: `F_k` ∝ P(k)^(1/(1+ρ)).
///
/// Written out, `F_k` falls geometrically by a^(1/(1+ρ)) and the last slot is raised by (1−a)^(−1/(1+ρ))
/// (arXiv:2603.03251, theorem 12).
///
/// # Errors
/// If `acceptance` is not in [0, 1] or `rho` is not positive.
pub fn geometric(acceptance: f64, rho: f64, lookahead: usize, budget: usize) -> Result<Vec<f64>> {
    check_rho(rho)?;
    let mut shares = outcome_probs(acceptance, lookahead)?;
    for share in &mut shares {
        *share = share.powf(1.0 / (1.0 + rho));
    }
    let total: f64 = shares.iter().sum();
    for share in &mut shares {
        *share *= budget as f64 / total;
    }
    Ok(shares)
}

/// The best whole fan-out for outcomes of i.i.d. acceptance under the paper's law of misses; see [`allocate_by`].
///
/// # Errors
/// As [`geometric`].
pub fn allocate(acceptance: f64, rho: f64, lookahead: usize, budget: usize) -> Result<Vec<u32>> {
    allocate_by(&outcome_probs(acceptance, lookahead)?, MissLaw { scale: 1.0, rho }, budget, u32::MAX)
}

/// The whole fan-out that maximises Σ w(k) · v(`F_k`) under Σ `F_k` ≤ S and `F_k` ≤ `most`, by giving one slot after the
/// other where it brings most.
///
/// The value of a fan-out is what it hits: v(0) = 0 and v(F) = 1 − c·F^−ρ. The paper's scale c = 1 says that a single
/// guess never hits; there, a slot's first guess counts 1 instead, v(F) = 2 − F^−ρ. A first guess never counts less than
/// the second, so gains fall with F and giving greedily is exact. Among equal gains the smaller k is served first. Slots
/// of weight 0 get nothing; then, or with small `most`, the sum may stay below S.
///
/// # Errors
/// If a weight is negative or not finite, the scale is not in (0, 1], or `rho` is not positive.
pub fn allocate_by(weights: &[f64], law: MissLaw, budget: usize, most: u32) -> Result<Vec<u32>> {
    let MissLaw { scale, rho } = law;
    check_rho(rho)?;
    if !(scale > 0.0 && scale <= 1.0) {
        return Err(Error::invalid(format!("scale must be in (0, 1], got {scale}")));
    }
    if let Some(wrong) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
        return Err(Error::invalid(format!("a weight must be finite and at least 0, got {wrong}")));
    }
    let next = |have: f64| scale * (have.powf(-rho) - (have + 1.0).powf(-rho));
    let first = if scale == 1.0 { 1.0 } else { (1.0 - scale).max(next(1.0)) };
    let gain = |weight: f64, have: u32| weight * if have == 0 { first } else { next(f64::from(have)) };
    let mut fan_out = vec![0u32; weights.len()];
    let mut gains: Vec<f64> = weights.iter().map(|&weight| if most == 0 { 0.0 } else { gain(weight, 0) }).collect();
    for _ in 0..budget {
        let mut best = (0.0, None);
        for (slot, &value) in gains.iter().enumerate() {
            if value > best.0 {
                best = (value, Some(slot));
            }
        }
        let Some(slot) = best.1 else { break };
        fan_out[slot] += 1;
        gains[slot] = if fan_out[slot] >= most { 0.0 } else { gain(weights[slot], fan_out[slot]) };
    }
    Ok(fan_out)
}
