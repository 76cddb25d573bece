//! Log-probabilities of tokens under the raw logits: temperature 1, nothing truncated.

use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::logits::{Logits, with_rows};
use super::sampling::Sampling;
use super::{NO_TOKEN, parallel};
use crate::{Error, Result};

const RAW: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

fn check_rows(rows: &[i64], available: usize) -> Result<()> {
    match rows.iter().find(|&&row| row < 0 || row >= available as i64) {
        None => Ok(()),
        Some(row) => Err(Error::invalid(format!("a row must be in 0..{available}, got {row}"))),
    }
}

/// The log-probability of `tokens[i]` at row `rows[i]`. NaN where the row is NaN, +∞ or masked throughout.
///
/// # Errors
/// Rows or tokens out of range, arrays of different length.
pub fn log_probs(logits: Logits<'_>, rows: &[i64], tokens: &[u32]) -> Result<Vec<f32>> {
    let vocabulary = logits.vocabulary()?;
    check_rows(rows, logits.rows())?;
    if rows.len() != tokens.len() {
        return Err(Error::invalid(format!(
            "tokens must have one entry per row, {}, got {}",
            rows.len(),
            tokens.len()
        )));
    }
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
        return Err(Error::invalid(format!("a token must be in 0..{vocabulary}, got {token}")));
    }
    Ok(with_rows!(logits, |all: E| {
        parallel::map(rows.len(), rows.len() * vocabulary, Scratch::default, |index, scratch| {
            match RowLaw::<E>::new(all[rows[index] as usize], RAW, scratch) {
                Ok(law) => law.log_prob(E::value(all[rows[index] as usize][tokens[index] as usize])),
                Err(_) => f32::NAN,
            }
        })
    }))
}

/// The `k` largest log-probabilities of each row, largest first, lower id first among equals: `(ids, values)`, each
/// rows × k. An unusable row has ids [`NO_TOKEN`] and values NaN.
///
/// # Errors
/// Rows out of range, `k` of 0 or above the vocabulary.
pub fn top_log_probs(logits: Logits<'_>, rows: &[i64], k: usize) -> Result<(Vec<u32>, Vec<f32>)> {
    let vocabulary = logits.vocabulary()?;
    check_rows(rows, logits.rows())?;
    if k == 0 || (k > vocabulary && !rows.is_empty()) {
        return Err(Error::invalid(format!("k must be in 1..={vocabulary}, got {k}")));
    }
    let best = with_rows!(logits, |all: E| {
        parallel::map(rows.len(), rows.len() * vocabulary, Scratch::default, |index, scratch| {
            match RowLaw::<E>::new(all[rows[index] as usize], RAW, scratch) {
                Ok(law) => law.largest(k).into_iter().map(|(logit, id)| (id, law.log_prob(logit))).collect(),
                Err(_) => vec![(NO_TOKEN, f32::NAN); k],
            }
        })
    });
    Ok(best.into_iter().flatten().unzip())
}
