//! The payoff router: choices by rate, calibration and costs learned, saved and loaded, damage refused.

use std::sync::Arc;

use specrs::policy::payoff::{
    Choice, Cost, FEATURES, HIDDEN, Mlp, Offer, PayoffOptions, PayoffRouter, Round, Rule, Shape,
};

fn router(model_cost: f64) -> PayoffRouter {
    let options = PayoffOptions { token_cost: 0.02, model_cost, explore: 0.0, ..PayoffOptions::default() };
    let mut router = PayoffRouter::new(options).expect("valid");
    router.start(1, 0).expect("a new id");
    router
}

/// Routes a chain (and a tree) of given path probabilities, for a request whose text tells nothing.
fn route(router: &mut PayoffRouter, chain: &[f32], tree: &[(i32, f32)], round: Round<'_>) -> Choice {
    let parents: Vec<i32> = (-1..chain.len() as i32 - 1).collect();
    let tokens = vec![7; chain.len().max(tree.len())];
    let (tree_parents, tree_paths): (Vec<i32>, Vec<f32>) = tree.iter().copied().unzip();
    let chain = Offer { tokens: &tokens[..chain.len()], parents: &parents, path_probs: chain, match_length: 0 };
    let tree =
        Offer { tokens: &tokens[..tree.len()], parents: &tree_parents, path_probs: &tree_paths, match_length: 0 };
    router.route(1, &Round { chain, tree, ..round }).expect("sound")
}

const ALONE: Round<'_> = Round {
    text: &[],
    chain: Offer { tokens: &[], parents: &[], path_probs: &[], match_length: 0 },
    tree: Offer { tokens: &[], parents: &[], path_probs: &[], match_length: 0 },
    budget: 40,
    batch: 1,
    remaining: 1000,
    backlog: None,
    beside: false,
    uniform: 0.5,
};
const BESIDE_A_MODEL: Round<'_> = Round { backlog: Some(1), ..ALONE };

#[test]
fn a_draft_is_cut_where_a_token_costs_more_than_it_brings() {
    let mut router = router(0.2);
    assert_eq!(route(&mut router, &[], &[], ALONE), Choice::Plain);
    assert_eq!(route(&mut router, &[0.005], &[], ALONE), Choice::Plain);
    let paths = [0.9, 0.8, 0.7, 0.01, 0.01, 0.01];
    assert_eq!(route(&mut router, &paths, &[], ALONE), Choice::Chain { nodes: 3 });
    assert_eq!(route(&mut router, &paths, &[], Round { budget: 2, ..ALONE }), Choice::Chain { nodes: 2 });
    assert_eq!(route(&mut router, &paths, &[], Round { budget: 0, ..BESIDE_A_MODEL }), Choice::Plain);
}

#[test]
fn a_tree_is_taken_where_it_brings_more_than_the_chain() {
    let mut router = router(0.2);
    let chain = [0.45, 0.4];
    assert_eq!(
        route(&mut router, &chain, &[(-1, 0.45), (-1, 0.44), (0, 0.4), (1, 0.4)], ALONE),
        Choice::Tree { nodes: 4 }
    );
    assert_eq!(route(&mut router, &chain, &[(-1, 0.45), (0, 0.4)], ALONE), Choice::Chain { nodes: 2 });
}

#[test]
fn the_model_drafter_wins_while_the_cache_has_little() {
    let mut router = router(0.2);
    let Choice::Model { nodes } = route(&mut router, &[0.2], &[], BESIDE_A_MODEL) else { panic!("worth it") };
    assert!((2..=6).contains(&nodes), "{nodes}");
    assert_eq!(route(&mut router, &[0.95; 12], &[], BESIDE_A_MODEL), Choice::Chain { nodes: 12 });
    for _ in 0..200 {
        router.note_model(1, 0, true).expect("active");
    }
    assert_eq!(route(&mut router, &[], &[], BESIDE_A_MODEL), Choice::Plain);
    for _ in 0..200 {
        router.note_model(1, 8, false).expect("active");
    }
    assert_eq!(route(&mut router, &[], &[], BESIDE_A_MODEL), Choice::Model { nodes: 8 });
}

