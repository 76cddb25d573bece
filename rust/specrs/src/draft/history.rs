//! Finished text: a small live tier that new documents go to, and immutable segments behind it, merged log-structured.
//!
//! What a history answers depends only on the calls made to it, not on timing: a merge runs on a thread of its own, and
//! its result is installed after a fixed number of further seals (the call waits for the thread if it must).

use std::sync::Arc;
use std::thread::JoinHandle;

use super::context::{Limits, Match, SEPARATOR};
use super::live::LiveText;
use super::segment::Segment;
use crate::error::{Error, Result};

/// Bounds of a history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryOptions {
    /// Most tokens kept; the oldest segments are dropped whole when there are more. None keeps all.
    pub max_tokens: Option<u64>,
    /// Tokens that the live tier takes before it becomes a segment.
    pub seal_tokens: usize,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self { max_tokens: None, seal_tokens: 1 << 16 }
    }
}

/// A match in one of the texts of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The text: segments from the oldest, then the live tier.
    pub tier: u32,
    /// The match within it.
    pub at: Match,
}

struct Merge {
    inputs: Vec<Arc<Segment>>,
    /// The seal after which the result is installed.
    due: u64,
    /// Threads do not survive a fork; the child does the work again.
    process: u32,
    thread: JoinHandle<Result<Segment>>,
}

/// Finished documents, oldest first.
pub struct History {
    options: HistoryOptions,
    segments: Vec<Arc<Segment>>,
    recent: LiveText,
    recent_documents: u64,
    seals: u64,
    merge: Option<Merge>,
}

impl History {
    /// An empty history.
    ///
    /// # Errors
    /// If a bound is zero.
    pub fn new(mut options: HistoryOptions) -> Result<Self> {
        if options.seal_tokens == 0 || options.max_tokens == Some(0) {
            return Err(Error::invalid("max_tokens and seal_tokens must be at least 1, got 0"));
        }
        if let Some(most) = options.max_tokens {
            // Eviction drops whole segments, so these are to be small beside the bound.
            options.seal_tokens = options.seal_tokens.min((most / 8).max(1) as usize);
        }
        Ok(Self { options, segments: Vec::new(), recent: LiveText::new(), recent_documents: 0, seals: 0, merge: None })
    }

    /// Adds one document.
    ///
    /// # Errors
    /// If a merge that is due failed.
    pub fn add(&mut self, document: &[u32]) -> Result<()> {
        if document.is_empty() {
            return Ok(());
        }
        self.recent.extend(document);
        self.recent.end_document();
        self.recent_documents += 1;
        if self.recent.text().len() - self.recent_documents as usize >= self.options.seal_tokens {
            self.seal()?;
        }
        self.evict();
        Ok(())
    }

    /// Adds a segment as the newest.
    ///
    /// # Errors
    /// If a merge that is due failed.
    pub fn add_segment(&mut self, segment: Arc<Segment>) -> Result<()> {
        self.seal()?;
        if segment.tokens() > 0 {
            self.segments.push(segment);
        }
        self.evict();
        Ok(())
    }

    /// Makes a segment of the live tier.
    ///
    /// # Errors
    /// If a merge that is due failed.
    pub fn seal(&mut self) -> Result<()> {
        if self.recent_documents == 0 {
            return Ok(());
        }
        let recent = std::mem::take(&mut self.recent);
        self.recent_documents = 0;
        self.segments.push(Arc::new(recent.into_segment()));
        self.seals += 1;
        if self.merge.as_ref().is_some_and(|merge| self.seals >= merge.due) {
            self.install()?;
        }
        if self.merge.is_none() {
            self.start_merge();
        }
        Ok(())
    }

