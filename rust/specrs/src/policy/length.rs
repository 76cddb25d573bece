//! The length of one draft: expected tokens over seconds, and the published rules that approximate its best.
//!
//! `confidence[j]` estimates P(node j accepted | everything before it is), `S_L` is the product of the first L of them
//! (*survival*), `E(L) = 1 + S_1 + … + S_L` the expected committed tokens, and `cost[L]` the seconds of a round that
//! scores L nodes. `LibraSpec` (Lin et al., arXiv:2608.08721) compares an extension's tokens per second with the round's;
//! with the costs measured, the best length is an argmax and needs no constant.

use crate::error::{Error, Result};

/// The most a confidence may promise; nothing is certain, and survival must fall along a path.
pub const SUREST: f32 = 0.999;

/// A confidence as it may be used: NaN and what is below 0 promise nothing, and nothing is certain.
#[inline]
pub fn usable(confidence: f32) -> f32 {
    if confidence >= 0.0 { confidence.min(SUREST) } else { 0.0 }
}

/// Expected tokens E(0), E(1), …, E(n) of a chain.
pub fn expected_tokens(confidence: &[f32]) -> Vec<f64> {
    let (mut survival, mut expected) = (1.0f64, 1.0f64);
    let mut all = Vec::with_capacity(confidence.len() + 1);
    all.push(expected);
    for &c in confidence {
        survival *= f64::from(usable(c));
        expected += survival;
        all.push(expected);
    }
    all
}

/// The length with the largest `E(L) / cost[L]`, the shortest of equals; drafting at all must beat drafting nothing by
/// the factor `1 + hysteresis`.
///
/// Every length is compared, because a measured cost is a staircase and the rate may fall before it rises again. The
/// margin keeps noise in the costs from switching drafting on. Between two lengths the better one wins: the rate is flat
/// around its maximum (mediant), so a margin at every step would stop short of it. An empty draft has length 0; lengths
/// beyond the costs given are not considered.
pub fn best_length(expected: &[f64], cost: &[f64], hysteresis: f64) -> usize {
    /// Rates that round apart are equal still.
    const EQUAL: f64 = 1e-12;
    let (mut best, mut chosen) = (0.0, 0);
    for (length, (tokens, seconds)) in expected.iter().zip(cost).enumerate() {
        let rate = tokens / seconds;
        let margin = if chosen == 0 { hysteresis.max(EQUAL) } else { EQUAL };
        if length == 0 || rate > best * (1.0 + margin) {
            (best, chosen) = (rate, length);
        }
    }
    chosen
}

/// The length with the largest `E(L) − price · cost[L]`, the shortest of equals: what is worth its time where a second
/// is worth `price` tokens elsewhere.
pub fn best_at_price(expected: &[f64], cost: &[f64], price: f64) -> usize {
    let (mut best, mut chosen) = (f64::NEG_INFINITY, 0);
    for (length, (tokens, seconds)) in expected.iter().zip(cost).enumerate() {
        let value = tokens - price * seconds;
        // As in `best_length`: what rounds apart is equal still.
        if length == 0 || value > best + 1e-12 * tokens {
            (best, chosen) = (value, length);
        }
    }
    chosen
}

/// Dinkelbach's iteration for the largest `E(L) / cost[L]`: the length, and how many steps it took.
///
/// The price is the rate of the last length; it rises until the length stays.
pub fn dinkelbach(expected: &[f64], cost: &[f64]) -> (usize, usize) {
    let mut length = 0;
    for step in 1.. {
        let rate = expected[length] / cost[length];
        let next = best_at_price(expected, cost, rate);
        // At the best rate nothing is worth more than the length itself; of equals the shortest is found.
        if expected[next] / cost[next] <= rate * (1.0 + 1e-12) {
            return (length.min(next), step);
        }
        length = next;
    }
    unreachable!("the rate rises with each step and there are finitely many lengths")
}

/// How `libra_alpha` counts positions; the paper's own convention is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// From every start i: one position further while `d + 1 < alpha · S(i, d + 1) + i`, counted from 0.
    Strict,
    /// `min_i floor(alpha · S(i, d) + i)`, counted from 1.
    Floor,
}

/// When `libra_alpha` stops shrinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shrinks {
    /// After the first time, as in the paper's Algorithm 1.
    Once,
    /// When the length stays.
    Fixpoint,
}

