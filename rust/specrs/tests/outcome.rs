//! Outcome prediction against brute force, published examples and its own definitions.

#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use specrs::TokenId;
use specrs::outcome::*;

fn brute_force(weights: &[f64], rho: f64, budget: u32) -> f64 {
    fn value(weights: &[f64], rho: f64, left: u32) -> f64 {
        let Some((&weight, rest)) = weights.split_first() else { return 0.0 };
        (0..=left)
            .map(|fan| {
                let own = if fan == 0 { 0.0 } else { 2.0 - f64::from(fan).powf(-rho) };
                weight * own + value(rest, rho, left - fan)
            })
            .fold(f64::NEG_INFINITY, f64::max)
    }
    value(weights, rho, budget)
}

#[test]
fn greedy_allocation_is_the_best_one() {
    for acceptance in [0.0, 0.3, 0.64, 0.85, 0.99, 1.0] {
        for rho in [0.3, 1.0, 2.5] {
            for (lookahead, budget) in [(0, 5), (1, 7), (2, 9), (3, 12)] {
                let fans = allocate(acceptance, rho, lookahead, budget).unwrap();
                let probs = outcome_probs(acceptance, lookahead).unwrap();
                let value: f64 = probs
                    .iter()
                    .zip(&fans)
                    .map(|(p, &fan)| if fan == 0 { 0.0 } else { p * (2.0 - f64::from(fan).powf(-rho)) })
                    .sum();
                let best = brute_force(&probs, rho, budget as u32);
                assert!((value - best).abs() < 1e-12, "{acceptance} {rho} {lookahead} {budget}: {fans:?}");
                assert_eq!(fans.iter().sum::<u32>(), budget as u32, "{acceptance} {rho} {lookahead}: {fans:?}");
            }
        }
    }
}

#[test]
fn published_allocations() {
    assert_eq!(allocate(0.64, 1.0, 3, 20).unwrap(), [6, 5, 4, 5]);
    let real = geometric(0.85, 1.0, 7, 24).unwrap();
    for (found, stated) in real.iter().zip([3.4, 3.2, 2.9, 2.7, 2.5, 2.3, 2.1, 5.0]) {
        assert!((found - stated).abs() < 0.06, "{real:?}");
    }
    assert!((geometric(0.7, 0.5, 4, 30).unwrap().iter().sum::<f64>() - 30.0).abs() < 1e-9);
    // Nothing but the last slot, or the first, when every draft or none is accepted.
    assert_eq!(geometric(1.0, 1.0, 2, 6).unwrap(), [0.0, 0.0, 6.0]);
    assert_eq!(allocate(0.0, 1.0, 2, 6).unwrap(), [6, 0, 0]);
}

#[test]
fn allocation_takes_its_bounds() {
    assert_eq!(allocate(0.5, 1.0, 0, 4).unwrap(), [4]);
    assert_eq!(allocate(0.5, 1.0, 2, 0).unwrap(), [0, 0, 0]);
    let paper = MissLaw { scale: 1.0, rho: 1.0 };
    assert_eq!(allocate_by(&[0.9, 0.1], paper, 10, 3).unwrap(), [3, 3]);
    // Where the first guess nearly always hits, a second one there brings less than a first one elsewhere.
    assert_eq!(allocate_by(&[0.1, 0.09, 0.81], MissLaw { scale: 0.1, rho: 1.0 }, 3, 9).unwrap(), [1, 1, 1]);
    assert_eq!(allocate_by(&[0.1, 0.09, 0.81], paper, 3, 9).unwrap(), [0, 0, 3]);
    assert!(allocate_by(&[1.0], MissLaw { scale: 0.0, rho: 1.0 }, 3, 9).is_err());
    for (acceptance, rho) in [(1.1, 1.0), (f64::NAN, 1.0), (0.5, 0.0), (0.5, f64::INFINITY)] {
        assert!(allocate(acceptance, rho, 2, 4).is_err());
        assert!(geometric(acceptance, rho, 2, 4).is_err());
    }
    assert!(allocate_by(&[-1.0], paper, 2, 4).is_err());
}

