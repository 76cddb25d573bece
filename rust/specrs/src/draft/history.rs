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
    /// Names the text for [`History::text`].
    pub source: u64,
    /// The match within it.
    pub at: Match,
}

/// A segment and the number that names it; sealing keeps the live tier's number, since positions stay what they are.
struct Tier {
    source: u64,
    segment: Arc<Segment>,
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
    tiers: Vec<Tier>,
    recent: LiveText,
    /// Names the live tier; 0 names none.
    source: u64,
    /// Numbers given so far.
    numbered: u64,
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
        Ok(Self {
            options,
            tiers: Vec::new(),
            recent: LiveText::new(),
            source: 1,
            numbered: 1,
            recent_documents: 0,
            seals: 0,
            merge: None,
        })
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
            let source = self.next_source();
            self.tiers.push(Tier { source, segment });
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
        let source = self.source;
        self.source = self.next_source();
        self.tiers.push(Tier { source, segment: Arc::new(recent.into_segment()) });
        self.seals += 1;
        if self.merge.as_ref().is_some_and(|merge| self.seals >= merge.due) {
            self.install()?;
        }
        if self.merge.is_none() {
            self.start_merge();
        }
        Ok(())
    }

    fn next_source(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// Starts to merge the newest segments, if they have grown to the size of an older one.
    fn start_merge(&mut self) {
        let most = self.options.max_tokens.map_or(u64::MAX, |most| (most / 4).max(1));
        let mut first = self.tiers.len().saturating_sub(1);
        let mut tokens = self.tiers.last().map_or(0, |tier| tier.segment.tokens());
        while first > 0 {
            let older = self.tiers[first - 1].segment.tokens();
            if older > 2 * tokens || older + tokens > most {
                break;
            }
            tokens += older;
            first -= 1;
        }
        if self.tiers.len() - first < 3 {
            return;
        }
        let inputs: Vec<_> = self.tiers[first..].iter().map(|tier| Arc::clone(&tier.segment)).collect();
        let work = inputs.clone();
        let thread = std::thread::spawn(move || Segment::merge(&work));
        let due = self.seals + 1 + tokens / (8 * self.options.seal_tokens as u64);
        self.merge = Some(Merge { inputs, due, process: std::process::id(), thread });
    }

    fn install(&mut self) -> Result<()> {
        let Some(merge) = self.merge.take() else { return Ok(()) };
        let first = self.tiers.iter().position(|tier| Arc::ptr_eq(&tier.segment, &merge.inputs[0]));
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
        let tier = Tier { source: self.next_source(), segment: Arc::new(merged) };
        self.tiers.splice(first..first + merge.inputs.len(), [tier]);
        Ok(())
    }

    /// Makes one segment of all documents.
    ///
    /// # Errors
    /// If they do not fit into one.
    pub fn compact(&mut self) -> Result<()> {
        self.seal()?;
        self.merge = None;
        if self.tiers.len() > 1 {
            let segment = Arc::new(Segment::merge(&self.segments())?);
            self.tiers = vec![Tier { source: self.next_source(), segment }];
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
        while left > tokens && dropped < self.tiers.len() {
            left -= self.tiers[dropped].segment.tokens();
            dropped += 1;
        }
        self.tiers.drain(..dropped);
        if left > tokens {
            self.recent = LiveText::new();
            self.recent_documents = 0;
            self.source = self.next_source();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.merge = None;
        self.evict_to(0);
    }

    /// Segments, oldest first.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.tiers.iter().map(|tier| Arc::clone(&tier.segment)).collect()
    }

    /// Documents kept.
    pub fn documents(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.segment.documents()).sum::<u64>() + self.recent_documents
    }

    /// Tokens kept.
    pub fn tokens(&self) -> u64 {
        let sealed: u64 = self.tiers.iter().map(|tier| tier.segment.tokens()).sum();
        sealed + self.recent.text().len() as u64 - self.recent_documents
    }

    /// Bytes held, in memory or mapped.
    pub fn bytes(&self) -> usize {
        self.tiers.iter().map(|tier| tier.segment.bytes()).sum::<usize>() + self.recent.memory_bytes()
    }

    /// The text that a match names; none if it was evicted or merged.
    pub fn text(&self, source: u64) -> Option<&[u32]> {
        if source == self.source {
            return Some(self.recent.text());
        }
        self.tiers.iter().find(|tier| tier.source == source).map(|tier| tier.segment.text())
    }

    /// How often `pattern` occurs within documents.
    pub fn count(&self, pattern: &[u32]) -> usize {
        debug_assert!(!pattern.contains(&SEPARATOR));
        self.tiers.iter().map(|tier| tier.segment.count(pattern)).sum::<usize>() + self.recent.count(pattern)
    }

    /// The longest matches of `context` in all tiers, longest first and of equal lengths the newest tier first.
    pub fn matches_of(&self, context: &[u32], limits: Limits, scratch: &mut Vec<Match>, out: &mut Vec<Found>) {
        let mut add = |source: u64, find: &dyn Fn(&mut Vec<Match>)| {
            scratch.clear();
            find(scratch);
            out.extend(scratch.iter().map(|&at| Found { source, at }));
        };
        add(self.source, &|found| self.recent.matches_of(context, limits, found));
        for tier in self.tiers.iter().rev() {
            add(tier.source, &|found| tier.segment.matches_of(context, limits, found));
        }
        out.sort_by_key(|found| std::cmp::Reverse(found.at.length));
        out.truncate(limits.matches);
    }
}
