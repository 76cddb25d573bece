//! Bounds of finished text: by tokens, bytes and age; epochs; and memory that stays bounded however much is written.
//!
//! `SPECRS_SOAK_TOKENS` makes the soak longer and prints its curve (run with `--nocapture`).
#![allow(clippy::print_stdout, reason = "the soak prints its curve")]

use specrs::draft::{CacheOptions, Draft, DraftOptions, HistoryOptions, Shape, SuffixCache};

fn cache(history: HistoryOptions) -> SuffixCache {
    SuffixCache::new(CacheOptions { history, ..CacheOptions::default() }).expect("valid options")
}

/// Text number `which`: runs of its own tokens, so that texts differ and repeat themselves in part.
fn text(which: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| which.wrapping_mul(2_654_435_761).rotate_left(at % 7) % 5000 + at % 11).collect()
}

fn continuation(cache: &SuffixCache, prompt: &[u32]) -> Draft {
    let options = DraftOptions { budget: 4, shape: Shape::Tree, min_prob: 0.0, eos: &[], vocab_size: u32::MAX };
    let mut draft = Draft::default();
    cache.start(1, prompt).expect("a new id");
    cache.draft(1, &options, &mut draft).expect("active");
    cache.abort(1).expect("active");
    draft
}

#[test]
fn bytes_are_bounded() {
    for most in [20_000_u64, 200_000] {
        let cache = cache(HistoryOptions { max_bytes: Some(most), ..HistoryOptions::default() });
        let mut dropped = false;
        for which in 0..400 {
            cache.add(&text(which, 200)).expect("in range");
            let stats = cache.stats();
            assert!(stats.cached_bytes as u64 <= most, "{} of {most}", stats.cached_bytes);
            dropped |= stats.cached_tokens < (which as usize + 1) * 200;
        }
        assert!(dropped);
        let newest = text(399, 200);
        assert!(cache.count(&newest[..50]).expect("in range") > 0, "the newest text is there");
    }
}

#[test]
fn text_of_old_epochs_goes_and_queries_as_if_it_never_came() {
    let aged = cache(HistoryOptions { max_age: Some(1), seal_tokens: 64, ..HistoryOptions::default() });
    let texts: Vec<Vec<u32>> = (0..6).map(|which| text(which, 90)).collect();
    for (epoch, text) in texts.iter().enumerate() {
        aged.add(text).expect("in range");
        assert_eq!(aged.advance_epoch().expect("merges"), epoch as u64 + 1);
        // The epoch that just ended is one old, so it alone is left.
        let fresh = cache(HistoryOptions { seal_tokens: 64, ..HistoryOptions::default() });
        fresh.add(text).expect("in range");
        assert_eq!(aged.stats().cached_tokens, 90);
        assert_eq!(aged.stats().epoch, epoch as u64 + 1);
        for probe in &texts {
            assert_eq!(aged.count(&probe[..3]).expect("in range"), fresh.count(&probe[..3]).expect("in range"));
            assert_eq!(continuation(&aged, &probe[..20]), continuation(&fresh, &probe[..20]));
        }
    }
}

#[test]
fn old_epochs_weigh_less_and_merges_do_not_mix_them() {
    let drafted = |decay: f32, compact: bool| {
        let cache = cache(HistoryOptions { epoch_decay: decay, seal_tokens: 8, ..HistoryOptions::default() });
        for _ in 0..4 {
            cache.add(&[1, 2, 3, 4, 5, 6]).expect("in range");
        }
        cache.advance_epoch().expect("merges");
        for _ in 0..2 {
            cache.add(&[1, 2, 3, 4, 5, 7]).expect("in range");
        }
        if compact {
            cache.compact().expect("fits");
            assert_eq!(cache.stats().segments, 2, "one for each epoch");
        }
        let draft = continuation(&cache, &[1, 2, 3, 4, 5]);
        let of = |token| draft.tokens.iter().position(|&t| t == token).map_or(0.0, |at| draft.confidence[at]);
        (of(6), of(7))
    };
    for compact in [false, true] {
        let ((old, new), (faded, fresh)) = (drafted(1.0, compact), drafted(0.25, compact));
        assert!(faded < old, "{faded} {old}");
        assert!(fresh > new, "{fresh} {new}");
        assert_eq!(drafted(0.0, compact).0, 0.0);
    }
}

#[test]
fn impossible_bounds_are_refused() {
    for history in [
        HistoryOptions { max_bytes: Some(0), ..HistoryOptions::default() },
        HistoryOptions { epoch_decay: -0.1, ..HistoryOptions::default() },
        HistoryOptions { epoch_decay: f32::NAN, ..HistoryOptions::default() },
    ] {
        assert!(SuffixCache::new(CacheOptions { history, ..CacheOptions::default() }).is_err(), "{history:?}");
    }
}

/// Requests come, write and go; what is held stays within the bounds, and so does the process.
#[test]
fn memory_stays_bounded_through_a_soak() {
    let asked = std::env::var("SPECRS_SOAK_TOKENS").ok();
    let total: u64 = asked.as_ref().map_or(300_000, |text| text.parse().expect("SPECRS_SOAK_TOKENS is a number"));
    let most = (total / 20).clamp(20_000, 4_000_000);
    let cache = cache(HistoryOptions { max_tokens: Some(most), ..HistoryOptions::default() });
    let options = DraftOptions { budget: 16, shape: Shape::Chain, min_prob: 0.1, eos: &[], vocab_size: u32::MAX };
    let (mut written, mut accepted, mut which, mut reported) = (0_u64, 0_u64, 0_u32, 0_u64);
    let mut draft = Draft::default();
    let mut peak = 0;
    while written < total {
        let id = i64::from(which % 8);
        // A new version of an earlier text: most of it is copied.
        let mut text = text(which % 977, 1200);
        for at in (which as usize % 50..text.len()).step_by(50) {
            text[at] = which % 4999;
        }
        cache.start(id, &text[..300]).expect("a new id");
        let mut at = 300;
        while at < text.len() {
            cache.draft(id, &options, &mut draft).expect("active");
            let equal = draft.tokens.iter().zip(&text[at..]).take_while(|(a, b)| a == b).count();
            let end = (at + equal + 1).min(text.len());
            cache.append(id, &text[at..end]).expect("active");
            accepted += equal as u64;
            at = end;
        }
        cache.finish(id, true).expect("active");
        written += text.len() as u64;
        which += 1;
        let stats = cache.stats();
        assert!(stats.cached_tokens as u64 <= most);
        peak = peak.max(stats.cached_bytes);
        if asked.is_some() && written * 50 / total > reported {
            reported = written * 50 / total;
            let share = accepted as f64 / written as f64;
            println!(
                "{{\"tokens\": {written}, \"cached_tokens\": {}, \"cached_bytes\": {}, \"resident_bytes\": {}, \"accepted_share\": {share:.3}}}",
                stats.cached_tokens,
                stats.cached_bytes,
                resident()
            );
        }
    }
    assert!(peak as u64 <= most * 30, "{peak} bytes for {most} tokens");
    assert!(accepted * 4 > written, "a cache that keeps what it should copies most of this text");
}

/// Bytes that the process holds; 0 where the system does not say.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 4096
}
