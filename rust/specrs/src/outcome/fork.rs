//! Which bonus tokens to guess: the drafter's best ids of each row, without the one that a rejection there excludes.

use crate::error::{Error, Result};

/// Guessed bonus tokens, row by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forks {
    /// The ids of row r are `ids[row_ptr[r]..row_ptr[r + 1]]`, best first.
    pub ids: Vec<u32>,
    /// Where each row's ids start.
    pub row_ptr: Vec<usize>,
}

/// The `counts[r]` largest logits of each row, the smaller id first among equals.
///
/// `exclude[r]` is the draft token behind row r: had the bonus token been that one, the draft would not have been
/// rejected there, so its residual mass is 0. The last row of a draft excludes nothing. Where fewer ids have a finite
/// logit than are asked for (`counts[r]` above the vocabulary, say), there are fewer; a row with a NaN or +∞ has none.
///
/// # Errors
/// If the lengths do not fit each other.
pub fn fork_tokens(logits: &[f32], vocabulary: usize, exclude: &[Option<u32>], counts: &[u32]) -> Result<Forks> {
    let rows = counts.len();
    if exclude.len() != rows || logits.len() != rows * vocabulary {
        return Err(Error::invalid(format!(
            "expected {rows} rows of {vocabulary} logits and {rows} exclusions, got {} logits and {}",
            logits.len(),
            exclude.len()
        )));
    }
    let mut forks = Forks { ids: Vec::new(), row_ptr: vec![0] };
    let mut best: Vec<(f32, u32)> = Vec::new();
    for row in 0..rows {
        let values = &logits[row * vocabulary..(row + 1) * vocabulary];
        best_ids(values, exclude[row], counts[row] as usize, &mut best);
        forks.ids.extend(best.iter().map(|&(_, id)| id));
        forks.row_ptr.push(forks.ids.len());
    }
    Ok(forks)
}

/// Fills `best` with the `count` largest entries of a row, best first.
pub(super) fn best_ids(values: &[f32], exclude: Option<u32>, count: usize, best: &mut Vec<(f32, u32)>) {
    best.clear();
    if count == 0 {
        return;
    }
    let count = count.min(values.len());
    for (id, &value) in values.iter().enumerate() {
        if value.is_nan() || value == f32::INFINITY {
            best.clear();
            return;
        }
        // Ids come in rising order, so an equal value never displaces an earlier one.
        let worst = if best.len() == count { best[count - 1].0 } else { f32::NEG_INFINITY };
        if value > worst && exclude != Some(id as u32) {
            if best.len() == count {
                best.pop();
            }
            let at = best.partition_point(|&(other, _)| other >= value);
            best.insert(at, (value, id as u32));
        }
    }
}
