//! One drafting step of a batch: requests found, what came learnt from, new text read, drafts made and cut.

use std::collections::HashMap;

use super::gate::PayoffGate;
use super::rows::{Batch, Matched, Rows};
use super::times::StepTimes;
use crate::draft::{DraftOptions, SEPARATOR, Shape, StepDrafts, SuffixCache};
use crate::error::{Error, ErrorKind, Result};

/// How a proposer drafts.
#[derive(Clone, Debug)]
pub struct ProposerOptions {
    /// Most tokens of a draft.
    pub draft_tokens: usize,
    /// Most tokens of a request, prompt included.
    pub max_length: usize,
    /// Tokens that end a text: they end a draft, and what follows one in new text is not learnt.
    pub eos: Vec<u32>,
    /// A draft ends where the estimated probability of reaching its next token falls below.
    pub min_prob: f32,
    /// Threads of one step.
    pub threads: usize,
    /// Whether drafts are cut by a [`PayoffGate`].
    pub gate: bool,
    /// Cost of one more row as a share of the first, until it is measured.
    pub token_cost: f64,
    /// Whether finished requests serve later ones.
    pub keep: bool,
    /// Whether the text of finished requests is handed out, to be stored.
    pub hand_out: bool,
    /// Steps in a row with drafts and nothing accepted, after something was, that make the proposer forget all requests.
    pub dead_steps: u32,
}

/// What a proposer did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps.
    pub steps: u64,
    /// Requests met.
    pub requests: u64,
    /// Tokens that were to be scored.
    pub drafted: u64,
    /// Those of them that were accepted.
    pub accepted: u64,
    /// Tokens that came, each step's own included.
    pub emitted: u64,
}

/// The drafts of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proposal {
    /// Tokens to score, the rows' drafts one after the other.
    pub tokens: Vec<u32>,
    /// Where each row's draft starts; one more entry than rows.
    pub row_ptr: Vec<usize>,
    /// Text of the requests that are finished, if it is to be handed out.
    pub finished: Vec<Vec<u32>>,
    /// Whether all requests were forgotten, because nothing was accepted for long.
    pub anew: bool,
}

/// What the last step proposed.
#[derive(Clone, Debug)]
struct Proposed {
    requests: Vec<i64>,
    lengths: Vec<usize>,
    drafts: StepDrafts,
    kept: Vec<usize>,
}

/// Drafts for a batch whose engine shows its rows and no more; see [`crate::serving`].
///
/// After an error the state of the requests is not known: call [`Proposer::forget`], and the next step meets them anew.
#[derive(Clone, Debug)]
pub struct Proposer {
    options: ProposerOptions,
    rows: Rows,
    gate: PayoffGate,
    proposed: Option<Proposed>,
    counts: Counts,
    dead_steps: u32,
}

