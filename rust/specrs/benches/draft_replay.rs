//! Cache drafting on real text, without Python: what `benches/peers/measure.py` replays, in one process and in Rust, so
//! that a profile shows the core alone.
//!
//!     SPECRS_HISTORY=train.u32 SPECRS_HELD=held.u32 cargo bench -p specrs --bench draft_replay
//!
//! Both files are little-endian u32 tokens, each document ended by 2³² − 1. `SPECRS_ROUNDS` repeats the replay, for a
//! profiler. Between steps the caches are dirtied, as the engine around the drafter does, unless `SPECRS_WARM` is set.
#![allow(clippy::print_stdout, reason = "a bench tells its result")]

use std::hint::black_box;
use std::time::Instant;

use specrs::draft::{CacheOptions, Draft, DraftOptions, SEPARATOR, Shape, SuffixCache};

const BUDGET: usize = 16;
const WRITTEN: usize = 1000;

fn documents(variable: &str) -> Option<Vec<Vec<u32>>> {
    let bytes = std::fs::read(std::env::var(variable).ok()?).expect("the variable names a readable file");
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    Some(words.split(|&word| word == SEPARATOR).filter(|text| !text.is_empty()).map(<[u32]>::to_vec).collect())
}

fn tell(name: &str, took: &mut [u32]) {
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("{name}: median {} ns, p90 {}, p99 {} ({} steps)", at(0.5), at(0.9), at(0.99), took.len());
}

fn main() {
    let (Some(history), Some(held)) = (documents("SPECRS_HISTORY"), documents("SPECRS_HELD")) else {
        println!("set SPECRS_HISTORY and SPECRS_HELD to replay real text");
        return;
    };
    let rounds = std::env::var("SPECRS_ROUNDS").map_or(1, |text| text.parse().expect("a number"));
    let dirty = std::env::var_os("SPECRS_WARM").is_none();
    let cache = SuffixCache::new(CacheOptions::default()).expect("valid options");
    let ptr: Vec<i64> = std::iter::once(0)
        .chain(history.iter().scan(0, |sum, text| {
            *sum += text.len() as i64;
            Some(*sum)
        }))
        .collect();
    let flat = history.concat();
    let start = Instant::now();
    cache.add_many(&flat, &ptr).expect("in range");
    println!("ingest: {:.2} M tok/s", flat.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
    drop((flat, history));
    // More than the second-level cache, less than the third.
    let mut other = vec![1_u64; 1 << 17];
    for (name, shape) in [("chain", Shape::Chain), ("tree", Shape::Tree)] {
        let options = DraftOptions { budget: BUDGET, shape, min_prob: 0.1, eos: &[], vocab_size: u32::MAX };
        let (mut steps, mut draft) = (Vec::new(), Draft::default());
        let (mut written, mut drafted) = (0, 0);
        for (number, text) in (0_i64..).zip(held.iter().cycle().take(rounds * held.len())) {
            let prompt = (text.len() / 4).max(64).min(text.len());
            let end = text.len().min(prompt + WRITTEN);
            cache.start(number, &text[..prompt]).expect("a new id");
            let (mut before, mut at) = (prompt, prompt);
            while at < end {
                if dirty {
                    other.iter_mut().step_by(8).for_each(|word| *word = word.wrapping_mul(3));
                    black_box(&mut other);
                }
                let start = Instant::now();
                cache.step(number, &text[before..at], &options, &mut draft).expect("active");
                steps.push(start.elapsed().as_nanos() as u32);
                drafted += draft.len();
                let equal = longest_path(&draft, &text[at..end.min(at + 64)]);
                (before, at) = (at, end.min(at + equal + 1));
            }
            written += end - prompt;
            cache.abort(number).expect("active");
        }
        println!(
            "{name}: {:.3} tokens per step, {:.2} drafted",
            written as f64 / steps.len() as f64,
            drafted as f64 / steps.len() as f64
        );
        tell(name, &mut steps);
    }
}

/// Length of the longest path of the draft that equals the text.
fn longest_path(draft: &Draft, text: &[u32]) -> usize {
    let mut depths: Vec<Option<usize>> = Vec::with_capacity(draft.len());
    for (&token, &parent) in draft.tokens.iter().zip(&draft.parents) {
        let above = if parent < 0 { Some(0) } else { depths[parent as usize] };
        depths.push(above.filter(|&depth| text.get(depth) == Some(&token)).map(|depth| depth + 1));
    }
    depths.into_iter().flatten().max().unwrap_or(0)
}
