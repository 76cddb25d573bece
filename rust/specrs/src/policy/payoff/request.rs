//! What the router keeps of one request: drafts whose fate the text will tell, and how the model drafter fares.

use std::collections::VecDeque;

use super::features::FEATURES;
use crate::error::{Error, Result};

/// Most drafts that wait for their text. The oldest is labelled with what is known when another one comes.
const WAITING: usize = 48;
/// Nodes tried by the model drafter, or tokens written, that the record of all requests counts for.
const SHRINK: f64 = 12.0;
/// Weight that a tried node keeps when another one comes.
const KEEP: f64 = 0.97;
/// The same for the share of rounds in which the cache was chosen.
const KEEP_CHOICE: f32 = 0.94;
/// Finished drafts whose accepted length is remembered.
const REMEMBERED: usize = 4;

/// Shape of a cache draft; each has its own calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One path.
    Chain,
    /// The best-first tree.
    Tree,
}

/// A cache draft as it was offered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer<'a> {
    /// Token of each node, best first.
    pub tokens: &'a [u32],
    /// Parent of each node, −1 at the anchor.
    pub parents: &'a [i32],
    /// Product of confidences down to each node.
    pub path_probs: &'a [f32],
    /// Longest match behind the draft, in tokens.
    pub match_length: u32,
}

impl Offer<'_> {
    /// Refuses arrays that do not fit together.
    pub(super) fn check(&self) -> Result<()> {
        let lengths = (self.tokens.len(), self.parents.len(), self.path_probs.len());
        if lengths.0 != lengths.1 || lengths.0 != lengths.2 {
            return Err(Error::invalid(format!(
                "tokens, parents and path_probs must have one length, got {lengths:?}"
            )));
        }
        for (node, &parent) in self.parents.iter().enumerate() {
            if parent < -1 || parent >= node as i32 {
                return Err(Error::invalid(format!(
                    "the parent of node {node} must be -1 or an earlier node, got {parent}"
                )));
            }
        }
        Ok(())
    }
}

/// An offered draft until its fate is known.
#[derive(Clone, Debug)]
struct Waiting {
    /// Tokens of the text when it was offered.
    at: usize,
    shape: Shape,
    tokens: Vec<u32>,
    parents: Vec<i32>,
    path_probs: Vec<f32>,
    depth: usize,
    /// Tokens of the model's draft that were accepted in the same round, if one was refused after them.
    model: Option<usize>,
    /// What a predictor is trained on, if examples are wanted.
    features: Option<Box<[f32; FEATURES]>>,
}

impl Waiting {
    /// Nodes of a chain that equal the text, as far as it goes.
    fn accepted(&self, text: &[u32]) -> usize {
        let following = text.get(self.at..).unwrap_or_default();
        self.tokens.iter().zip(following).take_while(|(drafted, written)| drafted == written).count()
    }
}

/// What became of a cache draft: path probability of each node and whether it was accepted, or would have been.
pub(super) struct Fate<'a> {
    pub(super) shape: Shape,
    pub(super) nodes: &'a [(f32, bool)],
    /// The node of a chain where the model drafter was wrong, if that drafted too.
    pub(super) instead: Option<(f32, bool)>,
}

/// A chain's features and how much of it the text that followed accepts.
pub type Example = ([f32; FEATURES], u32);

/// Hits among tries, the old ones fading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Record {
    pub(super) hits: f64,
    pub(super) tries: f64,
}

impl Record {
    pub(super) fn add(&mut self, hits: usize, misses: usize) {
        for hit in std::iter::repeat_n(1.0, hits).chain(std::iter::repeat_n(0.0, misses)) {
            self.hits = self.hits * KEEP + hit;
            self.tries = self.tries * KEEP + 1.0;
        }
    }

    /// Adds one event that was expected with probability `expected`: the rate is then a ratio to what was expected.
    pub(super) fn compare(&mut self, hit: bool, expected: f64) {
        self.hits = self.hits * KEEP + f64::from(u8::from(hit));
        self.tries = self.tries * KEEP + expected;
    }

    /// The rate, shrunk to `prior`.
    pub(super) fn rate(&self, prior: f64) -> f64 {
        (self.hits + SHRINK * prior) / (self.tries + SHRINK)
    }
}

/// One request.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestState {
    pub(super) prompt: usize,
    pub(super) model: Record,
    /// Share of recent rounds in which the cache was chosen.
    pub(super) cached: f32,
    /// Tokens written in rounds whose draft was not the cache's.
    left: usize,
    /// Tokens of the text when the last round began, and whether that verifies the cache's draft.
    last: (usize, bool),
    waiting: VecDeque<Waiting>,
    /// Place and accepted length of the last chains whose fate is known.
    done: VecDeque<(usize, usize)>,
}

