//! Which text a request is following, so that an edit does not lose the place.
//!
//! After a rejected draft the longest match is short or gone, though the text mostly goes on where it left off: a token
//! was replaced, put in or left out. The place that the last long match led to is kept; matches near it weigh more, and
//! the continuations right there vote even without a match.

use super::context::{Match, SEPARATOR, common_suffix};
use super::evidence::Evidence;
use super::history::Found;

/// Matches at least this long choose the place that is followed.
const FIRM: u32 = 6;
/// How far from the expected place a match counts as near.
const NEAR: usize = 32;
/// Steps without a firm match after which the place is given up.
const PATIENCE: u8 = 8;
/// A local match of this length makes the guesses without a match needless.
const FOUND: usize = 3;

/// A candidate continuation.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The text it lies in: 0 for the request's own, else an id that the history gives.
    pub source: u64,
    /// Index of the first token of the continuation.
    pub next: usize,
    /// Shared tokens before it.
    pub length: u32,
    /// What kind of evidence it is.
    pub kind: Evidence,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    source: u64,
    next: usize,
    age: u8,
}

/// The place a request follows, as it was before and after the latest tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Follow {
    /// Place after the first `len` tokens.
    now: Option<Place>,
    len: usize,
    /// Place and length at the draft before, so that asking twice gives the same answer.
    before: Option<Place>,
    before_len: usize,
}

/// The text of the request or of a tier of the history, by source.
pub trait Texts {
    /// The tokens, or none if the tier is gone.
    fn text(&self, source: u64) -> Option<&[u32]>;
}

impl Follow {
    /// Adds a request's own matches and those of the history as candidates, the guesses at the followed place too, and
    /// moves the place on.
    pub fn gather(
        &mut self,
        own_text: &[u32],
        own: &[Match],
        history: &[Found],
        texts: &impl Texts,
        out: &mut Vec<Candidate>,
    ) {
        if own_text.len() != self.len {
            self.before = self.now;
            self.before_len = self.len;
            self.len = own_text.len();
        }
        let new = own_text.len() - self.before_len;
        let expected = self.before.map(|place| Place { next: place.next + new, ..place });
        let near = |source: u64, next: usize| {
            expected.is_some_and(|place| place.source == source && next.abs_diff(place.next) <= NEAR)
        };
        out.extend(own.iter().map(|found| {
            let next = found.position as usize + 1;
            let kind = if near(0, next) { Evidence::OwnNear } else { Evidence::Own };
            Candidate { source: 0, next, length: found.length, kind }
        }));
        out.extend(history.iter().map(|&Found { source, at: found }| {
            let next = found.position as usize + 1;
            let kind = if near(source, next) { Evidence::HistoryNear } else { Evidence::History };
            Candidate { source, next, length: found.length, kind }
        }));
        let longest = out.iter().map(|candidate| candidate.length).max().unwrap_or(0);
        let matched = out.len();
        let mut moved = None;
        if let Some(place) = expected
            && let Some(text) = texts.text(place.source)
        {
            moved = Some(look_around(place, text, own_text, new, out));
        }
        self.now = if longest >= FIRM {
            let longest = || out[..matched].iter().filter(|candidate| candidate.length == longest);
            let same = expected.and_then(|place| {
                longest().find(|candidate| candidate.source == place.source && candidate.next == place.next)
            });
            let chosen =
                same.or_else(|| longest().find(|found| near(found.source, found.next))).or_else(|| longest().next());
            chosen.map(|candidate| Place { source: candidate.source, next: candidate.next, age: 0 })
        } else {
            moved.filter(|place| place.age <= PATIENCE)
        };
    }
}

/// Finds the last token near the expected place, and guesses there if that says little. Returns where to look next.
fn look_around(place: Place, text: &[u32], own_text: &[u32], new: usize, out: &mut Vec<Candidate>) -> Place {
    let own = place.source == 0;
    let end = (place.next + NEAR).min(if own { own_text.len().saturating_sub(1) } else { text.len() });
    let start = place.next.saturating_sub(NEAR).max(1);
    let mut best: Option<(usize, usize)> = None;
    if let Some(&last) = own_text.last() {
        for next in start..end.max(start) {
            if text[next - 1] != last {
                continue;
            }
            let length = common_suffix(&text[..next], own_text, 64);
            let away = |next: usize| next.abs_diff(place.next);
            if best.is_none_or(|(most, at)| length > most || (length == most && away(next) < away(at))) {
                best = Some((length, next));
            }
            let kind = if own { Evidence::OwnNear } else { Evidence::HistoryNear };
            add(out, Candidate { source: place.source, next, length: length as u32, kind });
        }
    }
    if best.is_none_or(|(length, _)| length < FOUND) {
        let mut guess = |next: usize, kind: Evidence| {
            if text.get(next).is_some_and(|&token| token != SEPARATOR) {
                add(out, Candidate { source: place.source, next, length: 0, kind });
            }
        };
        guess(place.next, Evidence::Replaced);
        if new > 0 && place.next > 0 {
            guess(place.next - 1, Evidence::Inserted);
        }
    }
    match best {
        Some((length, next)) if length >= FOUND => Place { next, age: 0, ..place },
        Some((_, next)) => Place { next, age: place.age + 1, ..place },
        None => Place { age: place.age + 1, ..place },
    }
}

fn add(out: &mut Vec<Candidate>, candidate: Candidate) {
    if !out.iter().any(|known| known.source == candidate.source && known.next == candidate.next) {
        out.push(candidate);
    }
}
