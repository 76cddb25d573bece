//! The cache that an engine holds: requests that are being written, and the finished text behind them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::context::{Limits, Match, SEPARATOR};
use super::live::LiveText;
use super::vote::{Draft, DraftOptions, Evidence, Vote, Workspace, draft};
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
    /// What a match of some length is worth.
    pub evidence: Evidence,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { max_match: 128, min_match: 1, max_votes: 16, vocab_size: None, evidence: Evidence::default() }
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
    /// Bytes held by requests.
    pub active_bytes: usize,
    /// Bytes held by kept documents.
    pub cached_bytes: usize,
}

/// The drafts of many requests, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDrafts {
    /// All nodes; parents count from the start of their own request's nodes.
    pub nodes: Draft,
    /// Where each request's nodes start; one more entry than requests.
    pub row_ptr: Vec<i64>,
    /// Longest match of each request.
    pub match_lengths: Vec<i32>,
    /// Expected accepted tokens of each request.
    pub expected: Vec<f32>,
}

struct Request {
    live: LiveText,
}

#[derive(Default)]
struct Shared {
    live: LiveText,
    documents: usize,
}

/// Requests being written and the finished text behind them; every method may be called from any thread.
pub struct SuffixCache {
    options: CacheOptions,
    requests: RwLock<HashMap<i64, Arc<Mutex<Request>>>>,
    shared: RwLock<Shared>,
}

#[derive(Default)]
struct Scratch {
    work: Workspace,
    own: Vec<Match>,
    shared: Vec<Match>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

// A panic while a lock is held is our bug and reaches the caller as an error; the data behind a lock is only ever
// appended to, so later calls may go on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}
fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn check_tokens(tokens: &[u32]) -> Result<()> {
    match tokens.iter().position(|&token| token == SEPARATOR) {
        None => Ok(()),
        Some(at) => Err(Error::invalid(format!("token ids must be at most 4294967294, got {SEPARATOR} at index {at}"))),
    }
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
        Ok(Self { options, requests: RwLock::default(), shared: RwLock::default() })
    }

