//! Cache drafting without Python: ingest, start of a long prompt, one step. Medians.
//!
//!     SPECRS_TOKENS=tokens.u32 cargo bench -p specrs --bench draft
//!
//! `SPECRS_TOKENS` names a file of little-endian u32 tokens (the first million is used); without it the text is made up
//! and repeats itself less than real text does.
#![allow(clippy::print_stdout, reason = "a bench tells its result")]

use std::hint::black_box;
use std::time::Instant;

use specrs::draft::{CacheOptions, Draft, DraftOptions, LiveText, Segment, Shape, SuffixCache};

const TOKENS: usize = 1_000_000;

fn tokens() -> Vec<u32> {
    if let Ok(path) = std::env::var("SPECRS_TOKENS") {
        let bytes = std::fs::read(path).expect("SPECRS_TOKENS names a readable file");
        return bytes.as_chunks::<4>().0.iter().take(TOKENS).map(|word| u32::from_le_bytes(*word)).collect();
    }
    let mut state = 1_u64;
    (0..TOKENS)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few tokens are frequent and most are rare.
            let share = (state >> 40) as f64 / f64::from(1 << 24);
            (share * share * share * 50_000.0) as u32
        })
        .collect()
}

fn median(mut took: Vec<f64>) -> f64 {
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

fn timed(repeats: usize, mut work: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    median((0..repeats).map(once).collect())
}

fn main() {
    let text = tokens();
    let ptr: Vec<i64> = (0..text.len() as i64).step_by(4000).chain([text.len() as i64]).collect();
    for share in [1, 8, 64] {
        let part = &text[..text.len() / share];
        let ends: Vec<i64> =
            ptr.iter().copied().filter(|&end| end < part.len() as i64).chain([part.len() as i64]).collect();
        let seconds = timed(5, || drop(black_box(Segment::from_documents(part, &ends).expect("fits"))));
        println!("ingest of {} tokens: {:.2} M tok/s", part.len(), part.len() as f64 / seconds / 1e6);
    }
    let prompt = &text[..131_072.min(text.len())];
    let start = timed(5, || {
        let mut live = LiveText::new();
        live.extend(black_box(prompt));
        black_box(live.memory_bytes());
    });
    println!("start of {} tokens: {:.2} ms", prompt.len(), start * 1e3);

    let cache = SuffixCache::new(CacheOptions::default()).expect("valid options");
    cache.add_many(&text, &ptr).expect("in range");
    let options = DraftOptions { budget: 16, shape: Shape::Chain, min_prob: 0.1, eos: &[], vocab_size: u32::MAX };
    let mut draft = Draft::default();
    // Edits: stretches of the cached text with a token changed now and then.
    let (mut appends, mut drafts, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for request in 0..40_i64 {
        let from = request as usize * 20_011 % (text.len() - 4000);
        let mut edited = text[from..from + 3000].to_vec();
        (0..edited.len()).step_by(43).for_each(|at| edited[at] = 17);
        cache.start(request, &edited[..1000]).expect("a new id");
        let mut at = 1000;
        while at < edited.len() {
            let start = Instant::now();
            cache.draft(request, &options, &mut draft).expect("active");
            drafts.push(start.elapsed().as_nanos() as f64);
            let start = Instant::now();
            cache.draft(request, &options, &mut draft).expect("active");
            again.push(start.elapsed().as_nanos() as f64);
            let equal = draft.tokens.iter().zip(&edited[at..]).take_while(|(a, b)| a == b).count();
            let end = (at + equal + 1).min(edited.len());
            let start = Instant::now();
            cache.append(request, &edited[at..end]).expect("active");
            appends.push(start.elapsed().as_nanos() as f64);
            at = end;
        }
        cache.abort(request).expect("active");
    }
    println!(
        "{} steps of edits: append {:.0} ns, draft {:.0} ns, the same draft again {:.0} ns",
        drafts.len(),
        median(appends),
        median(drafts),
        median(again)
    );
}