impl RequestState {
    pub(super) fn new(prompt: usize) -> Self {
        Self { prompt, last: (prompt, false), ..Self::default() }
    }

    /// Learns what the last round wrote from the text's length after it.
    pub(super) fn wrote(&mut self, length: usize) {
        let (before, cache) = self.last;
        if !cache {
            self.left += length.saturating_sub(before);
        }
        self.last.0 = before.max(length);
    }

    /// Share of the text's tokens that the cache leaves to others, shrunk to `prior`.
    pub(super) fn left(&self, prior: f64) -> f64 {
        let written = self.last.0.saturating_sub(self.prompt);
        (self.left as f64 + SHRINK * prior) / (written as f64 + SHRINK)
    }

    pub(super) fn chose(&mut self, cache: bool) {
        self.last.1 = cache;
        self.cached = KEEP_CHOICE * self.cached + (1.0 - KEEP_CHOICE) * f32::from(u8::from(cache));
    }

    /// Place and accepted length, as far as `text` tells, of the last chains, newest first.
    pub(super) fn known_accepted(&self, text: &[u32]) -> impl Iterator<Item = (usize, usize)> {
        let waiting = self.waiting.iter().rev().filter(|one| one.shape == Shape::Chain);
        waiting.map(|one| (one.at, one.accepted(text))).chain(self.done.iter().rev().copied())
    }

    /// Keeps a draft that was offered after `at` tokens.
    pub(super) fn keep(&mut self, at: usize, shape: Shape, offer: &Offer<'_>, features: Option<Box<[f32; FEATURES]>>) {
        if offer.tokens.is_empty() {
            return;
        }
        let mut depths: Vec<usize> = Vec::with_capacity(offer.parents.len());
        for &parent in offer.parents {
            depths.push(if parent < 0 { 1 } else { depths[parent as usize] + 1 });
        }
        self.waiting.push_back(Waiting {
            at,
            shape,
            tokens: offer.tokens.to_vec(),
            parents: offer.parents.to_vec(),
            path_probs: offer.path_probs.to_vec(),
            depth: depths.into_iter().max().unwrap_or(0),
            model: None,
            features,
        });
    }

    /// Notes that of the last round's model draft so many tokens were accepted and one was refused.
    pub(super) fn refused(&mut self, accepted: usize) {
        let begun = self.last.0;
        for one in self.waiting.iter_mut().rev().take_while(|one| one.at == begun) {
            one.model = Some(accepted);
        }
    }

    /// Hands over drafts whose fate `text` tells, and the examples that were wanted.
    pub(super) fn label(
        &mut self,
        text: &[u32],
        end: bool,
        examples: &mut Vec<Example>,
        mut learn: impl FnMut(Fate<'_>),
    ) {
        while let Some(first) = self.waiting.front() {
            let due = end || self.waiting.len() > WAITING || first.at + first.depth <= text.len();
            if !due {
                return;
            }
            let Some(first) = self.waiting.pop_front() else { return };
            let following = text.get(first.at..).unwrap_or_default();
            if first.shape == Shape::Chain {
                let accepted = first.accepted(text);
                // A chain that the text ran out on has no label yet.
                let known = accepted < following.len() || accepted == first.tokens.len();
                if let (true, Some(features)) = (known, &first.features) {
                    examples.push((**features, accepted as u32));
                }
                self.done.push_back((first.at, accepted));
                if self.done.len() > REMEMBERED {
                    self.done.pop_front();
                }
            }
            let fate = replayed(&first.tokens, &first.parents, following);
            let all = fate.into_iter().zip(&first.path_probs);
            let known: Vec<(f32, bool)> = all.filter_map(|(fate, &prob)| Some((prob, fate?))).collect();
            let instead = first.model.filter(|_| first.shape == Shape::Chain).and_then(|at| known.get(at).copied());
            learn(Fate { shape: first.shape, nodes: &known, instead });
        }
    }
}

/// Which nodes of a draft the following text would have accepted, and whether that is known yet.
///
/// A node is `Some(true)` if its path equals the text, `Some(false)` if it does not, and `None` if it lies deeper than the
/// text that follows. A failure above such a node would tell its fate too, but to count deep nodes only when they fail
/// would make them look worse than they are.
pub fn replayed(tokens: &[u32], parents: &[i32], following: &[u32]) -> Vec<Option<bool>> {
    let mut fate: Vec<(Option<bool>, usize)> = Vec::with_capacity(tokens.len());
    for (&token, &parent) in tokens.iter().zip(parents) {
        let (above, depth) = if parent < 0 { (Some(true), 0) } else { fate[parent as usize] };
        let own = match above {
            _ if depth >= following.len() => None,
            Some(true) => Some(following[depth] == token),
            other => other,
        };
        fate.push((own, depth + 1));
    }
    fate.into_iter().map(|(own, _)| own).collect()
}
