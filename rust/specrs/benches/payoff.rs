//! Time of one routing decision: features, the trained predictor, and the choice. Prints nanoseconds, the median of runs.
//!
//!     cargo bench -p specrs --bench payoff
#![allow(clippy::print_stdout, reason = "a bench tells its result")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use specrs::policy::payoff::{FEATURES, HIDDEN, Mlp, Offer, PayoffOptions, PayoffRouter, Round};

const RUNS: usize = 200;
const EACH: usize = 500;

fn median(mut work: impl FnMut()) -> f64 {
    let mut took: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            (0..EACH).for_each(|_| work());
            start.elapsed().as_nanos() as f64 / EACH as f64
        })
        .collect();
    took.sort_by(f64::total_cmp);
    took[RUNS / 2]
}

fn main() {
    let weights = |len: usize| -> Vec<f32> { (0..len).map(|at| ((at * 7919) % 211) as f32 / 1000.0 - 0.1).collect() };
    let (first, second, last) = (weights(FEATURES * HIDDEN), weights(HIDDEN * HIDDEN), weights(HIDDEN));
    let bias = weights(HIDDEN);
    let mlp = Mlp::new([&first, &bias], [&second, &bias], [&last, &[0.1]], "").expect("fits");
    let features: [f32; FEATURES] = std::array::from_fn(|i| i as f32 / 8.0 - 1.0);
    println!("predictor alone: {:.0} ns", median(|| _ = black_box(mlp.predict(black_box(&features)))));

    let text: Vec<u32> = (0..4000).collect();
    let tokens: Vec<u32> = (1_000_000..1_000_016).collect();
    let parents: Vec<i32> = (-1..15).collect();
    let path_probs: Vec<f32> = (0..16).map(|at| 0.9_f32.powi(at + 1)).collect();
    let chain = Offer { tokens: &tokens, parents: &parents, path_probs: &path_probs, match_length: 9 };
    for (name, predictor) in [("calibrated", None), ("predictor", Some(Arc::new(mlp)))] {
        let mut router = PayoffRouter::new(PayoffOptions::default()).expect("valid");
        router.set_predictor(predictor);
        router.start(1, 100).expect("a new id");
        let mut at = 100;
        let took = median(|| {
            at = if at + 2 < text.len() { at + 2 } else { 100 };
            let round = Round {
                text: &text[..at],
                chain,
                budget: 40,
                batch: 1,
                remaining: 500,
                backlog: Some(3),
                uniform: 0.5,
                ..Round::default()
            };
            black_box(router.route(1, black_box(&round)).expect("sound"));
        });
        println!("route, {name}: {took:.0} ns");
    }
}
