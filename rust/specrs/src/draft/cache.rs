//! The cache that an engine holds: requests that are being written, and the finished text behind them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::context::{check_documents, check_tokens};
use super::evidence::Odds;
use super::history::{History, HistoryOptions};
use super::live::LiveText;
use super::request::Request;
use super::segment::Segment;
use super::vote::{Draft, DraftOptions};
use crate::error::{Error, ErrorKind, Result};

/// How a cache looks for matches.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Longest match that is measured, in tokens. Drafts are not bounded by it.
    pub max_match: usize,
    /// Shortest match that votes.
    pub min_match: usize,
    /// Most matches that vote, per tier.
    pub max_votes: usize,
    /// Ids at or above it are never drafted; none means that every id is.
    pub vocab_size: Option<u32>,
    /// Bounds of the finished text.
    pub history: HistoryOptions,
    /// What a match of some length is worth.
    pub odds: Odds,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            max_match: 128,
            min_match: 1,
            max_votes: 8,
            vocab_size: None,
            history: HistoryOptions::default(),
            odds: Odds::default(),
        }
    }
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests that were started and not ended.
    pub active_requests: usize,
    /// Tokens of these requests, prompts included.
    pub active_tokens: usize,
    /// Finished documents that are kept.
    pub cached_documents: usize,
    /// Tokens of kept documents.
    pub cached_tokens: usize,
    /// Segments that hold them, the live tier left out.
    pub segments: usize,
    /// Bytes held by requests.
    pub active_bytes: usize,
    /// Bytes held by kept documents.
    pub cached_bytes: usize,
    /// The present epoch, from 0.
    pub epoch: u64,
}

/// Requests being written and the finished text behind them; every method may be called from any thread.
///
/// A panic while a lock is held is our bug and reaches the caller as one; the data behind a lock is only ever appended to,
/// so later calls may go on: the locks are of a kind that is not poisoned.
pub struct SuffixCache {
    pub(super) options: CacheOptions,
    requests: RwLock<HashMap<i64, Arc<Mutex<Request>>>>,
    pub(super) history: RwLock<History>,
}

