//! A whole engine in one page: a toy model, the cache as the drafter, greedy verification. No Python.
//!
//! ```text
//! cargo run --release --example minimal_engine
//! ```

use specrs::draft::{CacheOptions, Draft, DraftOptions, Shape, SuffixCache};

/// A toy target: it writes its 40-token song again and again, with a new word every seventeen tokens.
fn target(text: &[u32]) -> u32 {
    let at = text.len();
    if at.is_multiple_of(17) { 1000 + at as u32 % 97 } else { (at % 40) as u32 }
}

/// One target forward over the anchor and the draft: the greedy token after the anchor and after each node.
fn score(text: &[u32], draft: &Draft) -> Vec<u32> {
    let mut paths: Vec<Vec<u32>> = vec![text.to_vec()];
    for (&token, &parent) in draft.tokens.iter().zip(&draft.parents) {
        let mut path = paths[(parent + 1) as usize].clone();
        path.push(token);
        paths.push(path);
    }
    paths.iter().map(|path| target(path)).collect()
}

/// Follows the target's choices down the tree: accepted tokens, then one more that the target chose itself.
fn verify(draft: &Draft, choices: &[u32]) -> Vec<u32> {
    let (mut at, mut accepted) = (-1, Vec::new());
    loop {
        let wanted = choices[(at + 1) as usize];
        accepted.push(wanted);
        let next = (0..draft.len()).find(|&node| draft.parents[node] == at && draft.tokens[node] == wanted);
        let Some(node) = next else { return accepted };
        at = node as i32;
    }
}

#[allow(clippy::print_stderr, reason = "an example tells its result")]
fn main() -> specrs::Result<()> {
    let cache = SuffixCache::new(CacheOptions::default())?;
    let options = DraftOptions { budget: 16, shape: Shape::Tree, min_prob: 0.1, eos: &[], vocab_size: u32::MAX };
    let (mut text, mut rounds): (Vec<u32>, usize) = ((0..40).collect(), 0);
    cache.start(1, &text)?;
    let mut new: Vec<u32> = Vec::new();
    let mut draft = Draft::default();
    while text.len() < 1000 {
        cache.step(1, &new, &options, &mut draft)?;
        new = verify(&draft, &score(&text, &draft));
        text.extend(&new);
        rounds += 1;
    }
    cache.finish(1, true)?;

    let mut plain: Vec<u32> = (0..40).collect();
    while plain.len() < text.len() {
        plain.push(target(&plain));
    }
    assert_eq!(text, plain, "speculation never changes the answer");
    let written = text.len() - 40;
    eprintln!("{written} tokens in {rounds} rounds: {:.1} tokens per round", written as f64 / rounds as f64);
    Ok(())
}
