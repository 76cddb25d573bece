//! The payoff router: choices by rate, calibration and costs learned, saved and loaded, damage refused.

use specrs::policy::payoff::{Calibration, Choice, Cost, PayoffOptions, PayoffRouter, replayed};

fn router(model_cost: f64) -> PayoffRouter {
    PayoffRouter::new(PayoffOptions { token_cost: 0.02, model_cost, explore: 0.0, ..PayoffOptions::default() })
        .expect("valid")
}

#[test]
fn a_draft_is_cut_where_a_token_costs_more_than_it_brings() {
    let router = router(f64::INFINITY);
    assert_eq!(router.choose(&[], 0.5), Choice::Plain);
    assert_eq!(router.choose(&[0.005], 0.5), Choice::Plain);
    let Choice::Cache { nodes } = router.choose(&[0.9, 0.8, 0.7, 0.01, 0.01, 0.01], 0.5) else { panic!("worth it") };
    assert_eq!(nodes, 3);
}

#[test]
fn the_model_drafter_wins_while_the_cache_has_little() {
    let router = router(0.2);
    assert_eq!(router.choose(&[0.2], 0.5), Choice::Model);
    assert!(matches!(router.choose(&[0.95; 12], 0.5), Choice::Cache { nodes: 12 }));
}

#[test]
fn exploration_tries_the_model_drafter_at_its_rate_only_if_there_is_one() {
    let options = PayoffOptions { explore: 0.1, model_cost: 50.0, ..PayoffOptions::default() };
    let with = PayoffRouter::new(options).expect("valid");
    assert_eq!(with.choose(&[0.95; 4], 0.05), Choice::Model);
    assert_ne!(with.choose(&[0.95; 4], 0.15), Choice::Model);
    let without = PayoffRouter::new(PayoffOptions { model_cost: f64::INFINITY, ..options }).expect("valid");
    assert_ne!(without.choose(&[0.95; 4], 0.0), Choice::Model);
}

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
    for tokens in [1, 8, 17] {
        let want = 0.08 + 0.003 * tokens as f64;
        assert!((cost.seconds(tokens) - want).abs() < 0.02 * want, "{tokens}: {}", cost.seconds(tokens));
    }
    let mut one_size = Cost::new(1.0, 0.02);
    for _ in 0..100 {
        one_size.note(1, 0.1);
    }
    assert!((one_size.seconds(1) - 0.1).abs() < 0.005);
    assert!(one_size.seconds(33) >= one_size.seconds(1));
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

#[test]
fn a_router_survives_saving_and_damage_is_refused() {
    let mut learned = router(0.3);
    for _ in 0..50 {
        learned.note_cache([(0.7, true), (0.4, false)].into_iter());
        learned.note_model(5, 3, 0.01);
        learned.note_time(6, 0.09);
    }
    let text = learned.save();
    let again = PayoffRouter::load(&text).expect("just saved");
    for paths in [&[][..], &[0.3], &[0.9, 0.8, 0.5, 0.2]] {
        assert_eq!(again.choose(paths, 0.5), learned.choose(paths, 0.5));
        assert!((again.expected(paths) - learned.expected(paths)).abs() < 1e-6);
    }
    for wrong in
        ["", "specrs payoff 2\n", &text.replace("bin", "bun"), &text.replace("model 0", "model -0.5 "), &text[..40]]
    {
        assert!(PayoffRouter::load(wrong).is_err(), "{wrong:?}");
    }
    let options = PayoffOptions { token_cost: f64::NAN, ..PayoffOptions::default() };
    assert!(PayoffRouter::new(options).is_err());
}
