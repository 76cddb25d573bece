//! How many bonus tokens to guess behind each number of accepted drafts.

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

/// The best whole fan-out for outcomes of i.i.d. acceptance; see [`allocate_by`].
///
/// # Errors
/// As [`geometric`].
pub fn allocate(acceptance: f64, rho: f64, lookahead: usize, budget: usize) -> Result<Vec<u32>> {
    allocate_by(&outcome_probs(acceptance, lookahead)?, rho, budget, u32::MAX)
}

/// The whole fan-out that maximises Σ w(k) · v(`F_k`) under Σ `F_k` ≤ S and `F_k` ≤ `most`, by giving one slot after the
/// other where it brings most.
///
/// The value of a fan-out is v(0) = 0 and v(F) = 2 − F^−ρ: the power law of misses says 1 at a fan-out of 1, so a slot's
/// first guess counts as the certainty of having one. The gains fall with F, so that giving greedily is exact. Among
/// equal gains the smaller k is served first. Slots of weight 0 get nothing; then, or with small `most`, the sum may
/// stay below S.
///
/// # Errors
/// If a weight is negative or not finite, or `rho` is not positive.
pub fn allocate_by(weights: &[f64], rho: f64, budget: usize, most: u32) -> Result<Vec<u32>> {
    check_rho(rho)?;
    if let Some(wrong) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
        return Err(Error::invalid(format!("a weight must be finite and at least 0, got {wrong}")));
    }
    let gain = |weight: f64, have: u32| {
        weight * if have == 0 { 1.0 } else { f64::from(have).powf(-rho) - f64::from(have + 1).powf(-rho) }
    };
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
