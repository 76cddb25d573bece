//! One step over many requests: threads, and the drafts one after the other.

use super::cache::SuffixCache;
use super::context::check_documents;
use super::vote::{Draft, DraftOptions};
use crate::error::{Error, ErrorKind, Result};

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

impl StepDrafts {
    pub(super) fn append(&mut self, one: &Draft) {
        self.nodes.tokens.extend_from_slice(&one.tokens);
        self.nodes.parents.extend_from_slice(&one.parents);
        self.nodes.depths.extend_from_slice(&one.depths);
        self.nodes.confidence.extend_from_slice(&one.confidence);
        self.row_ptr.push(self.nodes.tokens.len() as i64);
        self.match_lengths.push(one.match_length as i32);
        self.expected.push(one.expected_accepted);
    }

    pub(super) fn join(&mut self, other: Self) {
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

impl SuffixCache {
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
        check_documents(new_tokens, new_ptr)?;
        if new_ptr.len() != ids.len() + 1 || budgets.len() != ids.len() {
            return Err(Error::invalid(format!(
                "{} requests need {} entries of new_ptr and as many budgets, got {} and {}",
                ids.len(),
                ids.len() + 1,
                new_ptr.len(),
                budgets.len()
            )));
        }
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
                let mut request = requests[row].lock();
                request.live.extend(new);
                request.draft(
                    &self.history.read(),
                    &self.options,
                    &DraftOptions { budget: budgets[row], ..*options },
                    &mut one,
                );
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
}
