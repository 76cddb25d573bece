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

/// Bytes that a token of the live tier takes at most, about.
const LIVE_BYTES: u64 = 24;

/// Bounds of a history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryOptions {
    /// Most tokens kept; the oldest segments are dropped whole when there are more. None keeps all.
    pub max_tokens: Option<u64>,
    /// Most bytes held, in memory or mapped; the oldest segments are dropped whole when there are more.
    pub max_bytes: Option<u64>,
    /// Epochs after which text is dropped: with 1, text of the present epoch and of the one before is kept.
    pub max_age: Option<u64>,
    /// What text weighs in drafts for each epoch that it is old: 1 keeps all text equal, 0 leaves old text out.
    pub epoch_decay: f32,
    /// Tokens that the live tier takes before it becomes a segment.
    pub seal_tokens: usize,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self { max_tokens: None, max_bytes: None, max_age: None, epoch_decay: 1.0, seal_tokens: 1 << 16 }
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
    /// The epoch in which its text was added; tiers of different epochs are never merged.
    epoch: u64,
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
    epoch: u64,
    /// Grows with every change of what there is to find, or of where it lies.
    version: u64,
    merge: Option<Merge>,
}

impl History {
    /// An empty history.
    ///
    /// # Errors
    /// If a bound is zero.
    pub fn new(mut options: HistoryOptions) -> Result<Self> {
        if options.seal_tokens == 0 || options.max_tokens == Some(0) || options.max_bytes == Some(0) {
            return Err(Error::invalid("max_tokens, max_bytes and seal_tokens must be at least 1, got 0"));
        }
        if !(0.0..=1.0).contains(&options.epoch_decay) {
            return Err(Error::invalid(format!("epoch_decay must be between 0 and 1, got {}", options.epoch_decay)));
        }
        // Eviction drops whole segments, so these are to be small beside the bounds.
        for most in [options.max_tokens, options.max_bytes.map(|bytes| bytes / LIVE_BYTES)].into_iter().flatten() {
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
            epoch: 0,
            version: 0,
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
        self.version += 1;
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
        self.version += 1;
        self.seal()?;
        if segment.tokens() > 0 {
            let source = self.next_source();
            self.tiers.push(Tier { source, segment, epoch: self.epoch });
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
        self.version += 1;
        let recent = std::mem::take(&mut self.recent);
        self.recent_documents = 0;
        let source = self.source;
        self.source = self.next_source();
        self.tiers.push(Tier { source, segment: Arc::new(recent.into_segment()), epoch: self.epoch });
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
            let same = self.tiers[first - 1].epoch == self.tiers[first].epoch;
            if older > 2 * tokens || older + tokens > most || !same {
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
        let epoch = self.tiers[first].epoch;
        let tier = Tier { source: self.next_source(), segment: Arc::new(merged), epoch };
        self.tiers.splice(first..first + merge.inputs.len(), [tier]);
        Ok(())
    }

    /// Makes one segment of all documents, or of those of each epoch.
    ///
    /// # Errors
    /// If they do not fit into one.
    pub fn compact(&mut self) -> Result<()> {
        self.version += 1;
        self.seal()?;
        self.merge = None;
        let mut kept: Vec<Tier> = Vec::new();
        for run in std::mem::take(&mut self.tiers).chunk_by(|a, b| a.epoch == b.epoch) {
            let segment = if let [alone] = run {
                Arc::clone(&alone.segment)
            } else {
                let inputs: Vec<_> = run.iter().map(|tier| Arc::clone(&tier.segment)).collect();
                Arc::new(Segment::merge(&inputs)?)
            };
            kept.push(Tier { source: self.next_source(), segment, epoch: run[0].epoch });
        }
        self.tiers = kept;
        Ok(())
    }

    /// Begins a new epoch, a change of the model's weights for instance, and returns its number. What was added before
    /// is one epoch older now, and is dropped if that is too old.
    ///
    /// # Errors
    /// If a merge that is due failed.
    pub fn advance_epoch(&mut self) -> Result<u64> {
        self.seal()?;
        self.epoch += 1;
        self.version += 1;
        self.evict();
        Ok(self.epoch)
    }

    /// A number that differs after every change; while it stays, matches stay what they are.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The present epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What the text that a match names weighs for its age.
    pub fn weight(&self, source: u64) -> f32 {
        if self.options.epoch_decay >= 1.0 || source == self.source {
            return 1.0;
        }
        let tier = self.tiers.iter().find(|tier| tier.source == source);
        tier.map_or(1.0, |tier| self.options.epoch_decay.powi((self.epoch - tier.epoch).min(1 << 20) as i32))
    }

    fn evict(&mut self) {
        if let Some(most) = self.options.max_age {
            let oldest = self.epoch.saturating_sub(most);
            // Epochs rise along the tiers.
            let dropped = self.tiers.partition_point(|tier| tier.epoch < oldest);
            self.tiers.drain(..dropped);
        }
        if let Some(most) = self.options.max_bytes {
            let mut left = self.bytes() as u64;
            let mut dropped = 0;
            while left > most && dropped < self.tiers.len() {
                left -= self.tiers[dropped].segment.bytes() as u64;
                dropped += 1;
            }
            self.tiers.drain(..dropped);
            if left > most {
                self.drop_recent();
            }
        }
        if let Some(most) = self.options.max_tokens {
            self.evict_to(most);
        }
    }

    fn drop_recent(&mut self) {
        self.recent = LiveText::new();
        self.recent_documents = 0;
        self.source = self.next_source();
    }

    /// Drops the oldest segments until at most `tokens` are left; the live tier goes last, whole.
    pub fn evict_to(&mut self, tokens: u64) {
        self.version += 1;
        let mut left = self.tokens();
        let mut dropped = 0;
        while left > tokens && dropped < self.tiers.len() {
            left -= self.tiers[dropped].segment.tokens();
            dropped += 1;
        }
        self.tiers.drain(..dropped);
        if left > tokens {
            self.drop_recent();
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
        // Once there are enough, an older tier has to offer longer ones.
        let mut wanted = limits;
        let mut add = |source: u64, find: &dyn Fn(Limits, &mut Vec<Match>)| {
            scratch.clear();
            find(wanted, scratch);
            if !scratch.is_empty() {
                out.extend(scratch.iter().map(|&at| Found { source, at }));
                out.sort_by_key(|found| std::cmp::Reverse(found.at.length));
                out.truncate(limits.matches);
            }
            if out.len() == limits.matches
                && let Some(shortest) = out.last()
            {
                wanted.min_length = limits.min_length.max(shortest.at.length as usize + 1);
            }
        };
        add(self.source, &|limits, found| self.recent.matches_of(context, limits, found));
        for tier in self.tiers.iter().rev() {
            add(tier.source, &|limits, found| tier.segment.matches_of(context, limits, found));
        }
    }
}
