//! Which request stands in which row of an engine's batch, told from the text in the rows.
//!
//! vLLM hands a custom proposer the rows and no request ids. Text is the better key anyway: equal text means equal drafts,
//! an id that is used again cannot bring back another request's state, and a preempted request is known when it returns.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::error::{Error, Result};

/// Last tokens of the known text that must stand where they stood.
const TAIL: usize = 16;
/// Tokens spread over the text as first seen that must stand where they stood. A row that may hold a request of another
/// row, or one that was away, must also have the checksum of that text.
const MARKS: usize = 8;
/// Steps for which a request may be out of the batch before it counts as finished.
pub const PATIENCE: u32 = 16;
/// Most comparisons of rows with requests whose length is not the expected one.
const MOST_COMPARISONS: usize = 4096;

/// What an engine shows after a step: the text of B rows, and how much of it is new.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    tokens: &'a [i32],
    width: usize,
    lengths: &'a [usize],
    fresh: &'a [usize],
}

impl<'a> Batch<'a> {
    /// Rows of `width` tokens each, of which the first `lengths[row]` are text and the last `fresh[row]` of those came
    /// with the latest step (0 while a prompt is being read).
    ///
    /// # Errors
    /// If shapes do not fit, or a length is beyond the width.
    pub fn new(tokens: &'a [i32], width: usize, lengths: &'a [usize], fresh: &'a [usize]) -> Result<Self> {
        let rows = fresh.len();
        if lengths.len() < rows || tokens.len() < rows * width {
            return Err(Error::invalid(format!(
                "expected text and lengths of at least {rows} rows, got {} tokens in rows of {width} and {} lengths",
                tokens.len(),
                lengths.len()
            )));
        }
        let lengths = &lengths[..rows];
        for (row, (&length, &fresh)) in lengths.iter().zip(fresh).enumerate() {
            if length > width || fresh > length {
                return Err(Error::invalid(format!(
                    "row {row} has {length} tokens of which {fresh} are new, expected at most {width} and no more new \
                     ones than there are"
                )));
            }
        }
        Ok(Self { tokens, width, lengths, fresh })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.fresh.len()
    }

    /// The text of a row.
    pub fn text(&self, row: usize) -> &'a [i32] {
        &self.tokens[row * self.width..][..self.lengths[row]]
    }

    /// How many tokens came with the latest step.
    pub fn fresh(&self, row: usize) -> usize {
        self.fresh[row]
    }
}

/// What [`Rows::follow`] found, for B rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Request of each row: a number that stays with the request.
    pub requests: Vec<i64>,
    /// Tokens of each row that were known before; 0 for a new request.
    pub read: Vec<usize>,
    /// Rows that hold a request not seen before.
    pub new: Vec<usize>,
    /// Requests that are gone for good.
    pub finished: Vec<i64>,
}

/// A request, and what it is known again by.
#[derive(Clone, Debug)]
struct Known {
    request: i64,
    length: usize,
    tail: [i32; TAIL],
    marks: [(u32, i32); MARKS],
    first_length: usize,
    checksum: u64,
    /// Steps out of the batch.
    away: u32,
}

impl Known {
    fn new(request: i64, text: &[i32]) -> Self {
        let last = text.len().saturating_sub(1);
        let marks = std::array::from_fn(|mark| {
            let at = last * mark / (MARKS - 1);
            (at as u32, text.get(at).copied().unwrap_or(-1))
        });
        Self {
            request,
            length: text.len(),
            tail: tail(text),
            marks,
            first_length: text.len(),
            checksum: checksum(text),
            away: 0,
        }
    }

    /// Whether `text` may be this request's, gone on with: enough for a row that held it at the step before.
    fn goes_on(&self, text: &[i32]) -> bool {
        0 < self.length
            && self.length <= text.len()
            && tail(&text[..self.length]) == self.tail
            && self.marks.iter().all(|&(at, token)| text[at as usize] == token)
    }

    /// The same for any row: all of the text as first seen is compared, by its checksum.
    fn is_in(&self, text: &[i32]) -> bool {
        self.goes_on(text) && checksum(&text[..self.first_length]) == self.checksum
    }
}