#[test]
fn forks_are_the_best_ids_but_one() {
    let logits = [
        0.5,
        2.0,
        2.0,
        -1.0,
        /* row 2 */ 1.0,
        f32::NEG_INFINITY,
        3.0,
        1.0,
        /* row 3 */ 0.0,
        1.0,
        f32::NAN,
        2.0,
    ];
    let forks = fork_tokens(&logits, 4, &[Some(1), None, None], &[2, 9, 2]).unwrap();
    // More than there are (F > V) gives all that have a finite logit; an unusable row gives none.
    assert_eq!(forks.ids, [2, 0, 2, 0, 3]);
    assert_eq!(forks.row_ptr, [0, 2, 5, 5]);
    assert!(fork_tokens(&logits, 4, &[None], &[1, 1, 1]).is_err());
    assert!(fork_tokens(&logits, 4, &[Some(7), None, None], &[0, 0, 0]).unwrap().ids.is_empty());
}

#[test]
fn saguaro_moves_mass_off_the_best() {
    let mut law = [0.5, 0.25, 0.125, 0.125];
    saguaro(&mut law, 1, 0.5).unwrap();
    let want = [0.25 / 0.75, 0.25 / 0.75, 0.125 / 0.75, 0.125 / 0.75];
    assert!(law.iter().zip(want).all(|(found, want): (&f32, f64)| (f64::from(*found) - want).abs() < 1e-7));
    let mut off = [0.5, 0.5];
    saguaro(&mut off, 1, 1.0).unwrap();
    assert_eq!(off, [0.5, 0.5]);
    // The tie goes to the smaller id; a weight of 0 empties it; a law that would be emptied stays.
    saguaro(&mut off, 1, 0.0).unwrap();
    assert_eq!(off, [0.0, 1.0]);
    let mut alone = [0.0, 1.0];
    saguaro(&mut alone, 1, 0.0).unwrap();
    assert_eq!(alone, [0.0, 1.0]);
    assert!(saguaro(&mut [f32::NAN, 1.0], 1, 0.5).is_err());
    assert!(saguaro(&mut [0.5, 0.5], 1, 1.5).is_err());
}

#[test]
fn power_law_is_found_again() {
    for (scale, rho) in [(1.0, 1.0), (0.35, 0.6), (0.5, 2.0)] {
        let law = MissLaw { scale, rho };
        let rates: Vec<_> = (1..=8).map(|fan| (f64::from(fan), law.miss(f64::from(fan)), 10.0)).collect();
        let found = fit_power_law(&rates, false).unwrap();
        assert!((found.scale - scale).abs() < 1e-9 && (found.rho - rho).abs() < 1e-9, "{found:?}");
        if scale == 1.0 {
            assert!((fit_power_law(&rates, true).unwrap().rho - rho).abs() < 1e-9);
        }
    }
    assert!(fit_power_law(&[], false).is_err());
    assert!(fit_power_law(&[(0.0, 0.5, 1.0)], false).is_err());
    assert!(fit_power_law(&[(2.0, 0.0, 1.0)], false).is_err());
}

#[test]
fn ranks_teach_the_law() {
    let truth = MissLaw { scale: 0.4, rho: 1.2 };
    let mut misses = RankMisses::new(MissLaw { scale: 1.0, rho: 1.0 });
    for step in 0..4000u32 {
        let coin = (f64::from(step) * 0.618_033_988_75).fract();
        let rank = (1..=12).find(|&fan| coin >= truth.miss(f64::from(fan)));
        misses.observe(rank, 12);
    }
    for fan in [1, 2, 4, 8] {
        assert!((misses.rate(fan).0 - truth.miss(f64::from(fan))).abs() < 0.03, "{fan} {:?}", misses.rate(fan));
    }
    let law = misses.law().unwrap();
    assert!((law.rho - truth.rho).abs() < 0.2 && (law.scale - truth.scale).abs() < 0.06, "{law:?}");
    // Nothing guessed, nothing learned; a rank beyond the fan-out is a miss.
    let before = misses.rate(1);
    misses.observe(Some(3), 0);
    assert_eq!(misses.rate(1), before);
    misses.observe(Some(3), 2);
    assert!(misses.rate(1).0 > before.0);
}

fn outcome(request: u64, accepted: u32, bonus: u32) -> Outcome {
    Outcome { request, accepted, bonus: TokenId(bonus) }
}