/// `LibraSpec`'s own iteration with a fixed `alpha` (Algorithm 1), for a finished draft: the length to score.
///
/// `S(i, d) = sum over j = i..d of the product of confidences i..j`. One `alpha` stands for the ratio of a round's cost
/// per token to the cost of one more row.
///
/// # Errors
/// If `alpha` is not a positive number.
pub fn libra_alpha(confidence: &[f32], alpha: f64, convention: Convention, shrinks: Shrinks) -> Result<usize> {
    if !(alpha.is_finite() && alpha > 0.0) {
        return Err(Error::invalid(format!("alpha must be above 0, got {alpha}")));
    }
    let bound = match convention {
        Convention::Strict => strict_bound,
        Convention::Floor => floor_bound,
    };
    let mut length = confidence.len();
    loop {
        let next = bound(&confidence[..length], alpha).min(length);
        if next == length || shrinks == Shrinks::Once {
            return Ok(next);
        }
        length = next;
    }
}

fn floor_bound(confidence: &[f32], alpha: f64) -> usize {
    // Backwards: S(i, d) = c_i (1 + S(i + 1, d)).
    let mut sum = 0.0;
    let mut least = confidence.len();
    for (i, &c) in confidence.iter().enumerate().rev() {
        sum = f64::from(usable(c)) * (1.0 + sum);
        least = least.min((alpha * sum + (i + 1) as f64).floor() as usize);
    }
    least
}

fn strict_bound(confidence: &[f32], alpha: f64) -> usize {
    let mut least = confidence.len();
    for start in 0..confidence.len() {
        if start >= least {
            break;
        }
        let (mut survival, mut sum, mut reach) = (1.0, 0.0, start);
        for (at, &c) in confidence.iter().enumerate().skip(start) {
            survival *= f64::from(usable(c));
            sum += survival;
            if (at + 1) as f64 >= alpha * sum + start as f64 {
                break;
            }
            reach = at + 1;
        }
        least = least.min(reach);
    }
    least
}