/// The last tokens of a text; −1 where there are fewer.
fn tail(text: &[i32]) -> [i32; TAIL] {
    match text.last_chunk() {
        Some(tail) => *tail,
        None => std::array::from_fn(|at| (at + text.len()).checked_sub(TAIL).map_or(-1, |at| text[at])),
    }
}

fn checksum(text: &[i32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Follows requests through the rows of a batch.
///
/// Rows may be permuted, left, and taken by others at every step. A request that leaves the batch is finished once a new
/// request arrives (engines bring preempted requests back first) or after [`PATIENCE`] steps; should it return later all
/// the same, it is a new request with a long prompt.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// The request of each row.
    present: Vec<Known>,
    away: Vec<Known>,
    /// Number of the next new request.
    next: i64,
}

impl Rows {
    /// Tells which request each row holds, and remembers its text.
    pub fn follow(&mut self, batch: &Batch<'_>) -> Matched {
        let stays = |(row, known): (usize, &Known)| row < batch.rows() && known.goes_on(batch.text(row));
        let mut found = Matched::default();
        if self.away.is_empty() && self.present.len() == batch.rows() && self.present.iter().enumerate().all(stays) {
            found.requests.extend(self.present.iter().map(|known| known.request));
            found.read.extend(self.present.iter().map(|known| known.length));
        } else {
            self.find_moved(batch, &mut found);
        }
        for (row, known) in self.present.iter_mut().enumerate() {
            let text = batch.text(row);
            known.length = text.len();
            known.tail = tail(text);
        }
        found
    }

    /// Requests that are in the batch, or may come back.
    pub fn active(&self) -> impl Iterator<Item = i64> {
        self.present.iter().chain(&self.away).map(|known| known.request)
    }

    /// Forgets all requests; the next ones get new numbers.
    pub fn clear(&mut self) {
        self.present.clear();
        self.away.clear();
    }

    fn find_moved(&mut self, batch: &Batch<'_>, found: &mut Matched) {
        let mut rows: Vec<Option<Known>> = vec![None; batch.rows()];
        let mut away: Vec<Option<Known>> = self.away.drain(..).map(Some).collect();
        for (row, known) in self.present.drain(..).enumerate() {
            if row < batch.rows() && known.goes_on(batch.text(row)) {
                rows[row] = Some(known);
            } else {
                away.push(Some(known));
            }
        }
        return_to_rows(batch, &mut rows, &mut away);
        for (row, known) in rows.into_iter().enumerate() {
            let known = if let Some(known) = known {
                found.read.push(known.length);
                Known { away: 0, ..known }
            } else {
                found.new.push(row);
                found.read.push(0);
                self.next += 1;
                Known::new(self.next - 1, batch.text(row))
            };
            found.requests.push(known.request);
            self.present.push(known);
        }
        for mut known in away.into_iter().flatten() {
            known.away += 1;
            if found.new.is_empty() && known.away <= PATIENCE {
                self.away.push(known);
            } else {
                found.finished.push(known.request);
            }
        }
    }
}

/// Gives rows that hold no known request one of those that are away: by the expected length and tail, else by comparing
/// each with each.
fn return_to_rows(batch: &Batch<'_>, rows: &mut [Option<Known>], away: &mut [Option<Known>]) {
    let mut by_tail: HashMap<(usize, [i32; TAIL]), Vec<usize>> = HashMap::new();
    for (at, known) in away.iter().enumerate() {
        if let Some(known) = known {
            by_tail.entry((known.length, known.tail)).or_default().push(at);
        }
    }
    for (row, place) in rows.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
        let text = batch.text(row);
        let before = &text[..text.len() - batch.fresh(row)];
        let Some(candidates) = by_tail.get(&(before.len(), tail(before))) else { continue };
        let fits = |&&at: &&usize| away[at].as_ref().is_some_and(|known| known.is_in(text));
        *place = candidates.iter().find(fits).and_then(|&at| away[at].take());
    }
    let left = |places: &[Option<Known>]| places.iter().flatten().count();
    if (rows.len() - left(rows)) * left(away) > MOST_COMPARISONS {
        return;
    }
    for (row, place) in rows.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
        let fits = |known: &&mut Option<Known>| known.as_ref().is_some_and(|known| known.is_in(batch.text(row)));
        *place = away.iter_mut().find(fits).and_then(Option::take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 256;

    fn follow(rows: &mut Rows, texts: &[&[i32]], fresh: usize) -> Matched {
        let mut tokens = vec![0; texts.len() * WIDTH];
        for (row, text) in texts.iter().enumerate() {
            tokens[row * WIDTH..][..text.len()].copy_from_slice(text);
        }
        let lengths: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        rows.follow(&Batch::new(&tokens, WIDTH, &lengths, &vec![fresh; texts.len()]).expect("fits"))
    }

    #[test]
    fn requests_that_begin_and_end_alike_are_told_apart() {
        let mut rows = Rows::default();
        let one: Vec<i32> = (1..=100).collect();
        let mut other = one.clone();
        other[40..60].fill(500);
        assert_eq!(follow(&mut rows, &[&one, &other], 1).new, [0, 1]);
        let swapped = follow(&mut rows, &[&other, &one], 0);
        assert_eq!((swapped.new.len(), swapped.requests), (0, vec![1, 0]));
    }

    #[test]
    fn a_request_that_stays_away_is_finished() {
        let mut rows = Rows::default();
        let (one, other): (Vec<i32>, Vec<i32>) = ((1..=50).collect(), (101..=150).collect());
        follow(&mut rows, &[&one, &other], 1);
        for _ in 0..PATIENCE {
            assert_eq!(follow(&mut rows, &[&one], 0).finished, [0; 0]);
        }
        assert_eq!(follow(&mut rows, &[&one], 0).finished, [1]);
        assert_eq!(follow(&mut rows, &[&one, &other], 0).new, [1], "a new request with a long prompt");
    }

    #[test]
    fn a_preempted_request_comes_back_with_what_it_had_or_a_little_more() {
        let mut rows = Rows::default();
        let (one, mut other): (Vec<i32>, Vec<i32>) = ((1..=50).collect(), (101..=150).collect());
        follow(&mut rows, &[&one, &other], 1);
        follow(&mut rows, &[&one], 0);
        other.extend([7, 8, 9]);
        let found = follow(&mut rows, &[&other, &one], 1);
        assert_eq!((found.requests, found.read, found.new.len()), (vec![1, 0], vec![50, 50], 0));
    }

    #[test]
    fn another_text_in_a_row_is_another_request_and_ends_those_that_left() {
        let mut rows = Rows::default();
        let (one, other): (Vec<i32>, Vec<i32>) = ((1..=50).collect(), (101..=150).collect());
        follow(&mut rows, &[&one], 1);
        let found = follow(&mut rows, &[&other], 1);
        assert_eq!((found.requests, found.new, found.finished), (vec![1], vec![0], vec![0]));
        // Shorter than before: never the same request.
        assert_eq!(follow(&mut rows, &[&other[..20]], 1).new, [0]);
        // Without text nothing is known again.
        assert_eq!(follow(&mut rows, &[&[]], 0).requests, [3]);
        assert_eq!(follow(&mut rows, &[&[]], 0).requests, [4]);
    }

    #[test]
    fn short_texts_have_tails_of_their_own() {
        assert_eq!(tail(&[]), [-1; TAIL]);
        assert_eq!(tail(&[5, 6])[13..], [-1, 5, 6]);
        let long: Vec<i32> = (0..20).collect();
        assert_eq!(tail(&long)[..], long[4..]);
    }

    #[test]
    fn batches_that_do_not_fit_are_refused() {
        assert!(Batch::new(&[1; 8], 4, &[4, 4], &[1, 1]).is_ok());
        for (lengths, fresh) in [(&[5, 1][..], &[1, 1][..]), (&[1], &[1, 1]), (&[1, 1], &[2, 0]), (&[1; 3], &[1; 3])] {
            let error = Batch::new(&[1; 8], 4, lengths, fresh).expect_err("wrong");
            assert!(error.to_string().contains("expected"), "{error}");
        }
    }
}