#[test]
fn a_cheap_row_has_the_caches_draft_verified_beside_the_models() {
    let chosen = |token_cost: f64, round: Round<'_>| {
        let options = PayoffOptions { token_cost, model_cost: 0.05, explore: 0.0, ..PayoffOptions::default() };
        let mut router = PayoffRouter::new(options).expect("valid");
        router.start(1, 0).expect("a new id");
        let chain: Vec<f32> = (0..12).map(|depth| 0.1 * 0.97_f32.powi(depth)).collect();
        route(&mut router, &chain, &[], round)
    };
    let both = Round { beside: true, ..BESIDE_A_MODEL };
    let Choice::Both { shape: Shape::Chain, nodes, model } = chosen(0.004, both) else { panic!("rows are cheap") };
    assert!(model < nodes && nodes <= 12, "what the model reaches by itself is not the cache's: {model}, {nodes}");
    assert_eq!(chosen(0.004, BESIDE_A_MODEL), Choice::Model { nodes: model }, "the two cannot be verified together");
    assert!(matches!(chosen(0.2, both), Choice::Model { .. }), "rows are dear");
    let Choice::Both { nodes, model, .. } = chosen(0.004, Round { budget: model + 6, ..both }) else {
        panic!("within the budget")
    };
    assert_eq!(nodes, 6);
    assert!(matches!(chosen(0.004, Round { backlog: None, ..both }), Choice::Chain { .. }), "{model} of no model");
}

#[test]
fn a_cache_that_is_wrong_where_the_model_is_is_not_verified_beside_it() {
    let chosen = |cache_is_right: bool| {
        let options = PayoffOptions { token_cost: 0.06, model_cost: 0.05, explore: 0.0, ..PayoffOptions::default() };
        let mut router = PayoffRouter::new(options).expect("valid");
        router.start(1, 0).expect("a new id");
        let chain = Offer { tokens: &[5], parents: &[-1], path_probs: &[0.5], match_length: 2 };
        let round = Round { chain, beside: true, ..BESIDE_A_MODEL };
        let mut text: Vec<u32> = Vec::new();
        // As often right as it says: where the model drafter is wrong, or where that is right.
        for turn in 0..80 {
            router.route(1, &Round { text: &text, ..round }).expect("sound");
            let model_is_right = turn % 2 == 0;
            router.note_model(1, usize::from(model_is_right), !model_is_right).expect("active");
            text.push(if cache_is_right == model_is_right { 8 } else { 5 });
        }
        router.route(1, &Round { text: &text, ..round }).expect("sound")
    };
    assert!(matches!(chosen(true), Choice::Both { .. }));
    assert!(matches!(chosen(false), Choice::Model { .. }));
}

#[test]
fn a_gain_of_the_model_drafter_within_the_error_of_its_estimate_is_none() {
    let (token_cost, model_acceptance) = (0.02, 0.7);
    let chosen = |gain: f64| {
        // One drafted token makes a round 1 + acceptance tokens for a draft, a step and one more row.
        let model_cost = (1.0 + model_acceptance) / gain - (1.0 + token_cost);
        let options = PayoffOptions { token_cost, model_cost, model_acceptance, longest_model: 1, explore: 0.0 };
        let mut router = PayoffRouter::new(options).expect("valid");
        router.start(1, 0).expect("a new id");
        route(&mut router, &[], &[], BESIDE_A_MODEL)
    };
    for gain in [0.95, 1.005, 1.02, 1.045] {
        assert_eq!(chosen(gain), Choice::Plain, "{gain}");
    }
    for gain in [1.055, 1.1, 1.5] {
        assert_eq!(chosen(gain), Choice::Model { nodes: 1 }, "{gain}");
    }
}

#[test]
fn a_long_text_that_the_model_drafter_has_not_read_is_read_if_much_is_left_to_write() {
    let mut router = router(0.2);
    let unread = Round { backlog: Some(4000), ..ALONE };
    assert_eq!(route(&mut router, &[], &[], Round { remaining: 4, ..unread }), Choice::Plain);
    let text = vec![5; 2000];
    let much = Round { text: &text, remaining: 5000, ..unread };
    assert!(matches!(route(&mut router, &[], &[], much), Choice::Model { .. }));
}

#[test]
fn a_prompt_is_read_where_texts_were_long_enough_to_earn_it() {
    let chosen = |length: usize| {
        let mut router = router(0.2);
        for id in 2..12 {
            router.start(id, 0).expect("a new id");
            router.finish(id, &vec![5; length]);
        }
        route(&mut router, &[], &[], Round { backlog: Some(3000), ..ALONE })
    };
    assert_eq!(chosen(10), Choice::Plain);
    assert!(matches!(chosen(400), Choice::Model { .. }));
}