fn chain(tokens: &[u32]) -> Continuation {
    Continuation { tokens: tokens.to_vec(), draft_probs: vec![], confidence: vec![0.5; tokens.len()] }
}

#[test]
fn cache_keeps_the_right_outcome() {
    let mut cache = SpeculationCache::new(1 << 16);
    // The same token behind other numbers of accepted drafts is another outcome.
    assert!(cache.insert(7, outcome(1, 0, 5), chain(&[1])).unwrap());
    assert!(cache.insert(7, outcome(1, 1, 5), chain(&[2])).unwrap());
    assert!(cache.insert(7, outcome(2, 1, 5), chain(&[3])).unwrap());
    assert!(cache.insert(7, outcome(1, 0, 5), chain(&[1])).is_err());
    assert_eq!(cache.take(7, outcome(1, 1, 5)).unwrap().tokens, [2]);
    assert_eq!(cache.len(), 1, "all guesses of request 1 are gone");
    assert!(cache.take(7, outcome(1, 0, 5)).is_none());
    assert!(cache.take(8, outcome(2, 1, 5)).is_none(), "another generation");
    assert!(cache.is_empty());
    assert_eq!(cache.memory_bytes(), 0);
    assert_eq!(cache.counts(), CacheCounts { hits: 1, misses: 2, stale: 1, refused: 0 });
}

#[test]
fn cache_memory_is_bounded() {
    let laws = Continuation { tokens: vec![1, 2], draft_probs: vec![0.5; 2000], confidence: vec![0.1; 2] };
    let mut cache = SpeculationCache::new(20_000);
    assert!(cache.insert(0, outcome(0, 0, 0), laws.clone()).unwrap());
    assert!(cache.insert(0, outcome(0, 0, 1), laws.clone()).unwrap());
    assert!(!cache.insert(0, outcome(0, 0, 2), laws.clone()).unwrap(), "no room");
    assert!(cache.memory_bytes() <= 20_000);
    assert_eq!(cache.counts().refused, 1);
    assert_eq!(cache.forget(0), 2);
    assert!(cache.insert(0, outcome(0, 0, 2), laws.clone()).unwrap());
    assert!(cache.insert(1, outcome(0, 0, 2), chain(&[4])).unwrap(), "an entry of another generation is replaced");
    assert_eq!(cache.len(), 1);
    cache.clear();
    assert_eq!((cache.len(), cache.memory_bytes()), (0, 0));
    let ragged = Continuation { draft_probs: vec![0.5; 3], ..chain(&[1, 2]) };
    assert!(cache.insert(0, outcome(0, 0, 0), ragged).is_err());
    assert!(cache.insert(0, outcome(0, 0, 0), Continuation { confidence: vec![0.5; 2], ..chain(&[1]) }).is_err());
}

#[test]
fn speedups_obey_their_corollaries() {
    let tokens = expected_tokens(0.8, 5);
    assert!((tokens - (1.0 - 0.8f64.powi(6)) / 0.2).abs() < 1e-12);
    assert_eq!(expected_tokens(1.0, 4), 5.0);
    for draft_time in [0.1, 0.5, 0.9] {
        for hit_rate in [0.0, 0.3, 0.8, 1.0] {
            let batch = Batch { hit_rate, hit_tokens: tokens, draft_time: 0.9, requests: 1.0 };
            let ssd = ssd_speedup(batch, Backup { tokens, time: draft_time }).unwrap();
            let ratio = ssd / sd_speedup(tokens, draft_time);
            let (low, high) = ssd_bounds(hit_rate, draft_time, tokens, tokens);
            assert!(ratio >= low - 1e-12 && ratio <= high + 1e-12, "{ratio} in {low}..{high}");
            assert!(if hit_rate > 0.0 { ratio > 1.0 } else { (ratio - 1.0).abs() < 1e-12 });
        }
    }
}

