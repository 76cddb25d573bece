//! One request of a cache: its text, the matches it carries along, and drafting from both and the history.

use std::cell::RefCell;

use super::cache::CacheOptions;
use super::context::{Limits, Match, SEPARATOR};
use super::follow::{Candidate, Follow, Texts};
use super::history::{Found, History};
use super::live::LiveText;
use super::vote::{Draft, DraftOptions, Vote, Workspace, draft};

/// A request's text and what its drafts carry on from step to step.
pub struct Request {
    /// Prompt and committed tokens.
    pub live: LiveText,
    follow: Follow,
    carried: Carried,
}

/// A carried match of this length spares the search: next to it, other matches weigh next to nothing.
const FIRM: u32 = 32;

/// The history's matches of a request, which go on with its text as long as the text goes on with theirs.
#[derive(Default)]
struct Carried {
    matches: Vec<Found>,
    /// Tokens of the request, and state of the history, that the matches are of.
    len: usize,
    version: Option<u64>,
}

impl Carried {
    /// Moves the matches on to the end of `text`. False if they have to be searched for.
    ///
    /// What was left out when the matches were found was no longer than the shortest of them, and grows by the same
    /// tokens: a match that goes on is still at least as long as any other. New finished text always asks for a search.
    fn advance(&mut self, text: &[u32], history: &History, max_length: usize) -> bool {
        if self.version != Some(history.version()) || self.len > text.len() {
            return false;
        }
        let new = &text[self.len..];
        if !new.is_empty() {
            self.matches.retain_mut(|found| {
                let next = found.at.position as usize + 1;
                let goes_on = history.text(found.source).and_then(|text| text.get(next..next + new.len())) == Some(new);
                found.at.position += new.len() as u32;
                found.at.length = (found.at.length as usize + new.len()).min(max_length) as u32;
                goes_on
            });
            if self.matches.first().is_none_or(|found| found.at.length < FIRM) {
                return false;
            }
        }
        self.len = text.len();
        true
    }
}

struct Sources<'a> {
    own: &'a [u32],
    history: &'a History,
}

impl Texts for Sources<'_> {
    fn text(&self, source: u64) -> Option<&[u32]> {
        if source == 0 { Some(self.own) } else { self.history.text(source) }
    }
}

#[derive(Default)]
struct Scratch {
    work: Workspace,
    own: Vec<Match>,
    found: Vec<Match>,
    candidates: Vec<Candidate>,
    votes: Vec<Vote<'static>>,
}

/// The same storage for votes on other texts: collecting a vector from itself keeps its memory.
fn emptied<'b>(mut votes: Vec<Vote<'_>>) -> Vec<Vote<'b>> {
    votes.clear();
    votes.into_iter().map_while(|_| None).collect()
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Request {
    /// A request with its prompt.
    pub fn new(live: LiveText) -> Self {
        Self { live, follow: Follow::default(), carried: Carried::default() }
    }

    /// Drafts how the text goes on.
    pub fn draft(&mut self, history: &History, cache: &CacheOptions, options: &DraftOptions<'_>, out: &mut Draft) {
        let limits = Limits { matches: cache.max_votes, min_length: cache.min_match, max_length: cache.max_match };
        let options =
            &DraftOptions { vocab_size: options.vocab_size.min(cache.vocab_size.unwrap_or(SEPARATOR)), ..*options };
        SCRATCH.with_borrow_mut(|scratch| {
            let Self { live, follow, carried } = self;
            scratch.own.clear();
            let text = live.text();
            live.matches_of_end(limits, &mut scratch.own);
            if !carried.advance(text, history, limits.max_length) {
                carried.matches.clear();
                history.matches_of(text, limits, &mut scratch.found, &mut carried.matches);
                carried.len = text.len();
                carried.version = Some(history.version());
            }
            scratch.candidates.clear();
            let texts = Sources { own: text, history };
            follow.gather(text, &scratch.own, &carried.matches, &texts, &mut scratch.candidates);
            let mut votes = emptied(std::mem::take(&mut scratch.votes));
            votes.extend(scratch.candidates.iter().filter_map(|candidate| {
                let continuation = texts.text(candidate.source)?.get(candidate.next..)?;
                let scale = if candidate.source == 0 { 1.0 } else { history.weight(candidate.source) };
                Some(Vote { continuation, length: candidate.length, kind: candidate.kind, scale })
            }));
            draft(&votes, &cache.odds, options, &mut scratch.work, out);
            scratch.votes = emptied(votes);
        });
    }
}
