//! Both tiers, the history and the store against a naive oracle: longest suffixes, counts, drafts that never leave a
//! document. `SPECRS_FUZZ_OPERATIONS` sets the number of operations (40,000 by default; 10,000,000 before a release).

use std::sync::Arc;

use specrs::draft::{
    CacheOptions, Check, Draft, DraftOptions, Fingerprint, Found, History, HistoryOptions, Limits, LiveText, Match,
    SEPARATOR, Segment, Shape, Store, SuffixCache,
};

/// A small generator with a printable seed (splitmix64).
struct Random(u64);

impl Random {
    /// `SPECRS_FUZZ_SEED` gives other texts and operations.
    fn seeded(test: u64) -> Self {
        let asked = std::env::var("SPECRS_FUZZ_SEED").ok();
        let seed: u64 = asked.map_or(0, |text| text.parse().expect("SPECRS_FUZZ_SEED is a number"));
        Self(test + seed * 1_000_003)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// Text with long repeats: random tokens, copies of earlier stretches, runs.
    fn text(&mut self, length: usize, alphabet: usize) -> Vec<u32> {
        // Ids that peers get wrong: 0, around 2¹⁶, the largest.
        let ids = [0, 1, 65_535, 65_536, 200_000, u32::MAX - 1, 7, 8];
        let mut text = Vec::with_capacity(length);
        while text.len() < length {
            match self.below(4) {
                0 if !text.is_empty() => {
                    let start = self.below(text.len());
                    let end = (start + 1 + self.below(12)).min(text.len());
                    text.extend_from_within(start..end);
                }
                1 => text.extend(vec![ids[self.below(alphabet)]; 1 + self.below(5)]),
                _ => text.push(ids[self.below(alphabet)]),
            }
        }
        text.truncate(length);
        text
    }
}

fn operations() -> usize {
    let asked = std::env::var("SPECRS_FUZZ_OPERATIONS").ok();
    asked.map_or(40_000, |text| text.parse().expect("SPECRS_FUZZ_OPERATIONS is a number"))
}

fn shared_suffix(left: &[u32], right: &[u32]) -> usize {
    left.iter().rev().zip(right.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// Lengths of the longest matches of `context` over all positions of `documents`, longest first.
fn oracle_lengths(documents: &[Vec<u32>], context: &[u32], limit: usize) -> Vec<u32> {
    let mut lengths: Vec<u32> = documents
        .iter()
        .flat_map(|document| (1..=document.len()).map(|end| shared_suffix(&document[..end], context) as u32))
        .filter(|&length| length > 0)
        .collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.truncate(limit);
    lengths
}

fn oracle_count(documents: &[Vec<u32>], pattern: &[u32]) -> usize {
    documents.iter().map(|document| document.windows(pattern.len()).filter(|window| *window == pattern).count()).sum()
}

const LIMITS: Limits = Limits { matches: 12, min_length: 1, max_length: usize::MAX };

fn lengths(found: &[Match]) -> Vec<u32> {
    found.iter().map(|found| found.length).collect()
}

#[test]
fn live_text_finds_the_longest_suffixes() {
    let mut random = Random::seeded(1);
    let mut done = 0;
    while done < operations() / 4 {
        let alphabet = 1 + random.below(8);
        let length = 1 + random.below(220);
        let text = random.text(length, alphabet);
        let mut live = LiveText::new();
        let mut found = Vec::new();
        for end in 1..=text.len() {
            live.push(text[end - 1]);
            found.clear();
            live.matches_of_end(LIMITS, &mut found);
            let earlier: Vec<Vec<u32>> = vec![text[..end - 1].to_vec()];
            assert_eq!(lengths(&found), oracle_lengths(&earlier, &text[..end], LIMITS.matches), "{:?}", &text[..end]);
            for one in &found {
                assert_eq!(shared_suffix(&text[..=one.position as usize], &text[..end]) as u32, one.length);
            }
            done += 1;
        }
        let mut order: Vec<u32> = live.positions().collect();
        let reversed = |position: u32| text[..=position as usize].iter().rev().collect::<Vec<_>>();
        assert!(order.is_sorted_by(|&a, &b| reversed(a) < reversed(b)), "{text:?}");
        order.sort_unstable();
        assert!(order.into_iter().eq(0..text.len() as u32));
    }
}

#[test]
fn a_history_equals_the_oracle_through_adds_merges_and_evictions() {
    let mut random = Random::seeded(2);
    let mut done = 0;
    let folder = std::env::temp_dir().join(format!("specrs-oracle-{}", std::process::id()));
    while done < operations() / 4 {
        let alphabet = 1 + random.below(8);
        let options = HistoryOptions { seal_tokens: 1 + random.below(60), ..HistoryOptions::default() };
        let mut history = History::new(options).expect("valid options");
        let mut documents: Vec<Vec<u32>> = Vec::new();
        let mut found: Vec<Found> = Vec::new();
        for _ in 0..40 {
            match random.below(12) {
                0 => history.compact().expect("fits"),
                1 if random.below(2) == 0 => assert!(history.advance_epoch().expect("no merge fails") > 0),
                1 => history.seal().expect("no merge fails"),
                2 => {
                    // Eviction drops the oldest documents and nothing else.
                    history.evict_to(random.below(120) as u64);
                    let left = history.documents() as usize;
                    documents.drain(..documents.len() - left);
                }
                3 if history.documents() > 0 && random.below(30) == 0 => {
                    history.seal().expect("no merge fails");
                    let store = Store::create(&folder, Fingerprint::default()).expect("a fresh folder");
                    store.add(&history.segments()).expect("space on disk");
                    if random.below(2) == 0 {
                        store.merge().expect("space on disk");
                    }
                    store.verify().expect("just written");
                    history.clear();
                    for segment in store.segments(Check::Checksums).expect("just written") {
                        history.add_segment(segment).expect("no merge fails");
                    }
                    std::fs::remove_dir_all(&folder).expect("ours");
                }
                _ => {
                    let length = random.below(50);
                    let document = random.text(length, alphabet);
                    history.add(&document).expect("no merge fails");
                    if !document.is_empty() {
                        documents.push(document);
                    }
                }
            }
            assert_eq!(history.documents() as usize, documents.len());
            assert_eq!(history.tokens() as usize, documents.iter().map(Vec::len).sum::<usize>());
            let length = random.below(20);
            let context = random.text(length, alphabet);
            found.clear();
            history.matches_of(&context, LIMITS, &mut Vec::new(), &mut found);
            let got: Vec<u32> = found.iter().map(|found| found.at.length).collect();
            assert_eq!(got, oracle_lengths(&documents, &context, LIMITS.matches), "{context:?} in {documents:?}");
            for one in &found {
                let text = history.text(one.source).expect("a tier of this history");
                assert_eq!(shared_suffix(&text[..=one.at.position as usize], &context) as u32, one.at.length);
            }
            if !context.is_empty() {
                assert_eq!(history.count(&context), oracle_count(&documents, &context), "{context:?}");
            }
            done += 1;
        }
    }
}

#[test]
fn drafts_follow_the_text_and_stay_within_documents() {
    let mut random = Random::seeded(3);
    let mut done = 0;
    while done < operations() / 4 {
        let alphabet = 2 + random.below(7);
        let cache = SuffixCache::new(CacheOptions {
            history: HistoryOptions { seal_tokens: 1 + random.below(60), ..HistoryOptions::default() },
            ..CacheOptions::default()
        })
        .expect("valid options");
        let mut documents: Vec<Vec<u32>> = Vec::new();
        for id in 0..6 {
            let length = random.below(40);
            let mut text = random.text(length, alphabet);
            cache.start(id, &text).expect("a new id");
            for _ in 0..8 {
                let length = random.below(6);
                let new = random.text(length, alphabet);
                text.extend(&new);
                let shape = if random.below(2) == 0 { Shape::Chain } else { Shape::Tree };
                let eos = [8];
                let options =
                    DraftOptions { budget: random.below(20), shape, min_prob: 0.01, eos: &eos, vocab_size: u32::MAX };
                let mut draft = Draft::default();
                cache.step(id, &new, &options, &mut draft).expect("an active id");
                check_draft(&draft, &options, &text, &documents);
                done += 1;
            }
            if random.below(3) > 0 {
                cache.finish(id, true).expect("an active id");
                documents.push(text);
            } else {
                cache.abort(id).expect("an active id");
            }
        }
    }
}

/// Every path stands, token by token, in one document.
fn check_draft(draft: &Draft, options: &DraftOptions<'_>, own: &[u32], documents: &[Vec<u32>]) {
    assert!(draft.len() <= options.budget);
    let mut sums = vec![0.0_f32; draft.len() + 1];
    for node in 0..draft.len() {
        let parent = draft.parents[node];
        assert!(parent < node as i32);
        sums[(parent + 1) as usize] += draft.confidence[node];
        let depth = if parent < 0 { 1 } else { draft.depths[parent as usize] + 1 };
        assert_eq!(draft.depths[node], depth);
        if parent >= 0 {
            assert!(!options.eos.contains(&draft.tokens[parent as usize]));
        }
        let mut path = vec![draft.tokens[node]];
        let mut up = parent;
        while up >= 0 {
            path.push(draft.tokens[up as usize]);
            up = draft.parents[up as usize];
        }
        path.reverse();
        assert!(!path.contains(&SEPARATOR));
        let own = own.to_vec();
        let occurs = documents.iter().chain([&own]).any(|text| text.windows(path.len()).any(|window| window == path));
        assert!(occurs, "{path:?}");
        let siblings = (0..node).filter(|&other| draft.parents[other] == parent);
        assert!(siblings.into_iter().all(|other| draft.tokens[other] != draft.tokens[node]));
    }
    assert!(sums.iter().all(|&sum| sum < 1.0));
}

#[test]
fn a_sealed_text_equals_a_built_one() {
    let mut random = Random::seeded(4);
    for _ in 0..200 {
        let mut live = LiveText::new();
        let mut text = Vec::new();
        for _ in 0..=random.below(6) {
            let length = 1 + random.below(60);
            let document = random.text(length, 4);
            live.extend(&document);
            live.end_document();
            text.extend(document);
            text.push(SEPARATOR);
        }
        let sealed = Arc::new(live.into_segment());
        let built = Segment::build(text).expect("fits");
        assert_eq!(sealed.text(), built.text());
        let length = 1 + random.below(9);
        let context = random.text(length, 4);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        sealed.matches_of(&context, LIMITS, &mut one);
        built.matches_of(&context, LIMITS, &mut other);
        assert_eq!(lengths(&one), lengths(&other));
    }
}