#[test]
fn critical_batch_is_where_both_are_equal() {
    let batch = Batch { hit_rate: 0.8, hit_tokens: 4.4, draft_time: 0.9, requests: 1.0 };
    let (slow, fast) = (Backup { tokens: 4.4, time: 0.3 }, Backup { tokens: 1.0, time: 0.0 });
    let critical = critical_batch(batch, slow, fast).unwrap().unwrap();
    assert!((critical - 4.2).abs() < 0.05, "{critical}");
    let at = Batch { requests: critical, ..batch };
    let speeds = (ssd_speedup(at, slow).unwrap(), ssd_speedup(at, fast).unwrap());
    assert!((speeds.0 - speeds.1).abs() < 1e-9);
    assert_eq!(critical_batch(batch, Backup { tokens: 4.4, time: 0.0 }, fast).unwrap(), None);
    assert_eq!(critical_batch(Batch { hit_rate: 1.0, ..batch }, slow, fast).unwrap(), None);
    assert!(critical_batch(Batch { hit_rate: 1.5, ..batch }, slow, fast).is_err());
    assert!((stationary_hits(0.9, 0.3) - 0.75).abs() < 1e-12);
    assert_eq!(stationary_hits(1.0, 0.0), 1.0);
}

#[test]
fn chooser_learns_the_break_even_by_batch() {
    // Alone, waiting for the primary pays; in a crowd, one miss should not make all wait.
    for (batch, want) in [(1, Fallback::Slow), (64, Fallback::Fast)] {
        let mut chooser = FallbackChooser::new(&[Fallback::Zero, Fallback::Fast, Fallback::Slow]).unwrap();
        for _ in 0..60 {
            let (wait, tokens) = match chooser.choose(batch) {
                Fallback::Slow => (0.3, 4.4),
                Fallback::Fast => (0.0, if batch == 1 { 2.0 } else { 4.2 }),
                Fallback::Zero => (0.0, 1.0),
            };
            chooser.note_round(tokens, 1.0 + wait);
            chooser.note_round(4.4, 1.0);
            chooser.note_round(4.4, 1.0);
        }
        assert_eq!(chooser.best(batch), want, "batch {batch}");
        assert!(chooser.speed(want, batch).unwrap() > 0.0);
    }
}

#[test]
fn chooser_ignores_clocks_that_go_backwards() {
    let mut chooser = FallbackChooser::new(&[Fallback::Slow, Fallback::Zero]).unwrap();
    for _ in 0..20 {
        chooser.choose(1);
        for wrong in [-1.0, 0.0, f64::NAN, f64::INFINITY] {
            chooser.note_round(5.0, wrong);
        }
    }
    assert_eq!(chooser.speed(Fallback::Slow, 1), None);
    assert_eq!(chooser.best(1), Fallback::Slow);
    assert!(FallbackChooser::new(&[]).is_err());
}

#[test]
fn advisor_weighs_devices() {
    let misses = MissLaw { scale: 0.3, rho: 1.0 };
    let costs = StageCosts { plain: 15e-3, verify_row: 0.0, draft: 2e-3, draft_row: 1e-5, overhead: 0.0 };
    let big = advise(costs, Devices { target: 4.0, draft: 1.0 }, 0.85, misses).unwrap();
    assert_eq!(big.verdict, Verdict::Overlapped);
    assert!((big.needed_share - 0.2).abs() < 1e-12);
    assert!(big.draft_share >= big.needed_share_at_hit_rate);
    let small = StageCosts { draft: 5e-4, draft_row: 0.0, ..costs };
    assert!(advise(small, Devices { target: 4.0, draft: 1.0 }, 0.85, misses).unwrap().fits);
    let crowded = StageCosts { draft: 14e-3, draft_row: 1e-3, ..costs };
    assert!(!advise(crowded, Devices { target: 4.0, draft: 1.0 }, 0.85, misses).unwrap().fits);
    // A drafter that costs next to nothing leaves nothing to hide.
    let fast = StageCosts { draft: 1e-4, ..costs };
    let screened = advise(fast, Devices { target: 4.0, draft: 1.0 }, 0.85, misses).unwrap();
    assert_eq!(screened.verdict, Verdict::Synchronous);
    let hopeless = advise(costs, Devices { target: 1.0, draft: 1.0 }, 0.0, misses).unwrap();
    assert_eq!(hopeless.verdict, Verdict::Plain);
    assert!(advise(StageCosts { plain: -1.0, ..costs }, Devices { target: 1.0, draft: 1.0 }, 0.5, misses).is_err());
    assert!(advise(costs, Devices { target: 0.0, draft: 1.0 }, 0.5, misses).is_err());
}

