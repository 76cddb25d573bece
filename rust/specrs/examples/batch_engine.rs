//! An engine with a batch: requests come and go, rows move up, and the proposer sees rows alone. No Python.
//!
//! ```text
//! cargo run --release --example batch_engine
//! ```

use specrs::draft::{CacheOptions, SuffixCache};
use specrs::serving::{Batch, Proposal, Proposer, ProposerOptions};

const WIDTH: usize = 512;
const ROWS: usize = 4;

/// A toy target: each request writes its own 40-token song again and again, with a new word every seventeen tokens.
fn target(song: i32, text: &[i32]) -> i32 {
    let at = text.len() as i32;
    if at % 17 == 0 { 10_000 + at % 97 } else { song * 100 + at % 40 }
}

/// Seconds of a forward over `rows` rows, on the machine of this example.
fn seconds(rows: usize) -> f64 {
    0.030 + 0.001 * rows as f64
}

#[allow(clippy::print_stderr, reason = "an example tells its result")]
fn main() -> specrs::Result<()> {
    let cache = SuffixCache::new(CacheOptions::default())?;
    let mut proposer = Proposer::new(ProposerOptions {
        draft_tokens: 16,
        max_length: WIDTH,
        eos: Vec::new(),
        min_prob: 0.1,
        threads: 1,
        gate: true,
        token_cost: 0.02,
        keep: true,
        hand_out: false,
        dead_steps: 200,
    })?;
    let mut waiting: Vec<(i32, Vec<i32>)> = (0..12).map(|song| (song, vec![song * 100; 2])).collect();
    let (mut running, mut written, mut clock) = (Vec::<(i32, Vec<i32>)>::new(), 0, 0.0);
    let mut proposal = Proposal::default();
    while !(waiting.is_empty() && running.is_empty()) {
        // One forward over every anchor and every draft; greedy verification keeps what the target would have written.
        let mut fresh = Vec::new();
        for (row, (song, text)) in running.iter_mut().enumerate() {
            let before = text.len();
            for &token in &proposal.tokens[proposal.row_ptr[row]..proposal.row_ptr[row + 1]] {
                if token as i32 != target(*song, text) {
                    break;
                }
                text.push(token as i32);
            }
            text.push(target(*song, text));
            fresh.push(text.len() - before);
        }
        let took = seconds(running.len() + proposal.tokens.len());
        clock += took;
        written += fresh.iter().sum::<usize>();
        // Finished requests leave, those behind move up, and new ones join with their prompt read.
        let mut rows = running.into_iter().zip(fresh).collect::<Vec<_>>();
        rows.retain(|((_, text), _)| text.len() < 300);
        while rows.len() < ROWS
            && let Some(next) = waiting.pop()
        {
            rows.push((next, 1));
        }
        let fresh: Vec<usize> = rows.iter().map(|(_, fresh)| *fresh).collect();
        running = rows.into_iter().map(|(request, _)| request).collect();

        let mut tokens = vec![0; running.len() * WIDTH];
        for (row, (_, text)) in running.iter().enumerate() {
            tokens[row * WIDTH..][..text.len()].copy_from_slice(text);
        }
        let lengths: Vec<usize> = running.iter().map(|(_, text)| text.len()).collect();
        proposal = proposer.step(&cache, &Batch::new(&tokens, WIDTH, &lengths, &fresh)?, Some(took))?;
    }
    let plain = written as f64 / ROWS as f64 * seconds(ROWS);
    eprintln!("{written} tokens, {:.1} times as fast as without drafts: {:?}", plain / clock, proposer.counts());
    assert_eq!(proposer.counts().requests, 12);
    assert!(clock < 0.5 * plain);
    Ok(())
}