#[test]
fn a_prompt_is_not_read_for_tokens_that_the_cache_brings() {
    let chosen = |cached: bool| {
        let mut router = router(0.2);
        let mut text = Vec::new();
        let unread = Round { remaining: 400, backlog: Some(1500), ..ALONE };
        for _ in 0..20 {
            let chain =
                Offer { tokens: &[7; 8], parents: &[-1, 0, 1, 2, 3, 4, 5, 6], path_probs: &[0.95; 8], match_length: 9 };
            let chain = if cached { chain } else { Offer::default() };
            router.route(1, &Round { text: &text, chain, remaining: 8, ..unread }).expect("sound");
            text.extend([7; 9]);
        }
        router.route(1, &Round { text: &text, ..unread }).expect("sound")
    };
    assert!(matches!(chosen(false), Choice::Model { .. }), "all tokens of this text are its gain");
    assert_eq!(chosen(true), Choice::Plain, "of this text it would write next to none");
}

#[test]
fn exploration_tries_the_model_drafter_at_its_rate_only_if_there_is_one() {
    let options = PayoffOptions { explore: 0.1, model_cost: 2.0, ..PayoffOptions::default() };
    let mut router = PayoffRouter::new(options).expect("valid");
    router.start(1, 0).expect("a new id");
    let round = Round { uniform: 0.05, ..BESIDE_A_MODEL };
    assert!(matches!(route(&mut router, &[0.95; 4], &[], round), Choice::Model { .. }));
    assert!(matches!(route(&mut router, &[0.95; 4], &[], Round { uniform: 0.15, ..round }), Choice::Chain { .. }));
    assert!(matches!(route(&mut router, &[0.95; 4], &[], Round { backlog: None, ..round }), Choice::Chain { .. }));
    // Reading a long text for a try would cost too much.
    let far = Round { backlog: Some(4000), ..round };
    assert!(matches!(route(&mut router, &[0.95; 4], &[], far), Choice::Chain { .. }));
}

#[test]
fn a_crowded_forward_leaves_less_room_for_drafts() {
    let cost = Cost::table(&[1.0, 8.0, 64.0], &[1.0, 1.05, 8.0]).expect("rising");
    let nodes = |batch| {
        let mut router = router(0.2);
        router.set_costs(cost.clone(), None);
        match route(&mut router, &[0.8, 0.6, 0.5, 0.4, 0.3, 0.2], &[], Round { batch, ..ALONE }) {
            Choice::Chain { nodes } => nodes,
            _ => 0,
        }
    };
    assert_eq!(nodes(1), 6);
    assert!(nodes(8) < 3, "{}", nodes(8));
}

#[test]
fn drafts_that_were_not_verified_teach_too() {
    let mut router = router(0.2);
    let before = router.expected(&[0.6, 0.5]);
    let mut text = Vec::new();
    for _ in 0..300 {
        let chain = Offer { tokens: &[5, 6], parents: &[-1, 0], path_probs: &[0.6, 0.5], match_length: 2 };
        router.route(1, &Round { text: &text, chain, ..ALONE }).expect("sound");
        text.push(9);
    }
    router.finish(1, &text);
    assert!(router.expected(&[0.6, 0.5]) < 0.4 * before);
    assert!(router.route(1, &ALONE).is_err(), "finished");
    assert!(router.note_model(1, 1, true).is_err());
}

#[test]
fn offers_that_do_not_fit_are_refused() {
    let mut router = router(0.2);
    assert!(router.start(1, 0).is_err(), "active already");
    for (tokens, parents, path_probs) in
        [(&[1, 2][..], &[-1][..], &[0.5][..]), (&[1], &[0], &[0.5]), (&[1], &[-2], &[0.5])]
    {
        let chain = Offer { tokens, parents, path_probs, match_length: 0 };
        assert!(router.route(1, &Round { chain, ..ALONE }).is_err());
    }
    for options in [
        PayoffOptions { token_cost: f64::NAN, ..PayoffOptions::default() },
        PayoffOptions { explore: 1.5, ..PayoffOptions::default() },
        PayoffOptions { model_acceptance: -0.1, ..PayoffOptions::default() },
    ] {
        assert!(PayoffRouter::new(options).is_err(), "{options:?}");
    }
}

#[test]
fn row_counts_between_timed_ones_follow_them_and_not_the_guess() {
    let mut cost = Cost::new(1.0, 0.02);
    for _ in 0..60 {
        for rows in [1, 9, 31] {
            cost.note(rows, 0.1 + 0.05 * rows as f64);
        }
    }
    for rows in [1, 4, 9, 16, 24, 31, 60] {
        let want = 0.1 + 0.05 * rows as f64;
        assert!((cost.seconds(rows) - want).abs() < 0.05 * want, "{rows}: {}", cost.seconds(rows));
    }
    // A table that is level at its end does not make longer forwards free.
    let level = Cost::table(&[1.0, 24.0, 32.0], &[0.1, 0.3, 0.3]).expect("rising");
    assert!(level.seconds(500) > 2.5, "{}", level.seconds(500));
    // Of any number of row counts few points are kept.
    for rows in 1..5000 {
        cost.note(rows, 0.1 + 0.05 * rows as f64);
    }
    assert!((cost.seconds(4000) - 200.1).abs() < 10.0, "{}", cost.seconds(4000));
    let mut free = router(0.0);
    free.note_model_time(4, 1, 1, 1e-3);
    assert!(matches!(route(&mut free, &[], &[], BESIDE_A_MODEL), Choice::Model { .. }));
}