impl Proposer {
    /// A proposer that has met no request.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn new(options: ProposerOptions) -> Result<Self> {
        let ProposerOptions { threads, token_cost, min_prob, .. } = options;
        if threads == 0 || !(token_cost.is_finite() && token_cost > 0.0) || !(0.0..=1.0).contains(&min_prob) {
            return Err(Error::invalid(format!(
                "threads must be at least 1, token_cost above 0 and min_prob a probability, got {threads}, {token_cost} \
                 and {min_prob}"
            )));
        }
        let gate = PayoffGate::new(token_cost);
        Ok(Self { options, rows: Rows::default(), gate, proposed: None, counts: Counts::default(), dead_steps: 0 })
    }

    /// Drafts for each row of the batch after a step of the engine that took `seconds` (none if that is not known).
    ///
    /// A row with no fresh token gets no draft: its prompt is still being read. Until a step was timed nothing is
    /// drafted, unless the gate is off: a plain step's time is what drafts are weighed against.
    ///
    /// # Errors
    /// If a token is negative, or someone else used the cache's requests.
    pub fn step(&mut self, cache: &SuffixCache, batch: &Batch<'_>, seconds: Option<f64>) -> Result<Proposal> {
        let mut found = self.rows.follow(batch);
        let finished = self.finish(cache, &found.finished)?;
        if let Some(last) = self.proposed.take()
            && self.learn(&last, &found, batch, seconds)
        {
            self.forget(cache);
            self.counts.steps += 1;
            return Ok(Proposal { row_ptr: vec![0; batch.rows() + 1], finished, anew: true, ..Proposal::default() });
        }
        let mut proposal = Proposal { finished, ..Proposal::default() };
        for &row in &found.new {
            cache.start(found.requests[row], &tokens_of(batch.text(row), row)?)?;
            found.read[row] = batch.text(row).len();
            self.counts.requests += 1;
        }
        self.draft(cache, batch, &found, &mut proposal)?;
        self.counts.steps += 1;
        Ok(proposal)
    }

    /// Ends requests; returns their text if that is to be handed out. One that fails keeps none of the others.
    fn finish(&self, cache: &SuffixCache, requests: &[i64]) -> Result<Vec<Vec<u32>>> {
        let mut texts = Ok(Vec::new());
        for &request in requests {
            let text = if self.options.hand_out { cache.text(request) } else { Ok(Vec::new()) };
            let ended = text.and_then(|text| cache.finish(request, self.options.keep).map(|()| text));
            match (&mut texts, ended) {
                (Ok(texts), Ok(text)) if self.options.hand_out => texts.push(text),
                (Ok(_), Err(error)) => texts = Err(error),
                _ => {}
            }
        }
        texts
    }

    /// Compares what was proposed with what came, and notes how long the step took. Returns whether drafting is dead.
    fn learn(&mut self, last: &Proposed, found: &Matched, batch: &Batch<'_>, seconds: Option<f64>) -> bool {
        // Where each drafted request stands now.
        let now: Vec<Option<usize>> = if last.requests == found.requests {
            (0..last.requests.len()).map(Some).collect()
        } else {
            let rows: HashMap<i64, usize> =
                found.requests.iter().zip(0..).map(|(&request, row)| (request, row)).collect();
            last.requests.iter().map(|request| rows.get(request).copied()).collect()
        };
        let (mut drafted, mut accepted, mut still) = (0, 0, 0);
        for (was, row) in now.iter().enumerate().filter_map(|(was, row)| row.map(|row| (was, row))) {
            let came = batch.text(row).len() - last.lengths[was];
            still += 1;
            drafted += last.kept[was];
            // Each row's own token comes behind the accepted ones.
            accepted += last.kept[was].min(came.saturating_sub(1));
            self.counts.emitted += came as u64;
        }
        self.counts.drafted += drafted as u64;
        self.counts.accepted += accepted as u64;
        if self.options.gate {
            // A step that read prompts tells nothing about the price of a drafted token.
            let decoded = found.new.is_empty() && (0..batch.rows()).all(|row| batch.fresh(row) > 0);
            if let Some(seconds) = seconds
                && decoded
                && still == batch.rows()
            {
                self.gate.times.observe(still + drafted, seconds);
            }
            self.gate.learn(&last.drafts, |was| now[was].map_or(&[], |row| &batch.text(row)[last.lengths[was]..]));
        }
        if accepted > 0 {
            self.dead_steps = 0;
        } else if drafted > 0 && self.counts.accepted > 0 {
            self.dead_steps += 1;
        }
        self.dead_steps >= self.options.dead_steps
    }

    /// Reads the new text of all rows, and continues that of those that go on.
    fn draft(&mut self, cache: &SuffixCache, batch: &Batch<'_>, found: &Matched, out: &mut Proposal) -> Result<()> {
        let (mut rows, mut unread, mut ptr, mut room) = (Vec::new(), Vec::new(), vec![0], Vec::new());
        for row in 0..batch.rows() {
            let text = batch.text(row);
            let mut new = tokens_of(&text[found.read[row]..], row)?;
            if let Some(end) = new.iter().position(|token| self.options.eos.contains(token)) {
                new.truncate(end + 1); // engines drop what follows
            }
            if batch.fresh(row) == 0 {
                cache.append(found.requests[row], &new)?; // a request that came back, and reads its text again
                continue;
            }
            rows.push(row);
            unread.append(&mut new);
            ptr.push(unread.len() as i64);
            let left = self.options.max_length.saturating_sub(text.len() + 1);
            room.push(left.min(self.options.draft_tokens));
        }
        let requests: Vec<i64> = rows.iter().map(|&row| found.requests[row]).collect();
        let options = DraftOptions {
            budget: 0,
            shape: Shape::Chain,
            min_prob: self.options.min_prob,
            eos: &self.options.eos,
            vocab_size: SEPARATOR,
        };
        let drafts = cache.step_many(&requests, &unread, &ptr, &room, &options, self.options.threads)?;
        let kept = if !self.options.gate {
            drafts.row_ptr.windows(2).map(|ends| (ends[1] - ends[0]) as usize).collect()
        } else if self.gate.times.is_measured() {
            self.gate.cut(&drafts)
        } else {
            vec![0; rows.len()]
        };
        out.row_ptr = vec![0; batch.rows() + 1];
        for (at, &row) in rows.iter().enumerate() {
            out.row_ptr[row + 1] = kept[at];
            let first = drafts.row_ptr[at] as usize;
            out.tokens.extend_from_slice(&drafts.nodes.tokens[first..first + kept[at]]);
        }
        for row in 0..batch.rows() {
            out.row_ptr[row + 1] += out.row_ptr[row];
        }
        let lengths = rows.iter().map(|&row| batch.text(row).len()).collect();
        self.proposed = (!rows.is_empty()).then_some(Proposed { requests, lengths, drafts, kept });
        Ok(())
    }

    /// Finishes all requests; returns their text if it is to be handed out.
    ///
    /// # Errors
    /// If someone else used the cache's requests.
    pub fn finish_all(&mut self, cache: &SuffixCache) -> Result<Vec<Vec<u32>>> {
        let mut requests: Vec<i64> = self.rows.active().collect();
        requests.sort_unstable();
        self.rows.clear();
        self.proposed = None;
        self.finish(cache, &requests)
    }

    /// Drops all requests and their text, whatever state an error left them in.
    pub fn forget(&mut self, cache: &SuffixCache) {
        for request in self.rows.active() {
            // One that the cache does not know was to be started when the error came.
            if let Err(error) = cache.abort(request) {
                debug_assert_eq!(error.kind(), ErrorKind::Request);
            }
        }
        self.rows.clear();
        self.proposed = None;
        self.dead_steps = 0;
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What a step takes, as learnt.
    pub fn times(&self) -> &StepTimes {
        &self.gate.times
    }

    /// How many requests are in the batch, or may come back.
    pub fn active(&self) -> usize {
        self.rows.active().count()
    }
}

fn tokens_of(text: &[i32], row: usize) -> Result<Vec<u32>> {
    text.iter()
        .map(|&token| {
            u32::try_from(token)
                .map_err(|_| Error::invalid(format!("token ids must be 0 or more, got {token} in row {row}")))
        })
        .collect()
}
