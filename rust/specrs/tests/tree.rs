//! Trees: invariants, builders and layouts, by hand-drawn trees and by properties over random ones.

use specrs::tree::{DraftTree, best_first, layered, links, merge, pad_tokens, prune, retrieve_indices, visibility};

/// ```text
/// anchor ── 0:A ── 1:B ── 3:D
///        │      └─ 2:C
///        └─ 4:E
/// ```
const PARENTS: [i32; 5] = [-1, 0, 0, 1, -1];

fn example() -> DraftTree {
    let confidence = vec![0.6, 0.5, 0.4, 0.9, 0.3];
    DraftTree::from_parts(vec![10, 11, 12, 13, 14], PARENTS.to_vec(), confidence).expect("valid")
}

fn random_parents(seed: u64, count: usize) -> Vec<i32> {
    let mut state = seed;
    (0..count as i64)
        .map(|node| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as i64 % (node + 1) - 1) as i32
        })
        .collect()
}

#[test]
fn depths_and_paths() {
    let tree = example();
    assert_eq!(tree.depths(), [1, 2, 2, 3, 1]);
    assert_eq!(tree.path(3), [0, 1, 3]);
    let path = tree.path_probs();
    assert!((path[3] - 0.6 * 0.5 * 0.9).abs() < 1e-6);
}

#[test]
fn wrong_trees_are_refused_with_the_node_named() {
    let make = |tokens: Vec<u32>, parents: Vec<i32>, confidence: Vec<f32>| {
        DraftTree::from_parts(tokens, parents, confidence).expect_err("wrong").to_string()
    };
    assert_eq!(make(vec![1, 2], vec![0, -1], vec![0.5; 2]), "parent of node 0 must be -1 or an earlier node, got 0");
    assert_eq!(make(vec![1, 2], vec![-1, -2], vec![0.5; 2]), "parent of node 1 must be -1 or an earlier node, got -2");
    assert_eq!(make(vec![1, 1], vec![-1, -1], vec![0.5; 2]), "token 1 is drafted twice below node -1");
    assert_eq!(make(vec![1], vec![-1], vec![f32::NAN]), "confidence of node 0 must be between 0 and 1, got NaN");
    assert!(make(vec![1], vec![], vec![]).contains("got 0 and 0 for 1"));
}

#[test]
fn layouts_of_the_example() {
    let (rows, width) = retrieve_indices(&PARENTS).expect("valid");
    assert_eq!((rows, width), (vec![0, 1, 3, -1, 0, 1, 2, 4, 0, 5, -1, -1], 4));
    assert_eq!(retrieve_indices(&[]).expect("valid"), (vec![0], 1));
    let links = links(&PARENTS).expect("valid");
    assert_eq!(links.first_child, [1, 2, 4, -1, -1, -1]);
    assert_eq!(links.next_sibling, [-1, 5, 3, -1, -1, -1]);
    let (padded, lengths) = pad_tokens(&[5, 6, 7], &[0, 2, 2, 3], 2, -1).expect("fits");
    assert_eq!((padded, lengths), (vec![5, 6, -1, -1, 7, -1], vec![2, 0, 1]));
    assert!(pad_tokens(&[5, 6, 7], &[0, 3], 2, -1).is_err());
    assert!(pad_tokens(&[u32::MAX - 1], &[0, 1], 2, -1).is_err());
}

#[test]
fn visibility_is_the_closure_of_ancestors() {
    for seed in 0..60 {
        let parents = random_parents(seed, seed as usize * 3);
        let bits = visibility(&parents, 0).expect("valid");
        for node in 0..parents.len() {
            let mut seen = vec![-1];
            let mut at = node as i32;
            while at >= 0 {
                seen.push(at);
                at = parents[at as usize];
            }
            for other in -1..parents.len() as i32 {
                assert_eq!(bits.sees(node, other), seen.contains(&other), "{parents:?} {node} {other}");
            }
        }
    }
}

#[test]
fn merging_keeps_every_path_once() {
    let other = DraftTree::chain(vec![10, 12, 20], vec![0.7, 0.2, 0.9]).expect("valid");
    let merged = merge(&[example(), other.clone()]);
    assert_eq!(merged.tokens(), [10, 11, 12, 13, 14, 20]);
    assert_eq!(merged.parents(), [-1, 0, 0, 1, -1, 2]);
    assert_eq!(merged.confidence(), [0.7, 0.5, 0.4, 0.9, 0.3, 0.9]);
    assert_eq!(merge(std::slice::from_ref(&other)), other);
    assert_eq!(merge(&[]), DraftTree::new());
}

#[test]
fn pruning_keeps_the_most_probable_tree() {
    let (kept, nodes) = prune(&example(), 3);
    assert_eq!(nodes, [0, 1, 4]); // path probabilities: .6 .3 .24 .27 .3
    assert_eq!(kept.parents(), [-1, 0, -1]);
    assert_eq!(prune(&example(), 9).0, example());
    assert!(prune(&example(), 0).0.is_empty());
}

/// Children of a node: tokens 0, 1, 2 with fixed confidences.
fn three(_: &DraftTree, _: i32, out: &mut Vec<(u32, f32)>) {
    out.extend([(0, 0.5), (1, 0.3), (2, 0.1)]);
}

#[test]
fn best_first_takes_the_most_probable_nodes() {
    let tree = best_first(&mut three, 12, 0.0);
    // All nodes down to depth 12 hold the 12 best; compare with the best 12 path probabilities of the full tree.
    let mut all = Vec::new();
    let mut layer = vec![1.0_f32];
    for _ in 0..6 {
        layer = layer.iter().flat_map(|path| [path * 0.5, path * 0.3, path * 0.1]).collect();
        all.extend(layer.iter().copied());
    }
    all.sort_by(|a, b| b.total_cmp(a));
    let mut got = tree.path_probs();
    assert!(got.is_sorted_by(|a, b| a >= b));
    got.sort_by(|a, b| b.total_cmp(a));
    for (got, want) in got.iter().zip(&all) {
        assert!((got - want).abs() < 1e-6);
    }
    assert_eq!(best_first(&mut three, 100, 0.2).len(), 3); // .5, .3, .25
    assert!(best_first(&mut three, 0, 0.0).is_empty());
}

#[test]
fn layered_growth_keeps_each_width() {
    let tree = layered(&mut three, &[2, 3, 1]);
    let at = |depth: i32| tree.depths().iter().filter(|&&own| own == depth).count();
    assert_eq!((at(1), at(2), at(3)), (2, 3, 1));
    assert_eq!(tree.tokens(), [0, 1, 0, 1, 0, 0]);
    assert_eq!(tree.parents(), [-1, -1, 0, 0, 1, 2]);
}