#[test]
fn guessed_costs_keep_their_ratio_when_one_is_timed() {
    let mut timed = router(0.2);
    let mut guessed = router(0.2);
    timed.note_forward(1, 1e-4);
    for paths in [&[][..], &[0.4], &[0.9; 5]] {
        assert_eq!(route(&mut timed, paths, &[], BESIDE_A_MODEL), route(&mut guessed, paths, &[], BESIDE_A_MODEL));
    }
    let mut drafted = router(0.2);
    drafted.note_model_time(4, 1, 1, 4.0 * 0.2 * 1e3);
    assert_eq!(route(&mut drafted, &[], &[], BESIDE_A_MODEL), route(&mut guessed, &[], &[], BESIDE_A_MODEL));
    let mut measured = router(0.2);
    measured.set_costs(Cost::table(&[1.0, 128.0], &[1e-3, 3.54e-3]).expect("rising"), None);
    assert_eq!(route(&mut measured, &[], &[], BESIDE_A_MODEL), route(&mut guessed, &[], &[], BESIDE_A_MODEL));
}

#[test]
fn a_router_survives_saving_and_damage_is_refused() {
    let mut learned = router(0.3);
    for _ in 0..50 {
        learned.note_chain(&[(0.7, true), (0.4, false)]);
        learned.note_model(1, 3, true).expect("active");
        learned.note_forward(2, 0.08);
        learned.note_forward(6, 0.09);
        learned.note_model_time(4, 1, 1, 0.05);
    }
    let text = learned.save();
    let mut again = PayoffRouter::load(&text).expect("just saved");
    assert_eq!(again.save(), text);
    assert_eq!(learned.without_requests().save(), text);
    again.start(1, 0).expect("requests are not saved");
    for paths in [&[][..], &[0.3], &[0.9, 0.8, 0.5, 0.2]] {
        assert_eq!(route(&mut again, paths, &[], ALONE), route(&mut learned, paths, &[], ALONE));
        assert!((again.expected(paths) - learned.expected(paths)).abs() < 1e-6);
    }
    for wrong in [
        "",
        "specrs payoff 3\n",
        &text.replace("\nnew ", "\nnow "),
        &text.replace("\nlength ", "\nlengths "),
        &text.replace("chain", "chian"),
        &text.replace("model 0", "model -0.5 "),
        &text.replace("forward 2 ", "forward 8 "),
        &text.replace("left 0", "left 1"),
        &text.replace("draft-guess", "draft"),
        &text[..40],
        &text[..text.len() - 20],
    ] {
        assert!(PayoffRouter::load(wrong).is_err(), "{wrong:?}");
    }
}

/// A perceptron whose weights are a fixed pseudo-random pattern, and the same sum written plainly.
fn perceptron(scale: f32) -> (Mlp, impl Fn(&[f32; FEATURES]) -> f64) {
    let weight = |at: usize| (((at * 2_654_435_761) >> 7) % 2001) as f32 / 1000.0 - 1.0;
    let part =
        |from: usize, len: usize, scale: f32| -> Vec<f32> { (from..from + len).map(|at| scale * weight(at)).collect() };
    let first = (part(0, FEATURES * HIDDEN, 0.3), part(7, HIDDEN, 0.1));
    let second = (part(99, HIDDEN * HIDDEN, 0.1), part(3, HIDDEN, 0.1));
    let last = (part(5, HIDDEN, scale), vec![0.25]);
    let mlp = Mlp::new([&first.0, &first.1], [&second.0, &second.1], [&last.0, &last.1], "abc").expect("fits");
    let plain = move |features: &[f32; FEATURES]| {
        let layer = |inputs: &[f64], (weights, bias): &(Vec<f32>, Vec<f32>)| -> Vec<f64> {
            let outputs = bias.len();
            let sum = |unit| -> f64 {
                inputs.iter().enumerate().map(|(i, x)| x * f64::from(weights[i * outputs + unit])).sum()
            };
            (0..outputs).map(|unit| sum(unit) + f64::from(bias[unit])).collect()
        };
        let rectified = |units: Vec<f64>| -> Vec<f64> { units.into_iter().map(|unit| unit.max(0.0)).collect() };
        let inputs: Vec<f64> = features.iter().map(|&x| f64::from(x)).collect();
        layer(&rectified(layer(&rectified(layer(&inputs, &first)), &second)), &last)[0].max(0.0)
    };
    (mlp, plain)
}

