//! Saguaro sampling: a draft law that leaves to the residual what the cache has guessed.

use super::fork::best_ids;
use crate::error::{Error, Result};

/// Weighs the `favoured` most probable ids of a law by `weight` and renormalises it, in place (arXiv:2603.03251,
/// definition 14).
///
/// The law is the drafter's after temperature and truncation, so this equals adding ln(weight) to the best logits. A
/// token drawn from the result is to be verified against the result. Weight 1, or 0 ids, changes nothing; a weight of 0
/// that would leave no mass leaves the law as it is. Among equal probabilities the smaller id is favoured.
///
/// # Errors
/// If `weight` is not in [0, 1], or the law has an entry that no law has.
pub fn saguaro(law: &mut [f32], favoured: usize, weight: f32) -> Result<()> {
    if !(0.0..=1.0).contains(&weight) {
        return Err(Error::invalid(format!("the weight must be between 0 and 1, got {weight}")));
    }
    if let Some(wrong) = law.iter().find(|prob| !(prob.is_finite() && **prob >= 0.0)) {
        return Err(Error::invalid(format!("a probability must be finite and at least 0, got {wrong}")));
    }
    if weight == 1.0 || favoured == 0 {
        return Ok(());
    }
    let mut best = Vec::new();
    best_ids(law, None, favoured, &mut best);
    let all: f64 = law.iter().map(|&prob| f64::from(prob)).sum();
    let top: f64 = best.iter().map(|&(prob, _)| f64::from(prob)).sum();
    let left = all - top * (1.0 - f64::from(weight));
    let rest = law.iter().enumerate().any(|(id, &prob)| prob > 0.0 && !best.iter().any(|&(_, b)| b as usize == id));
    if weight == 0.0 && !rest {
        return Ok(());
    }
    for &(_, id) in &best {
        law[id as usize] *= weight;
    }
    for prob in law.iter_mut() {
        *prob = (f64::from(*prob) / left) as f32;
    }
    Ok(())
}
