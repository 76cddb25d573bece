//! The one reading of a row from memory: its largest logit, block by block, and the weight of each block.

use super::blocks::{BLOCK, padded};
use super::element::Element;
use super::law::Scratch;
use super::scale::Scale;
use super::simd;

/// Blocks that are scanned before they are summed: few enough for the second look to come from the nearest cache.
const TILE: usize = 16;

/// Why a row has no law: NaN, +∞, or nothing above −∞.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unusable;

/// The largest value of a row of which these are the smallest and the largest key.
fn largest<E: Element>(low: E::Key, high: E::Key) -> Result<f32, Unusable> {
    if low < E::LOWEST || high >= E::HIGHEST || high == E::LOWEST {
        return Err(Unusable);
    }
    Ok(E::key_value(high))
}

/// Reads the row once: block maxima into `maxima`, the largest of all returned.
pub(super) fn scan<E: Element>(row: &[E::Bits], maxima: &mut Vec<f32>) -> Result<f32, Unusable> {
    let (mut low, mut high) = (E::HIGHEST, E::LOWEST);
    let (whole, rest) = row.as_chunks::<BLOCK>();
    maxima.resize(row.len().div_ceil(BLOCK), 0.0);
    simd::extremes::<E>(whole, &mut low, &mut high, &mut maxima[..whole.len()]);
    simd::extremes::<E>(padded::<E>(rest).as_slice(), &mut low, &mut high, &mut maxima[whole.len()..]);
    largest::<E>(low, high)
}

/// Reads the row once: block maxima, and the weight of each block that has a token at least `light` times as heavy as the
/// heaviest so far; 0 for the others. Returns the largest logit and a bound of what the others weigh.
pub(super) fn scan_and_sum<E: Element>(
    row: &[E::Bits],
    temperature: f32,
    light: f64,
    maxima: &mut Vec<f32>,
    sums: &mut Vec<f64>,
) -> Result<(f32, f64), Unusable> {
    let (mut low, mut high) = (E::HIGHEST, E::LOWEST);
    let mut scale = Scale::new(f32::NEG_INFINITY, temperature);
    let below = (light.log2() / f64::from(scale.rate)) as f32;
    let (whole, rest) = row.as_chunks::<BLOCK>();
    let last = padded::<E>(rest);
    let blocks = row.len().div_ceil(BLOCK);
    maxima.resize(blocks, 0.0);
    sums.resize(blocks, 0.0);
    let (mut first, mut bounds) = (0, 0.0);
    for tile in whole.chunks(TILE).chain([last.as_slice()]) {
        let end = first + tile.len();
        let mut tile_low = E::HIGHEST;
        simd::extremes::<E>(tile, &mut tile_low, &mut high, &mut maxima[first..end]);
        low = low.min(tile_low);
        let max = E::key_value(high);
        if max > scale.max {
            // What is summed so far is relative to a smaller maximum.
            let factor = ((f64::from(scale.max) - f64::from(max)) * f64::from(scale.rate)).exp2();
            for sum in &mut sums[..first] {
                *sum *= factor;
            }
            bounds *= factor;
            scale.max = max;
        }
        let reaching = (&maxima[first..end], scale.max + below);
        bounds += simd::weight_sums::<E>(tile, scale, E::key_value(tile_low), reaching, &mut sums[first..end]);
        first = end;
    }
    Ok((largest::<E>(low, high)?, bounds))
}

/// The lowest id of the logit `max`, the largest of a row with these block maxima.
pub(super) fn first_of<E: Element>(row: &[E::Bits], maxima: &[f32], max: f32) -> u32 {
    let block = maxima.iter().position(|&m| m == max).unwrap_or(0);
    let start = block * BLOCK;
    let inside = row[start..].iter().position(|&bits| E::value(bits) == max).unwrap_or(0);
    (start + inside) as u32
}

/// The most probable token of a row, the lowest id among equals.
pub(crate) fn argmax<E: Element>(row: &[E::Bits], scratch: &mut Scratch) -> Result<u32, Unusable> {
    let max = scan::<E>(row, &mut scratch.maxima)?;
    Ok(first_of::<E>(row, &scratch.maxima, max))
}