impl SuffixCache {
    /// An empty cache.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn new(options: CacheOptions) -> Result<Self> {
        if options.max_match == 0 || options.max_votes == 0 || options.min_match == 0 {
            return Err(Error::invalid(format!(
                "max_match, min_match and max_votes must be at least 1, got {}, {} and {}",
                options.max_match, options.min_match, options.max_votes
            )));
        }
        let history = RwLock::new(History::new(options.history)?);
        Ok(Self { options, requests: RwLock::default(), history })
    }

    pub(super) fn request(&self, id: i64) -> Result<Arc<Mutex<Request>>> {
        let found = self.requests.read().get(&id).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::Request, format!("request {id} is not active: start it first")))
    }

    /// Opens a request with its prompt.
    ///
    /// # Errors
    /// If the id is active already, or a token is out of range.
    pub fn start(&self, id: i64, prompt: &[u32]) -> Result<()> {
        check_tokens(prompt)?;
        let active =
            || Error::new(ErrorKind::Request, format!("request {id} is active already: finish or abort it first"));
        if self.requests.read().contains_key(&id) {
            return Err(active());
        }
        let mut live = LiveText::new();
        live.extend(prompt);
        let request = Arc::new(Mutex::new(Request::new(live)));
        match self.requests.write().entry(id) {
            std::collections::hash_map::Entry::Occupied(_) => Err(active()),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(request);
                Ok(())
            }
        }
    }

    /// Appends committed tokens to a request.
    ///
    /// # Errors
    /// If the id is unknown, or a token is out of range.
    pub fn append(&self, id: i64, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens)?;
        self.request(id)?.lock().live.extend(tokens);
        Ok(())
    }

    /// Ends a request; with `keep` its text serves later requests, and those that are active now.
    ///
    /// # Errors
    /// If the id is unknown.
    pub fn finish(&self, id: i64, keep: bool) -> Result<()> {
        let request = self.take(id)?;
        if keep {
            let request = request.lock();
            self.add(request.live.text())?;
        }
        Ok(())
    }

    /// Ends a request and forgets its text.
    ///
    /// # Errors
    /// If the id is unknown.
    pub fn abort(&self, id: i64) -> Result<()> {
        self.take(id).map(drop)
    }

    /// A copy of a request's text, prompt included.
    ///
    /// # Errors
    /// If the id is unknown.
    pub fn text(&self, id: i64) -> Result<Vec<u32>> {
        Ok(self.request(id)?.lock().live.text().to_vec())
    }

    fn take(&self, id: i64) -> Result<Arc<Mutex<Request>>> {
        let taken = self.requests.write().remove(&id);
        taken.ok_or_else(|| Error::new(ErrorKind::Request, format!("request {id} is not active: start it first")))
    }

    /// Adds a document to the finished text.
    ///
    /// # Errors
    /// If a token is out of range.
    pub fn add(&self, document: &[u32]) -> Result<()> {
        check_tokens(document)?;
        if document.is_empty() {
            return Ok(());
        }
        self.history.write().add(document)
    }

    /// Adds documents: document `i` is `tokens[ptr[i]..ptr[i + 1]]`.
    ///
    /// # Errors
    /// If a token is out of range or `ptr` does not rise from 0 to the number of tokens.
    pub fn add_many(&self, tokens: &[u32], ptr: &[i64]) -> Result<()> {
        if tokens.len() >= self.options.history.seal_tokens {
            // The long part, before any lock is taken.
            let segment = Arc::new(Segment::from_documents(tokens, ptr)?);
            return self.history.write().add_segment(segment);
        }
        check_documents(tokens, ptr)?;
        let mut history = self.history.write();
        ptr.windows(2).try_for_each(|ends| history.add(&tokens[ends[0] as usize..ends[1] as usize]))
    }

    /// Adds segments, opened from a store for instance, as the newest.
    ///
    /// # Errors
    /// If a merge that was due failed.
    pub fn add_segments(&self, segments: impl IntoIterator<Item = Arc<Segment>>) -> Result<()> {
        let mut history = self.history.write();
        segments.into_iter().try_for_each(|segment| history.add_segment(segment))
    }

    /// All finished text as segments, oldest first.
    ///
    /// # Errors
    /// If a merge that was due failed.
    pub fn segments(&self) -> Result<Vec<Arc<Segment>>> {
        let mut history = self.history.write();
        history.seal()?;
        Ok(history.segments())
    }

    /// Makes one segment of all finished text; drafts are faster then.
    ///
    /// # Errors
    /// If it does not fit into one.
    pub fn compact(&self) -> Result<()> {
        self.history.write().compact()
    }

    /// Begins a new epoch and returns its number: finished text is one epoch older now. See [`HistoryOptions::max_age`]
    /// and [`HistoryOptions::epoch_decay`].
    ///
    /// # Errors
    /// If a merge that was due failed.
    pub fn advance_epoch(&self) -> Result<u64> {
        self.history.write().advance_epoch()
    }

    /// Drops the oldest finished text, whole segments at a time, until at most `tokens` are left.
    pub fn evict_to(&self, tokens: u64) {
        self.history.write().evict_to(tokens);
    }

    /// How often `pattern` occurs in finished text.
    ///
    /// # Errors
    /// If a token is out of range.
    pub fn count(&self, pattern: &[u32]) -> Result<usize> {
        check_tokens(pattern)?;
        Ok(self.history.read().count(pattern))
    }

    /// Forgets all finished text. Active requests go on.
    pub fn clear(&self) {
        self.history.write().clear();
    }

    /// Drafts for one request.
    ///
    /// # Errors
    /// If the id is unknown.
    pub fn draft(&self, id: i64, options: &DraftOptions<'_>, out: &mut Draft) -> Result<()> {
        let request = self.request(id)?;
        request.lock().draft(&self.history.read(), &self.options, options, out);
        Ok(())
    }

    /// Appends committed tokens and drafts, for one request.
    ///
    /// # Errors
    /// If the id is unknown, or a token is out of range.
    pub fn step(&self, id: i64, tokens: &[u32], options: &DraftOptions<'_>, out: &mut Draft) -> Result<()> {
        check_tokens(tokens)?;
        let request = self.request(id)?;
        let mut request = request.lock();
        request.live.extend(tokens);
        request.draft(&self.history.read(), &self.options, options, out);
        Ok(())
    }

    /// What the cache holds.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats::default();
        let requests: Vec<_> = self.requests.read().values().cloned().collect();
        for request in requests {
            let request = request.lock();
            stats.active_requests += 1;
            stats.active_tokens += request.live.text().len();
            stats.active_bytes += request.live.memory_bytes();
        }
        let history = self.history.read();
        stats.cached_documents = history.documents() as usize;
        stats.cached_tokens = history.tokens() as usize;
        stats.cached_bytes = history.bytes();
        stats.segments = history.segments().len();
        stats.epoch = history.epoch();
        stats
    }
}