    fn request(&self, id: i64) -> Result<Arc<Mutex<Request>>> {
        let found = read(&self.requests).get(&id).cloned();
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
        if read(&self.requests).contains_key(&id) {
            return Err(active());
        }
        let mut live = LiveText::new();
        live.extend(prompt);
        let request = Arc::new(Mutex::new(Request { live }));
        match write(&self.requests).entry(id) {
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
        lock(&*self.request(id)?).live.extend(tokens);
        Ok(())
    }

    /// Ends a request; with `keep` its text serves later requests, and those that are active now.
    ///
    /// # Errors
    /// If the id is unknown.
    pub fn finish(&self, id: i64, keep: bool) -> Result<()> {
        let request = self.take(id)?;
        if keep {
            let request = lock(&request);
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

    fn take(&self, id: i64) -> Result<Arc<Mutex<Request>>> {
        let taken = write(&self.requests).remove(&id);
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
        let mut shared = write(&self.shared);
        shared.live.extend(document);
        shared.live.end_document();
        shared.documents += 1;
        Ok(())
    }

    /// Adds documents: document `i` is `tokens[ptr[i]..ptr[i + 1]]`.
    ///
    /// # Errors
    /// If a token is out of range or `ptr` does not rise from 0 to the number of tokens.
    pub fn add_many(&self, tokens: &[u32], ptr: &[i64]) -> Result<()> {
        check_rows(ptr.len().saturating_sub(1), tokens.len(), ptr, ptr.len().saturating_sub(1))?;
        for ends in ptr.windows(2) {
            self.add(&tokens[ends[0] as usize..ends[1] as usize])?;
        }
        Ok(())
    }

    /// Forgets all finished text. Active requests go on.
    pub fn clear(&self) {
        *write(&self.shared) = Shared::default();
    }

    /// Drafts for one request.
    ///
    /// # Errors
    /// If the id is unknown.
    pub fn draft(&self, id: i64, options: &DraftOptions<'_>, out: &mut Draft) -> Result<()> {
        let request = self.request(id)?;
        let request = lock(&request);
        self.draft_for(&request, options, out);
        Ok(())
    }

    /// Appends committed tokens and drafts, for one request.
    ///
    /// # Errors
    /// If the id is unknown, or a token is out of range.
    pub fn step(&self, id: i64, tokens: &[u32], options: &DraftOptions<'_>, out: &mut Draft) -> Result<()> {
        check_tokens(tokens)?;
        let request = self.request(id)?;
        let mut request = lock(&request);
        request.live.extend(tokens);
        self.draft_for(&request, options, out);
        Ok(())
    }

    fn draft_for(&self, request: &Request, options: &DraftOptions<'_>, out: &mut Draft) {
        let limits = Limits {
            matches: self.options.max_votes,
            min_length: self.options.min_match,
            max_length: self.options.max_match,
        };
        let shared = read(&self.shared);
        let options = &DraftOptions {
            vocab_size: options.vocab_size.min(self.options.vocab_size.unwrap_or(SEPARATOR)),
            ..*options
        };
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.own.clear();
            scratch.shared.clear();
            let text = request.live.text();
            request.live.matches_of_end(limits, &mut scratch.own);
            shared.live.matches_of(text, limits, &mut scratch.shared);
            let vote = |text, found: &Match| Vote {
                continuation: &<[u32]>::as_ref(text)[found.position as usize + 1..],
                length: found.length,
                scale: 1.0,
            };
            let mut votes: Vec<Vote<'_>> = Vec::with_capacity(2 * limits.matches);
            votes.extend(scratch.own.iter().map(|found| vote(text, found)));
            votes.extend(scratch.shared.iter().map(|found| vote(shared.live.text(), found)));
            draft(&votes, &self.options.evidence, options, &mut scratch.work, out);
        });
    }

    /// Appends to many requests and drafts for each, on at most `threads` threads.
    ///
    /// Request `i` gets `new_tokens[new_ptr[i]..new_ptr[i + 1]]` and a budget of `budgets[i]`. The result does not
    /// depend on the number of threads.
    ///
    /// # Errors
    /// If an id is unknown or listed twice, or shapes or tokens do not fit. Nothing is appended then.
    pub fn step_many(
        &self,
        ids: &[i64],
        new_tokens: &[u32],
        new_ptr: &[i64],
        budgets: &[usize],
        options: &DraftOptions<'_>,
        threads: usize,
    ) -> Result<StepDrafts> {
        check_rows(ids.len(), new_tokens.len(), new_ptr, budgets.len())?;
        check_tokens(new_tokens)?;
        if threads == 0 {
            return Err(Error::invalid("threads must be at least 1, got 0"));
        }
        let mut seen: Vec<i64> = ids.to_vec();
        seen.sort_unstable();
        if let Some(at) = (1..seen.len()).find(|&at| seen[at - 1] == seen[at]) {
            return Err(Error::new(ErrorKind::Request, format!("request {} is listed twice in one step", seen[at])));
        }
        let requests = ids.iter().map(|&id| self.request(id)).collect::<Result<Vec<_>>>()?;
        let step = |rows: std::ops::Range<usize>| -> StepDrafts {
            let mut part = StepDrafts::default();
            let mut one = Draft::default();
            for row in rows {
                let new = &new_tokens[new_ptr[row] as usize..new_ptr[row + 1] as usize];
                let mut request = lock(&requests[row]);
                request.live.extend(new);
                self.draft_for(&request, &DraftOptions { budget: budgets[row], ..*options }, &mut one);
                part.append(&one);
            }
            part
        };
        let rows = ids.len();
        let threads = threads.min(rows).max(1);
        let mut all = if threads == 1 {
            step(0..rows)
        } else {
            let cut = |part: usize| part * rows / threads;
            let step = &step;
            std::thread::scope(|scope| -> Result<StepDrafts> {
                let others: Vec<_> =
                    (1..threads).map(|part| scope.spawn(move || step(cut(part)..cut(part + 1)))).collect();
                let mut all = step(0..cut(1));
                for other in others {
                    // A panic is ours; let it reach the caller as one.
                    all.join(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                }
                Ok(all)
            })?
        };
        all.row_ptr.insert(0, 0);
        Ok(all)
    }

    /// What the cache holds.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats::default();
        let requests: Vec<_> = read(&self.requests).values().cloned().collect();
        for request in requests {
            let request = lock(&request);
            stats.active_requests += 1;
            stats.active_tokens += request.live.text().len();
            stats.active_bytes += request.live.memory_bytes();
        }
        let shared = read(&self.shared);
        stats.cached_documents = shared.documents;
        stats.cached_tokens = shared.live.text().len() - shared.documents;
        stats.cached_bytes = shared.live.memory_bytes();
        stats
    }
}

impl StepDrafts {
    fn append(&mut self, one: &Draft) {
        self.nodes.tokens.extend_from_slice(&one.tokens);
        self.nodes.parents.extend_from_slice(&one.parents);
        self.nodes.depths.extend_from_slice(&one.depths);
        self.nodes.confidence.extend_from_slice(&one.confidence);
        self.row_ptr.push(self.nodes.tokens.len() as i64);
        self.match_lengths.push(one.match_length as i32);
        self.expected.push(one.expected_accepted);
    }

    fn join(&mut self, other: Self) {
        let base = self.nodes.tokens.len() as i64;
        self.nodes.tokens.extend(other.nodes.tokens);
        self.nodes.parents.extend(other.nodes.parents);
        self.nodes.depths.extend(other.nodes.depths);
        self.nodes.confidence.extend(other.nodes.confidence);
        self.row_ptr.extend(other.row_ptr.iter().map(|end| end + base));
        self.match_lengths.extend(other.match_lengths);
        self.expected.extend(other.expected);
    }
}

fn check_rows(rows: usize, tokens: usize, new_ptr: &[i64], budgets: usize) -> Result<()> {
    if new_ptr.len() != rows + 1 {
        return Err(Error::invalid(format!(
            "new_ptr must have {} entries for {rows} requests, got {}",
            rows + 1,
            new_ptr.len()
        )));
    }
    if budgets != rows {
        return Err(Error::invalid(format!("budgets must have {rows} entries, got {budgets}")));
    }
    let ordered = new_ptr.windows(2).all(|pair| pair[0] <= pair[1]);
    if new_ptr[0] != 0 || new_ptr[rows] != tokens as i64 || !ordered {
        return Err(Error::invalid(format!(
            "new_ptr must rise from 0 to {tokens}, the number of new tokens; got {} to {}{}",
            new_ptr[0],
            new_ptr[rows],
            if ordered { "" } else { ", not rising" }
        )));
    }
    Ok(())
}
