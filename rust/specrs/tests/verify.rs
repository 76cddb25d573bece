//! Verification: the named edge cases shared with the Python tests, and properties for any input.

#![allow(clippy::redundant_closure, reason = "the path to a variant is not general over the law's lifetime")]

use proptest::prelude::*;
use serde_json::Value;
use specrs::verify::{
    Batch, Coins, DraftLaw, Logits, Relaxed, Replacement, Rule, Sampling, Status, Verdict, draw, log_probs,
    top_log_probs, verify,
};

fn number(value: &Value) -> f32 {
    match value.as_str() {
        Some("nan") => f32::NAN,
        Some("inf") => f32::INFINITY,
        Some("-inf") => f32::NEG_INFINITY,
        _ => value.as_f64().expect("a number") as f32,
    }
}

fn matrix(value: &Value) -> Vec<Vec<f32>> {
    let row = |row: &Value| row.as_array().expect("a row").iter().map(number).collect();
    value.as_array().map_or_else(Vec::new, |rows| rows.iter().map(row).collect())
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("coins").iter().map(|coin| coin.as_f64().expect("a coin")).collect()
}

fn integers<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
    let one = |value: &Value| T::try_from(value.as_i64().expect("an integer")).ok().expect("in range");
    value.as_array().expect("integers").iter().map(one).collect()
}

#[test]
fn named_cases() {
    let text = include_str!("../../../tests/cases/verify.json");
    let table: Value = serde_json::from_str(text).expect("valid JSON");
    let cases = table["cases"].as_array().expect("cases");
    assert!(cases.len() > 40);
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let mut rows = matrix(&case["logits"]);
        if rows.is_empty() {
            rows = matrix(&case["target_probs"]);
            rows.iter_mut().flatten().for_each(|prob| *prob = prob.ln());
        }
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let draft = matrix(&case["draft_probs"]);
        let draft: Vec<&[f32]> = draft.iter().map(Vec::as_slice).collect();
        let law = match case["one_hot"].as_bool() {
            Some(true) => DraftLaw::OneHot,
            _ => DraftLaw::Dense { rows: &draft, row_of: None },
        };
        let rule = match case["rule"].as_str().expect("a rule") {
            "greedy_or_fixed" => Rule::GreedyOrFixed,
            "chain" => Rule::Chain(law),
            "block" => Rule::Block(law),
            "specinfer" => Rule::Siblings(law, Replacement::With),
            "without_replacement" => Rule::Siblings(law, Replacement::Without),
            other => panic!("unknown rule {other}"),
        };
        let given = &case["sampling"];
        let knob = |key: &str, default: f64| given[key].as_f64().unwrap_or(default) as f32;
        let sampling = Sampling {
            temperature: knob("temperature", 1.0),
            top_k: given["top_k"].as_u64().unwrap_or(0) as u32,
            top_p: knob("top_p", 1.0),
            min_p: knob("min_p", 0.0),
        };
        let (tokens, parents): (Vec<u32>, Vec<i32>) = (integers(&case["tokens"]), integers(&case["parents"]));
        let (accept, emit) = (floats(&case["accept"]), floats(&case["emit"]));
        let row_ptr = [0, rows.len() as i64];
        let batch = Batch::new(Logits::F32(&rows), &row_ptr, &tokens, &parents).expect(name);
        let verdict = verify(&batch, &[sampling], &rule, Coins { accept: &accept, emit: &emit }).expect(name);
        assert_eq!(verdict.path, integers::<i32>(&case["path"]), "path of {name}");
        assert_eq!(i64::from(verdict.bonus[0]), case["token"].as_i64().expect("a token"), "bonus of {name}");
        assert_eq!(u64::from(verdict.status[0]), case["status"].as_u64().unwrap_or(0), "status of {name}");
    }
}

/// One request: logits, a tree, a dense law, coins.
#[derive(Debug, Clone)]
struct Given {
    logits: Vec<Vec<f32>>,
    tokens: Vec<u32>,
    parents: Vec<i32>,
    draft: Vec<Vec<f32>>,
    accept: Vec<f64>,
    emit: Vec<f64>,
}

fn coin() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0 - f64::EPSILON / 2.0), 0.0..1.0]
}

fn given(chain: bool) -> impl Strategy<Value = Given> {
    (1usize..200, 0usize..6).prop_flat_map(move |(vocabulary, nodes)| {
        let logit = prop_oneof![4 => -8.0f32..8.0, 1 => Just(f32::NEG_INFINITY)];
        let rows = prop::collection::vec(prop::collection::vec(logit, vocabulary), nodes + 1);
        let weights = prop::collection::vec(prop::collection::vec(0.01f32..1.0, vocabulary), nodes);
        let tokens = prop::collection::vec(0..vocabulary as u32 + 1, nodes);
        let parents: Vec<_> = (0..nodes as i32).map(|n| if chain { n - 1..n } else { -1..n }).collect();
        let coins = || prop::collection::vec(coin(), nodes + 1);
        (rows, weights, tokens, parents, coins(), coins()).prop_map(
            |(logits, weights, tokens, parents, accept, emit)| {
                let normalised = |row: Vec<f32>| {
                    let total: f32 = row.iter().sum();
                    row.into_iter().map(|weight| weight / total).collect()
                };
                let draft = weights.into_iter().map(normalised).collect();
                Given { logits, tokens, parents, draft, accept, emit }
            },
        )
    })
}

