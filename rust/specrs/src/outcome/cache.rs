//! The speculation cache: drafts for outcomes that may come, until the one that comes is known.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::types::TokenId;

/// How a round may end for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Outcome {
    /// The request.
    pub request: u64,
    /// Drafts accepted.
    pub accepted: u32,
    /// The token drawn behind them.
    pub bonus: TokenId,
}

/// A draft behind an outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Continuation {
    /// A chain of tokens.
    pub tokens: Vec<u32>,
    /// The laws they were drawn from, row by row; empty where they were chosen with certainty.
    pub draft_probs: Vec<f32>,
    /// P(accepted given that the parent is), estimated; empty where nothing was.
    pub confidence: Vec<f32>,
}

impl Continuation {
    fn bytes(&self) -> usize {
        size_of::<(Outcome, u64, Self)>() + 4 * (self.tokens.len() + self.draft_probs.len() + self.confidence.len())
    }
}

/// What a cache was asked, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Outcomes that were there.
    pub hits: u64,
    /// Outcomes that were not.
    pub misses: u64,
    /// Outcomes that were there for another generation, misses too.
    pub stale: u64,
    /// Continuations that found no room.
    pub refused: u64,
}

/// Continuations by outcome, valid for one generation (the round of the request they were drafted in).
///
/// Memory is bounded: what would pass the bound is refused, so continuations are to be inserted likeliest first.
#[derive(Clone, Debug)]
pub struct SpeculationCache {
    entries: HashMap<Outcome, (u64, Continuation)>,
    bytes: usize,
    max_bytes: usize,
    counts: CacheCounts,
}

impl SpeculationCache {
    /// An empty cache of at most `max_bytes` bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self { entries: HashMap::new(), bytes: 0, max_bytes, counts: CacheCounts::default() }
    }

    /// Keeps a continuation for an outcome of `generation`. Returns false if there is no room for it.
    ///
    /// # Errors
    /// If the outcome is there already for this generation (two guesses of one row are the same token), or the laws or
    /// confidences do not fit the tokens. An entry of another generation is replaced.
    pub fn insert(&mut self, generation: u64, outcome: Outcome, continuation: Continuation) -> Result<bool> {
        let tokens = continuation.tokens.len();
        if !continuation.draft_probs.is_empty()
            && (tokens == 0 || !continuation.draft_probs.len().is_multiple_of(tokens))
        {
            return Err(Error::invalid(format!(
                "draft_probs has {} entries, expected a whole row for each of {tokens} tokens",
                continuation.draft_probs.len()
            )));
        }
        if !continuation.confidence.is_empty() && continuation.confidence.len() != tokens {
            return Err(Error::invalid(format!(
                "confidence has {} entries, expected one for each of {tokens} tokens",
                continuation.confidence.len()
            )));
        }
        if let Some((held, _)) = self.entries.get(&outcome) {
            if *held == generation {
                return Err(Error::invalid(format!(
                    "outcome (request {}, {} accepted, token {}) was guessed already in generation {generation}",
                    outcome.request, outcome.accepted, outcome.bonus.0
                )));
            }
            self.remove(outcome);
        }
        let bytes = continuation.bytes();
        if self.bytes + bytes > self.max_bytes {
            self.counts.refused += 1;
            return Ok(false);
        }
        self.bytes += bytes;
        self.entries.insert(outcome, (generation, continuation));
        Ok(true)
    }

    /// Takes the continuation of the outcome that came; every other guess for that request is dropped.
    pub fn take(&mut self, generation: u64, outcome: Outcome) -> Option<Continuation> {
        let found = self.remove(outcome);
        self.forget(outcome.request);
        match found {
            Some((held, continuation)) if held == generation => {
                self.counts.hits += 1;
                Some(continuation)
            }
            other => {
                self.counts.stale += u64::from(other.is_some());
                self.counts.misses += 1;
                None
            }
        }
    }

    /// Drops all guesses for a request that leaves, was cut elsewhere, or begins a new round. Returns how many.
    pub fn forget(&mut self, request: u64) -> usize {
        let before = self.entries.len();
        let mut freed = 0;
        self.entries.retain(|outcome, (_, continuation)| {
            let keep = outcome.request != request;
            freed += if keep { 0 } else { continuation.bytes() };
            keep
        });
        self.bytes -= freed;
        before - self.entries.len()
    }

    fn remove(&mut self, outcome: Outcome) -> Option<(u64, Continuation)> {
        let found = self.entries.remove(&outcome)?;
        self.bytes -= found.1.bytes();
        Some(found)
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Guesses held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no guess is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Hits, misses and refusals so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }
}
