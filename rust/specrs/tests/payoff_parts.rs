//! What the payoff router is made of: calibration, costs and replayed labels, each by itself.

use specrs::policy::payoff::{Calibration, Cost, replayed};

#[test]
fn calibration_follows_what_is_observed_and_never_falls() {
    let mut calibration = Calibration::default();
    assert!((calibration.rate(0.5) - 0.5).abs() < 0.02);
    for round in 0..4000 {
        calibration.observe([(0.5, round % 10 == 0), (0.9, round % 10 != 0)].into_iter());
    }
    assert!((calibration.rate(0.5) - 0.1).abs() < 0.05, "{}", calibration.rate(0.5));
    assert!((calibration.rate(0.9) - 0.9).abs() < 0.05);
    let rates: Vec<f32> = (0..=100).map(|prob| calibration.rate(prob as f32 / 100.0)).collect();
    assert!(rates.is_sorted(), "{rates:?}");
}

#[test]
fn costs_are_learned_from_timings() {
    let mut cost = Cost::new(1.0, 0.02);
    for round in 0..400 {
        let tokens = 1 + round % 17;
        cost.note(tokens, 0.08 + 0.003 * tokens as f64);
    }
    cost.note(4, f64::NAN);
    cost.note(4, -1.0);
    for tokens in [1, 8, 16] {
        let want = 0.08 + 0.003 * tokens as f64;
        assert!((cost.seconds(tokens) - want).abs() < 0.02 * want, "{tokens}: {}", cost.seconds(tokens));
    }
    let mut one_size = Cost::new(1.0, 0.02);
    for _ in 0..100 {
        one_size.note(1, 0.1);
    }
    assert!((one_size.seconds(1) - 0.1).abs() < 0.005);
    assert!(
        (one_size.seconds(33) / one_size.seconds(1) - 1.66 / 1.02).abs() < 1e-6,
        "the guess's shape at the timed scale"
    );
}

#[test]
fn replay_labels_only_what_is_known() {
    let (tokens, parents) = ([5, 6, 9, 7], [-1, 0, 0, 1]);
    assert_eq!(replayed(&tokens, &parents, &[]), [None; 4]);
    assert_eq!(replayed(&tokens, &parents, &[5]), [Some(true), None, None, None]);
    assert_eq!(replayed(&tokens, &parents, &[5, 6]), [Some(true), Some(true), Some(false), None]);
    assert_eq!(replayed(&tokens, &parents, &[4]), [Some(false), None, None, None]);
    assert_eq!(replayed(&tokens, &parents, &[4, 4, 4]), [Some(false); 4]);
}