fn run(given: &Given, sampling: Sampling, rule: impl for<'a> Fn(DraftLaw<'a>) -> Rule<'a>) -> Verdict {
    let rows: Vec<&[f32]> = given.logits.iter().map(Vec::as_slice).collect();
    let draft: Vec<&[f32]> = given.draft.iter().map(Vec::as_slice).collect();
    let row_ptr = [0, rows.len() as i64];
    let batch = Batch::new(Logits::F32(&rows), &row_ptr, &given.tokens, &given.parents).expect("a sound batch");
    let coins = Coins { accept: &given.accept, emit: &given.emit };
    verify(&batch, &[sampling], &rule(DraftLaw::Dense { rows: &draft, row_of: None }), coins).expect("a sound call")
}

fn is_sound(given: &Given, verdict: &Verdict) {
    let mut node = -1;
    for &next in &verdict.path {
        assert_eq!(given.parents[next as usize], node, "the path goes from parent to child");
        node = next;
    }
    let masked = given.logits[(node + 1) as usize].iter().all(|&logit| logit == f32::NEG_INFINITY);
    assert_eq!(verdict.status[0] == Status::BadTarget as u8, masked);
    if !masked {
        let bonus = given.logits[(node + 1) as usize][verdict.bonus[0] as usize];
        assert!(bonus > f32::NEG_INFINITY, "no token that the target excludes");
    }
}

const SAMPLED: Sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.9, min_p: 0.02 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn tree_rules_return_paths(given in given(false)) {
        is_sound(&given, &run(&given, SAMPLED, |_| Rule::GreedyOrFixed));
        is_sound(&given, &run(&given, Sampling::GREEDY, |_| Rule::GreedyOrFixed));
        is_sound(&given, &run(&given, SAMPLED, |law| Rule::Siblings(law, Replacement::With)));
        is_sound(&given, &run(&given, SAMPLED, |law| Rule::Siblings(law, Replacement::Without)));
        is_sound(&given, &run(&given, SAMPLED, |law| Rule::SpecTr(law)));
    }

    #[test]
    fn chain_rules_return_paths(given in given(true)) {
        is_sound(&given, &run(&given, SAMPLED, |law| Rule::Chain(law)));
        is_sound(&given, &run(&given, SAMPLED, |law| Rule::Block(law)));
        is_sound(&given, &run(&given, SAMPLED, |draft| Rule::Relaxed {
            rule: Relaxed::Lenience(0.5), draft, beyond_support: false, budget: None,
        }));
    }

    #[test]
    fn one_child_without_replacement_is_rejection_sampling(mut given in given(true)) {
        let chain = run(&given, SAMPLED, |law| Rule::Chain(law));
        // A sibling rule reads a node's coin from the node's own row, the chain rule from its parent's.
        given.accept.rotate_right(1);
        let tree = run(&given, SAMPLED, |law| Rule::Siblings(law, Replacement::Without));
        prop_assert_eq!(chain.path, tree.path);
        prop_assert_eq!(chain.status, tree.status);
    }

    #[test]
    fn drawn_tokens_have_mass_in_the_law_returned(given in given(true), temperature in 0.0f32..3.0) {
        let rows: Vec<&[f32]> = given.logits.iter().map(Vec::as_slice).collect();
        let vocabulary = rows[0].len();
        let sampling = vec![Sampling { temperature, ..SAMPLED }; rows.len()];
        let mut probs = vec![0.0; rows.len() * vocabulary];
        let tokens = draw(Logits::F32(&rows), &sampling, &given.emit, Some(&mut probs)).expect("a sound call");
        for (token, law) in tokens.iter().zip(probs.chunks(vocabulary)) {
            if *token == specrs::verify::NO_TOKEN {
                prop_assert!(law.iter().all(|prob| prob.is_nan()));
            } else {
                prop_assert!(law[*token as usize] > 0.0);
                prop_assert!((law.iter().sum::<f32>() - 1.0).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn log_probs_are_normalised(given in given(true)) {
        let rows: Vec<&[f32]> = given.logits.iter().map(Vec::as_slice).collect();
        let k = rows[0].len();
        let (ids, values) = top_log_probs(Logits::F32(&rows), &[0], k).expect("a sound call");
        if !values[0].is_nan() {
            let total: f64 = values.iter().map(|value| f64::from(*value).exp()).sum();
            prop_assert!((total - 1.0).abs() < 1e-5);
            prop_assert!(values.windows(2).all(|w| w[0] >= w[1]));
            let again = log_probs(Logits::F32(&rows), &vec![0; k], &ids).expect("a sound call");
            prop_assert_eq!(again, values);
        }
    }
}
