//! The drafter's own sampling: a token and the law it was drawn from, made by one function.

use super::batch::check_sampling;
use super::element::Element;
use super::law::{RowLaw, Scratch};
use super::logits::{Logits, with_rows};
use super::sampling::Sampling;
use super::scan::argmax;
use super::{NO_TOKEN, parallel};
use crate::{Error, Result};

fn draw_row<E: Element>(
    row: &[E::Bits],
    sampling: Sampling,
    coin: f64,
    probs: Option<&mut [f32]>,
    scratch: &mut Scratch,
) -> u32 {
    if sampling.is_greedy() {
        let Ok(token) = argmax::<E>(row, scratch) else { return NO_TOKEN };
        if let Some(probs) = probs {
            probs.fill(0.0);
            probs[token as usize] = 1.0;
        }
        return token;
    }
    let Ok(law) = RowLaw::<E>::new(row, sampling, scratch) else { return NO_TOKEN };
    if let Some(probs) = probs {
        law.write_probs(probs);
    }
    law.draw(coin)
}

/// Draws one token per row with its coin; `probs`, if given, receives the law of each row (rows × vocabulary).
///
/// A drawn token has a positive probability in its row of `probs`, and `probs` is to the bit what verification computes
/// from the same logits. A row that is NaN, +∞ or masked throughout yields [`NO_TOKEN`]. At temperature 0 the law is one-hot. The rows of unusable logits are filled with NaN.
///
/// # Errors
/// Arrays of the wrong length; sampling parameters or coins outside their range.
pub fn draw(logits: Logits<'_>, sampling: &[Sampling], coins: &[f64], probs: Option<&mut [f32]>) -> Result<Vec<u32>> {
    let (rows, vocabulary) = (logits.rows(), logits.vocabulary()?);
    check_sampling(sampling, rows)?;
    super::Coins { accept: coins, emit: coins }.check(rows)?;
    let outputs: Vec<std::sync::Mutex<Option<&mut [f32]>>> = match probs {
        None => (0..rows).map(|_| None.into()).collect(),
        Some(probs) if probs.len() == rows * vocabulary => {
            probs.chunks_mut(vocabulary.max(1)).map(|row| Some(row).into()).collect()
        }
        Some(probs) => {
            return Err(Error::invalid(format!("probs must have {rows} x {vocabulary} entries, got {}", probs.len())));
        }
    };
    Ok(with_rows!(logits, |all: E| {
        parallel::map(rows, rows * vocabulary, Scratch::default, |index, scratch| {
            let mut output = outputs[index].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let token = draw_row::<E>(all[index], sampling[index], coins[index], output.as_deref_mut(), scratch);
            if token == NO_TOKEN
                && let Some(output) = output.as_deref_mut()
            {
                output.fill(f32::NAN);
            }
            token
        })
    }))
}