#[test]
fn the_perceptron_computes_what_its_formula_says_and_survives_its_file() {
    let (mlp, plain) = perceptron(0.5);
    let again = Mlp::from_bytes(&mlp.to_bytes()).expect("just made");
    assert_eq!(again, mlp);
    assert_eq!(again.fingerprint(), "abc");
    let mut different = 0;
    for round in 0..50 {
        let features: [f32; FEATURES] = std::array::from_fn(|i| ((round * 31 + i * 17) % 23) as f32 / 8.0 - 1.0);
        let (got, want) = (mlp.predict(&features), plain(&features));
        assert!((f64::from(got) - want).abs() < 1e-3 * want.abs().max(1.0), "{got} {want}");
        different += usize::from(got > 0.0);
    }
    assert!(different > 10, "not all predictions are zero");
    let bytes = mlp.to_bytes();
    for at in [0, 7, 9, 12, 21, 90, 5000, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        assert!(Mlp::from_bytes(&damaged).is_err(), "byte {at}");
    }
    for cut in [0, 3, 80, bytes.len() - 4] {
        assert!(Mlp::from_bytes(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    assert!(Mlp::new([&[], &[]], [&[], &[]], [&[], &[]], "").is_err());
}

#[test]
fn rules_of_the_paper_and_of_peers_take_the_whole_chain_or_the_model() {
    let chain = Offer { tokens: &[1; 6], parents: &[-1, 0, 1, 2, 3, 4], path_probs: &[0.9; 6], match_length: 4 };
    let round = Round { chain, ..BESIDE_A_MODEL };
    for (rule, taken) in
        [(Rule::Match(4), true), (Rule::Match(5), false), (Rule::Expected(4.0), true), (Rule::Expected(6.0), false)]
    {
        let mut router = router(0.2);
        router.set_rule(rule);
        let choice = router.route(1, &round).expect("sound");
        assert_eq!(choice == Choice::Chain { nodes: 6 }, taken, "{rule:?}");
        assert_eq!(matches!(choice, Choice::Model { .. }), !taken, "{rule:?}");
        let alone = router.route(1, &Round { backlog: None, ..round }).expect("sound");
        assert_eq!(alone, Choice::Chain { nodes: 6 }, "without a model drafter there is no other arm");
    }
    // The perceptron takes the place of the stated probabilities.
    let mut router = router(0.2);
    router.set_rule(Rule::Expected(4.0));
    router.set_predictor(Some(Arc::new(perceptron(0.0).0)));
    assert!(matches!(router.route(1, &round).expect("sound"), Choice::Model { .. }), "it predicts a quarter token");
    router.set_rule(Rule::Rate);
    assert!(matches!(router.route(1, &round).expect("sound"), Choice::Model { .. }));
}

#[test]
fn features_tell_no_more_than_is_known_and_labels_come_from_the_text() {
    let text: Vec<u32> = vec![5, 6, 7, 5, 6, 7, 8];
    let mut router = router(0.2);
    router.keep_examples();
    for at in 1..=text.len() {
        let chain =
            Offer { tokens: &[6, 7, 5], parents: &[-1, 0, 1], path_probs: &[0.9, 0.8, 0.7], match_length: at as u32 };
        let round = Round { text: &text[..at], chain, ..ALONE };
        router.route(1, &round).expect("sound");
    }
    router.finish(1, &text);
    let examples = router.take_examples();
    assert!(router.take_examples().is_empty());
    // Offers after 1, 2, ... tokens of the text; the last one has no text behind it and no label.
    let labels: Vec<u32> = examples.iter().map(|example| example.1).collect();
    assert_eq!(labels, [3, 0, 0, 2, 0, 0]);
    for (at, (features, _)) in examples.iter().enumerate() {
        // A draft of the round before can be known to one token at most.
        assert!(features[15] <= 1_f32.ln_1p() + 1e-6, "offer {at}");
        assert!((features[3] - (at as f32 + 1.0).ln_1p()).abs() < 1e-6);
    }
    assert_eq!(examples[1].0[15], 1_f32.ln_1p(), "the first draft's first token came true");
    assert_eq!(examples[2].0[15], 0.0);
}
