//! A made-up pair of models: how acceptance and misses move with temperature and with Saguaro sampling.

use super::fork::best_ids;
use super::saguaro::saguaro;
use crate::error::{Error, Result};
use crate::uniforms::{Key, Purpose, uniform};

/// Target logits are normal with a spread that varies by context; the drafter sees them through noise.
#[derive(Clone, Copy, Debug)]
pub struct Language {
    /// Ids.
    pub vocabulary: usize,
    /// Median spread of the target's logits.
    pub spread: f64,
    /// Spread of the drafter's error.
    pub noise: f64,
    /// Contexts that rates are averaged over.
    pub contexts: u32,
    /// The same seed gives the same contexts.
    pub seed: u64,
}

/// Rates of a made-up pair at one temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// P(draft token accepted).
    pub acceptance: f64,
    /// P(the token behind a rejection is not among the F best), for F from 1.
    pub misses: Vec<f64>,
}

impl Language {
    fn normal(&self, context: u32, id: usize, index: u32) -> f64 {
        let coin = |half| {
            uniform(Key {
                seed: self.seed,
                request: context,
                position: id as u32,
                purpose: Purpose::Policy,
                index: 2 * index + half,
            })
        };
        (-2.0 * (1.0 - coin(0)).ln()).sqrt() * (std::f64::consts::TAU * coin(1)).cos()
    }

    /// The rates at a temperature, with the drafter's best `favoured` ids weighed by `weight`, for fan-outs up to `most`.
    ///
    /// Exact for each context: acceptance is Σ min(p, q'), and the bonus token behind a rejected x has the law of the
    /// residual, guessed among the F best of the row without x.
    ///
    /// # Errors
    /// If the temperature is negative or there is nothing to average over.
    pub fn rates(&self, temperature: f64, favoured: usize, weight: f32, most: usize) -> Result<Rates> {
        if !(temperature >= 0.0 && temperature.is_finite()) || self.contexts == 0 || self.vocabulary < 2 {
            return Err(Error::invalid(format!(
                "expected a temperature from 0, contexts and at least 2 ids, got {temperature} and {self:?}"
            )));
        }
        let (mut accepted, mut rejected) = (0.0, 0.0);
        let mut misses = vec![0.0; most];
        let mut best = Vec::new();
        for context in 0..self.contexts {
            let spread = self.spread * (0.6 * self.normal(context, self.vocabulary, 0)).exp();
            let target: Vec<f64> = (0..self.vocabulary).map(|id| spread * self.normal(context, id, 1)).collect();
            let error = |id| self.noise * spread.min(self.spread) * self.normal(context, id, 2);
            let draft: Vec<f64> = target.iter().enumerate().map(|(id, logit)| logit + error(id)).collect();
            let (target, mut draft_law) = (law(&target, temperature), law(&draft, temperature));
            if temperature > 0.0 {
                saguaro(&mut draft_law, favoured, weight)?;
            }
            let row: Vec<f32> = draft.iter().map(|&logit| logit as f32).collect();
            best_ids(&row, None, most + 1, &mut best);
            let residual: Vec<f64> = target.iter().zip(&draft_law).map(|(p, q)| f64::from((p - q).max(0.0))).collect();
            let lost: f64 = residual.iter().sum();
            accepted += 1.0 - lost;
            rejected += lost;
            if lost <= 0.0 {
                continue;
            }
            for (x, (&q, &p)) in draft_law.iter().zip(&target).enumerate() {
                let share = f64::from((q - p).max(0.0));
                if share <= 0.0 {
                    continue;
                }
                let mut left = lost;
                let guesses = best.iter().map(|&(_, id)| id as usize).filter(|&id| id != x);
                for (miss, guess) in misses.iter_mut().zip(guesses) {
                    left -= residual[guess];
                    *miss += share * left.max(0.0) / lost;
                }
            }
        }
        let contexts = f64::from(self.contexts);
        let misses = misses.iter().map(|miss| if rejected > 0.0 { miss / rejected } else { 0.0 }).collect();
        Ok(Rates { acceptance: accepted / contexts, misses })
    }
}

/// Softmax at a temperature; one-hot at 0.
fn law(logits: &[f64], temperature: f64) -> Vec<f32> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if temperature == 0.0 {
        let first = logits.iter().position(|&logit| logit == most);
        return (0..logits.len()).map(|id| f32::from(u8::from(Some(id) == first))).collect();
    }
    let weights: Vec<f64> = logits.iter().map(|logit| ((logit - most) / temperature).exp()).collect();
    let all: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / all) as f32).collect()
}