/// Whether a longer round is expected to be worth it, from what is known so far alone.
///
/// `expected` and `seconds` are the round's so far, `survival` P(everything so far accepted). `ahead(k)` is the
/// confidence expected of the k-th further token (k from 0) and `added(k)` the seconds that k + 1 more tokens take.
/// True if some horizon brings more than `price` tokens per second, or, without a price, more than the round's own.
pub fn worth_going_on(
    expected: f64,
    seconds: f64,
    survival: f64,
    price: Option<f64>,
    horizon: usize,
    mut ahead: impl FnMut(usize) -> f32,
    mut added: impl FnMut(usize) -> f64,
) -> bool {
    let price = price.unwrap_or(expected / seconds);
    let (mut survival, mut gain) = (survival, 0.0);
    for k in 0..horizon {
        survival *= f64::from(usable(ahead(k)));
        gain += survival;
        if gain > price * added(k) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(slope: f64, n: usize) -> Vec<f64> {
        (0..=n).map(|length| 40.0 + slope * (length + 1) as f64).collect()
    }

    fn constant_but(at: usize, value: f32) -> Vec<f32> {
        let mut confidence = vec![0.95; 15];
        confidence[at] = value;
        confidence
    }

    #[test]
    fn exact_lengths_on_a_line() {
        let slopes = [0.25, 1.0, 4.0, 10.0];
        let rows: [(f32, [usize; 4]); 6] = [
            (0.5, [6, 4, 2, 1]),
            (0.7, [11, 7, 4, 3]),
            (0.8, [15, 10, 6, 4]),
            (0.9, [15, 15, 10, 7]),
            (0.95, [15, 15, 15, 10]),
            (0.99, [15, 15, 15, 15]),
        ];
        for (c, lengths) in rows {
            for (slope, length) in slopes.into_iter().zip(lengths) {
                let expected = expected_tokens(&[c; 15]);
                assert_eq!(best_length(&expected, &line(slope, 15), 0.0), length, "c {c} slope {slope}");
                assert_eq!(dinkelbach(&expected, &line(slope, 15)).0, length, "c {c} slope {slope}");
            }
        }
        assert_eq!(best_length(&expected_tokens(&constant_but(4, 0.3)), &line(1.0, 15), 0.0), 15);
        assert_eq!(best_length(&expected_tokens(&[0.9, 0.9, 0.2]), &line(1.0, 3), 0.0), 3);
    }

    #[test]
    fn alpha_rule_in_both_conventions() {
        let strict = |q: &[f32], alpha| libra_alpha(q, alpha, Convention::Strict, Shrinks::Once).expect("valid");
        for (c, length) in [(0.3, 0), (0.5, 1), (0.6, 2), (0.7, 3), (0.8, 6), (0.9, 15)] {
            assert_eq!(strict(&[c; 15], 2.2), length, "c {c}");
        }
        for (c, length) in [(0.3, 3), (0.5, 7), (0.6, 11), (0.7, 15)] {
            assert_eq!(strict(&[c; 15], 8.0), length, "c {c}");
        }
        assert_eq!(strict(&constant_but(4, 0.3), 2.2), 4);
        assert_eq!(strict(&constant_but(4, 0.3), 8.0), 15);
        let floor = |q: &[f32], shrinks| libra_alpha(q, 2.2, Convention::Floor, shrinks).expect("valid");
        for (c, once, last) in [(0.7, 6, 5), (0.8, 9, 8), (0.5, 3, 2)] {
            assert_eq!(floor(&[c; 15], Shrinks::Once), once, "c {c}");
            assert_eq!(floor(&[c; 15], Shrinks::Fixpoint), last, "c {c}");
        }
        assert_eq!(floor(&constant_but(4, 0.3), Shrinks::Once), 10);
        assert_eq!(floor(&constant_but(4, 0.3), Shrinks::Fixpoint), 6);
        assert!(libra_alpha(&[0.5], f64::NAN, Convention::Floor, Shrinks::Once).is_err());
        assert!(libra_alpha(&[0.5], 0.0, Convention::Floor, Shrinks::Once).is_err());
    }

    /// A small generator of numbers in [0, 1), so that the tests need no crate.
    fn numbers() -> impl FnMut() -> f64 {
        let mut state = 1u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    #[test]
    fn dinkelbach_finds_the_argmax_of_any_costs() {
        let mut next = numbers();
        for _ in 0..2000 {
            let n = 1 + (next() * 20.0) as usize;
            let confidence: Vec<f32> = (0..n).map(|_| next() as f32).collect();
            let mut cost = vec![1.0 + next()];
            for _ in 0..n {
                let step = if next() < 0.6 { 0.0 } else { next() };
                cost.push(cost[cost.len() - 1] + step);
            }
            let expected = expected_tokens(&confidence);
            let (found, steps) = dinkelbach(&expected, &cost);
            let best = best_length(&expected, &cost, 0.0);
            let rate = |length: usize| expected[length] / cost[length];
            assert!((rate(found) - rate(best)).abs() <= 1e-12 * rate(best), "{confidence:?} {cost:?}");
            assert!(steps <= 8, "{steps} steps");
        }
    }

    #[test]
    fn a_staircase_hides_the_best_length_from_a_rule_that_stops_at_the_first_descent() {
        let stairs: Vec<f64> = (0..=16).map(|length: usize| 30.0 + 3.0 * (length + 1).div_ceil(4) as f64).collect();
        let expected = expected_tokens(&[0.9; 16]);
        let descent = (0..16).find(|&l| expected[l + 1] / stairs[l + 1] <= expected[l] / stairs[l]).unwrap_or(16);
        let best = best_length(&expected, &stairs, 0.0);
        assert!(best > descent, "{best} {descent}");
        // The rule that looks further than the next token is not stopped by the step.
        let ahead = worth_going_on(
            expected[descent],
            stairs[descent],
            0.9f64.powi(descent as i32),
            None,
            8,
            |_| 0.9,
            |k| stairs[descent + k + 1] - stairs[descent],
        );
        assert!(ahead);
    }

    #[test]
    fn alpha_only_ever_shrinks_once_it_descends() {
        let mut next = numbers();
        for _ in 0..1000 {
            let n = 1 + (next() * 20.0) as usize;
            let confidence: Vec<f32> = (0..n).map(|_| next() as f32).collect();
            let once = libra_alpha(&confidence, 2.2, Convention::Floor, Shrinks::Once).expect("valid");
            let last = libra_alpha(&confidence, 2.2, Convention::Floor, Shrinks::Fixpoint).expect("valid");
            assert!(last <= once && once <= n);
            assert_eq!(floor_bound(&confidence[..last], 2.2).min(last), last, "a fixed point");
        }
    }

    #[test]
    fn what_is_no_confidence_promises_nothing() {
        assert_eq!(expected_tokens(&[f32::NAN, 0.9]), [1.0, 1.0, 1.0]);
        assert_eq!(expected_tokens(&[-1.0]), [1.0, 1.0]);
        assert!(expected_tokens(&[f32::INFINITY])[1] < 2.0);
        assert_eq!(best_length(&expected_tokens(&[]), &[1.0], 0.02), 0);
    }

    #[test]
    fn the_margin_is_for_drafting_at_all() {
        // Rates 1, 1.03, 1.04, 1.045: with 2 % the first step is worth it, and then the best is the best.
        let (expected, cost) = ([1.03, 1.03 * 1.03, 1.04 * 1.03, 1.045 * 1.03], [1.03; 4]);
        assert_eq!(best_length(&expected, &cost, 0.02), 3);
        assert_eq!(best_length(&expected, &cost, 0.05), 0);
    }
}