fn scene() -> Scene {
    Scene {
        costs: StageCosts { plain: 0.015, verify_row: 0.0, draft: 0.002, draft_row: 0.0, overhead: 0.0 },
        lookahead: 5,
        synchronous_lookahead: 5,
        budget: 18,
        acceptance: 0.8,
        fallback_acceptance: 0.2,
        misses: MissLaw { scale: 0.3, rho: 1.0 },
        fallback: Fallback::Slow,
        batch: 1,
        rounds: 20_000,
        seed: 1,
    }
}

#[test]
fn simulation_agrees_with_the_formula() {
    let scene = scene();
    let run = simulate(scene).unwrap();
    assert_eq!(run, simulate(scene).unwrap());
    assert_ne!(run, simulate(Scene { seed: 2, ..scene }).unwrap());
    let tokens = expected_tokens(0.8, 5);
    let batch = Batch { hit_rate: run.hit_rate, hit_tokens: tokens, draft_time: 0.0, requests: 1.0 };
    let predicted = ssd_speedup(batch, Backup { tokens, time: 10.0 / 15.0 }).unwrap() / 0.015;
    assert!((run.overlapped / predicted - 1.0).abs() < 0.02, "{run:?} {predicted}");
    assert!((run.synchronous / (tokens / 0.025) - 1.0).abs() < 0.02, "{run:?}");
    assert!(run.overlapped > run.synchronous);
    assert!(simulate(Scene { rounds: 0, ..scene }).is_err());
    assert!(simulate(Scene { fallback_acceptance: 2.0, ..scene }).is_err());
    let zero = simulate(Scene { fallback: Fallback::Zero, lookahead: 0, ..scene }).unwrap();
    assert_eq!(zero.tokens_per_round, 1.0);
}

/// Llama 3.1 70B with a 1B drafter on five H100: predicted from published inputs alone.
///
/// Inputs: plain decoding 54.7 tokens/s (the paper's table); drafter step (27.5 − 15.0) / 6 ms and 3 ms of handshake
/// per round, hit rate 0.88 at F = 3 and 5.47 tokens per round at K = 7, from an independent reproduction. Outputs to
/// meet: 161.8 (synchronous, K = 6) and 255.8 tokens/s (SSD, K = 7).
#[test]
fn simulation_meets_the_published_setting() {
    let acceptance = 0.8885;
    assert!((expected_tokens(acceptance, 7) - 5.47).abs() < 0.02);
    let costs = StageCosts { plain: 1.0 / 54.7, verify_row: 0.0, draft: 12.5e-3 / 6.0, draft_row: 0.0, overhead: 3e-3 };
    let misses = MissLaw { scale: 0.32, rho: 0.893 };
    let published = Scene {
        costs,
        lookahead: 7,
        synchronous_lookahead: 6,
        budget: 24,
        acceptance,
        misses,
        rounds: 40_000,
        ..scene()
    };
    let run = simulate(published).unwrap();
    assert!((run.hit_rate - 0.88).abs() < 0.015, "{run:?}");
    assert!((run.synchronous / 161.8 - 1.0).abs() < 0.1, "{run:?}");
    assert!((run.overlapped / 255.8 - 1.0).abs() < 0.1, "{run:?}");
}

#[test]
fn temperature_costs_acceptance_and_saguaro_brings_hits() {
    let language = Language { vocabulary: 200, spread: 4.0, noise: 0.25, contexts: 60, seed: 3 };
    let cold = language.rates(0.0, 0, 1.0, 4).unwrap();
    let warm = language.rates(1.0, 0, 1.0, 4).unwrap();
    let favoured = language.rates(1.0, 4, 0.3, 4).unwrap();
    assert!(cold.acceptance > 0.5 && cold.misses.windows(2).all(|pair| pair[0] >= pair[1]));
    assert!(warm.misses[2] > cold.misses[2], "{cold:?} {warm:?}");
    assert!(favoured.misses[2] < warm.misses[2], "{favoured:?} {warm:?}");
    assert!(language.rates(-1.0, 0, 1.0, 4).is_err());
}
