//! Many threads on one cache: requests start, go on, end and fight over ids while text is added, merged and evicted.
//! Nothing is lost, and no call fails but for the reason it should. `./dev tsan` runs it under `ThreadSanitizer`, with more
//! rounds (`SPECRS_STRESS_ROUNDS`).

use std::sync::atomic::{AtomicU64, Ordering};

use specrs::ErrorKind;
use specrs::draft::{CacheOptions, Draft, DraftOptions, HistoryOptions, Shape, SuffixCache};

const THREADS: u32 = 64;
/// Ids that all threads use, beside one of its own for each.
const DISPUTED: u64 = 5;

fn rounds() -> u32 {
    std::env::var("SPECRS_STRESS_ROUNDS").map_or(12, |text| text.parse().expect("a number"))
}

/// A document of one thread: its mark, what all share, its mark again.
fn document(thread: u32, round: u32) -> Vec<u32> {
    let mark = 1_000_000 + thread;
    let shared = (0..40).map(|at| (at * at + round % 3) % 23);
    std::iter::once(mark).chain(shared).chain([mark]).collect()
}

#[test]
fn threads_lose_nothing_and_meet_only_the_errors_they_should() {
    let cache = SuffixCache::new(CacheOptions {
        history: HistoryOptions { seal_tokens: 400, ..HistoryOptions::default() },
        ..CacheOptions::default()
    })
    .expect("valid options");
    let refused = AtomicU64::new(0);
    let work = |thread: u32| {
        let options = |shape| DraftOptions { budget: 12, shape, min_prob: 0.01, eos: &[], vocab_size: u32::MAX };
        let mut draft = Draft::default();
        for round in 0..rounds() {
            let text = document(thread, round);
            let own = i64::from(thread);
            cache.start(own, &text[..10]).expect("this thread's id");
            for piece in text[10..].chunks(7) {
                cache.step(own, piece, &options(Shape::Tree), &mut draft).expect("active");
                assert!(draft.parents.iter().zip(0..).all(|(&parent, node)| parent < node));
            }
            cache.finish(own, true).expect("active");
            // An id that others use too: whoever comes second is told so.
            let disputed = -1 - (u64::from(thread + round) % DISPUTED) as i64;
            let step = |id: i64| cache.step_many(&[id], &[3, 4], &[0, 2], &[6], &options(Shape::Chain), 2).map(drop);
            for outcome in [cache.start(disputed, &[1, 2, 3]), step(disputed), cache.abort(disputed)] {
                if let Err(error) = outcome {
                    assert_eq!(error.kind(), ErrorKind::Request, "{error}");
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            match thread % 8 {
                0 if round % 4 == 0 => cache.compact().expect("fits"),
                1 => cache.add(&document(thread, round + 1)).expect("in range"),
                2 => assert!(cache.stats().active_requests <= (THREADS as usize) + DISPUTED as usize),
                3 => drop(cache.segments().expect("no merge fails")),
                _ => {}
            }
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        // `ThreadSanitizer` follows a join, but not how a scope waits at its end.
        for thread in all {
            thread.join().expect("no thread fails");
        }
    });
    let rounds = rounds() as usize;
    let stats = cache.stats();
    let added = (0..THREADS).filter(|thread| thread % 8 == 1).count();
    assert_eq!(stats.cached_documents, rounds * (THREADS as usize + added));
    for thread in 0..THREADS {
        let documents = rounds * if thread % 8 == 1 { 2 } else { 1 };
        assert_eq!(cache.count(&[1_000_000 + thread]).expect("in range"), 2 * documents, "thread {thread}");
    }
    // The disputed ids may be left active by an unlucky order; nothing else is.
    assert!(stats.active_requests <= DISPUTED as usize);
    assert!(refused.load(Ordering::Relaxed) > 0, "nobody met anybody");
}

#[test]
fn readers_see_whole_states_while_text_comes_and_goes() {
    let cache = SuffixCache::new(CacheOptions {
        history: HistoryOptions { seal_tokens: 90, max_tokens: Some(2_000), ..HistoryOptions::default() },
        ..CacheOptions::default()
    })
    .expect("valid options");
    let text: Vec<u32> = (0..60).collect();
    let (cache, text) = (&cache, &text);
    std::thread::scope(|scope| {
        let read = |reader| {
            scope.spawn(move || {
                let options =
                    DraftOptions { budget: 8, shape: Shape::Chain, min_prob: 0.0, eos: &[], vocab_size: u32::MAX };
                let mut draft = Draft::default();
                cache.start(reader, &text[..30]).expect("a new id");
                for _ in 0..rounds() * 40 {
                    cache.draft(reader, &options, &mut draft).expect("active");
                    // Whatever has gone meanwhile, what is drafted is how the text went on.
                    let length = draft.len();
                    assert_eq!(draft.tokens, text[30..30 + length]);
                    assert!(cache.stats().cached_tokens <= 2_000);
                }
                cache.abort(reader).expect("active");
            })
        };
        let mut all: Vec<_> = (0..8).map(read).collect();
        all.push(scope.spawn(|| {
            for round in 0..rounds() * 40 {
                cache.add(text).expect("in range");
                if round % 9 == 0 {
                    cache.evict_to(u64::from(round % 5) * 100);
                }
                if round % 31 == 0 {
                    cache.clear();
                }
            }
        }));
        for thread in all {
            thread.join().expect("no thread fails");
        }
    });
}