    /// Starts to merge the newest segments, if they have grown to the size of an older one.
    fn start_merge(&mut self) {
        let most = self.options.max_tokens.map_or(u64::MAX, |most| (most / 4).max(1));
        let mut first = self.segments.len().saturating_sub(1);
        let mut tokens = self.segments.last().map_or(0, |segment| segment.tokens());
        while first > 0 {
            let older = self.segments[first - 1].tokens();
            if older > 2 * tokens || older + tokens > most {
                break;
            }
            tokens += older;
            first -= 1;
        }
        if self.segments.len() - first < 3 {
            return;
        }
        let inputs = self.segments[first..].to_vec();
        let work = inputs.clone();
        let thread = std::thread::spawn(move || Segment::merge(&work));
        let due = self.seals + 1 + tokens / (8 * self.options.seal_tokens as u64);
        self.merge = Some(Merge { inputs, due, process: std::process::id(), thread });
    }

    fn install(&mut self) -> Result<()> {
        let Some(merge) = self.merge.take() else { return Ok(()) };
        let first = self.segments.iter().position(|segment| Arc::ptr_eq(segment, &merge.inputs[0]));
        // Evicted meanwhile: the rest stays as it is.
        let Some(first) = first else { return Ok(()) };
        let merged = if merge.process == std::process::id() {
            match merge.thread.join() {
                Ok(merged) => merged?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        } else {
            Segment::merge(&merge.inputs)?
        };
        self.segments.splice(first..first + merge.inputs.len(), [Arc::new(merged)]);
        Ok(())
    }

    /// Makes one segment of all documents.
    ///
    /// # Errors
    /// If they do not fit into one.
    pub fn compact(&mut self) -> Result<()> {
        self.seal()?;
        self.merge = None;
        if self.segments.len() > 1 {
            self.segments = vec![Arc::new(Segment::merge(&self.segments)?)];
        }
        Ok(())
    }

    fn evict(&mut self) {
        if let Some(most) = self.options.max_tokens {
            self.evict_to(most);
        }
    }

    /// Drops the oldest segments until at most `tokens` are left; the live tier goes last, whole.
    pub fn evict_to(&mut self, tokens: u64) {
        let mut left = self.tokens();
        let mut dropped = 0;
        while left > tokens && dropped < self.segments.len() {
            left -= self.segments[dropped].tokens();
            dropped += 1;
        }
        self.segments.drain(..dropped);
        if left > tokens {
            self.recent = LiveText::new();
            self.recent_documents = 0;
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.merge = None;
        self.evict_to(0);
    }

    /// Segments, oldest first.
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Documents kept.
    pub fn documents(&self) -> u64 {
        self.segments.iter().map(|segment| segment.documents()).sum::<u64>() + self.recent_documents
    }

    /// Tokens kept.
    pub fn tokens(&self) -> u64 {
        let sealed: u64 = self.segments.iter().map(|segment| segment.tokens()).sum();
        sealed + self.recent.text().len() as u64 - self.recent_documents
    }

    /// Bytes held, in memory or mapped.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes()).sum::<usize>() + self.recent.memory_bytes()
    }

    /// The text of a tier that a match names.
    pub fn text(&self, tier: u32) -> &[u32] {
        self.segments.get(tier as usize).map_or_else(|| self.recent.text(), |segment| segment.text())
    }

    /// How often `pattern` occurs within documents.
    pub fn count(&self, pattern: &[u32]) -> usize {
        debug_assert!(!pattern.contains(&SEPARATOR));
        self.segments.iter().map(|segment| segment.count(pattern)).sum::<usize>() + self.recent.count(pattern)
    }

    /// The longest matches of `context` in all tiers, longest first and of equal lengths the newest tier first.
    pub fn matches_of(&self, context: &[u32], limits: Limits, scratch: &mut Vec<Match>, out: &mut Vec<Found>) {
        let mut add = |tier: usize, find: &dyn Fn(&mut Vec<Match>)| {
            scratch.clear();
            find(scratch);
            out.extend(scratch.iter().map(|&at| Found { tier: tier as u32, at }));
        };
        let segments = self.segments.len();
        add(segments, &|found| self.recent.matches_of(context, limits, found));
        for (tier, segment) in self.segments.iter().enumerate().rev() {
            add(tier, &|found| segment.matches_of(context, limits, found));
        }
        out.sort_by_key(|found| std::cmp::Reverse(found.at.length));
        out.truncate(limits.matches);
    }
}
