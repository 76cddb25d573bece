//! History tier: finished documents, immutable, with their positions in context order (a suffix array of the text read
//! backwards). Eight bytes per token and a directory of the tokens that occur; memory-mapped when it comes from a file.

use std::hint::black_box;

use super::coarse::{Coarse, STRIDE, key_before, key_of_context};
use super::context::{Limits, Match, SEPARATOR, check_documents, common_suffix, nearest, order_key};
use super::words::Words;
use crate::error::{Error, Result};

/// Tokens from which the suffix sort with 16-bit ranks beats the general one, whose tables are smaller.
const SORT_AS_U16: usize = 1 << 18;

/// Finished documents and the context order of their positions.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Documents, each ended by [`SEPARATOR`].
    pub(super) text: Words,
    /// Positions of `text`, separators left out, in context order.
    pub(super) order: Words,
    /// The tokens that occur, rising, then as many places in `order` where their positions start.
    pub(super) directory: Words,
    pub(super) documents: u64,
    coarse: Coarse,
}

impl Segment {
    /// Builds a segment from text in which every document is ended by [`SEPARATOR`].
    ///
    /// # Errors
    /// If the text is longer than 2³¹ − 1 tokens less its distinct tokens, or its last document is not ended.
    pub fn build(text: Vec<u32>) -> Result<Self> {
        if text.last().is_some_and(|&token| token != SEPARATOR) {
            return Err(Error::invalid("the last document of a segment must be ended by the separator"));
        }
        let documents = text.iter().filter(|&&token| token == SEPARATOR).count();
        let ranks = Ranks::of(&text);
        let symbols = ranks.distinct.len() as i64 + 1;
        let extra = 6 * symbols;
        if text.len() as i64 + extra > i64::from(i32::MAX) {
            return Err(Error::invalid(format!(
                "a segment holds at most 2147483647 tokens and six times its distinct ones, got {} and {}",
                text.len(),
                ranks.distinct.len()
            )));
        }
        let mut suffixes = vec![0_i32; text.len() + extra as usize];
        if text.len() > 1 {
            let backwards = text.iter().rev().map(|&token| ranks.rank(token));
            let status = if text.len() >= SORT_AS_U16 && symbols <= 1 << 16 {
                let backwards: Vec<u16> = backwards.map(|rank| rank as u16).collect();
                libsais_rs::libsais16::libsais16(&backwards, &mut suffixes, extra as i32, None)
            } else {
                let mut backwards: Vec<i32> = backwards.map(|rank| rank as i32).collect();
                libsais_rs::libsais_int(&mut backwards, &mut suffixes, symbols as i32, extra as i32)
            };
            if status != 0 {
                return Err(Error::invalid(format!("building a suffix array of {} tokens failed", text.len())));
            }
        }
        let directory = ranks.directory();
        // The separators rank lowest, so they are the first suffixes.
        let last = text.len().saturating_sub(1) as u32;
        suffixes.truncate(text.len());
        let mut order: Vec<u32> = suffixes.into_iter().skip(documents).map(|suffix| last - suffix as u32).collect();
        order.shrink_to_fit();
        Ok(Self::of_words(text.into(), order.into(), directory.into(), documents as u64))
    }

    /// Builds a segment from documents: document `i` is `tokens[ptr[i]..ptr[i + 1]]`; empty ones are left out.
    ///
    /// # Errors
    /// If `ptr` does not rise from 0 to the number of tokens, a token is out of range, or there are too many.
    pub fn from_documents(tokens: &[u32], ptr: &[i64]) -> Result<Self> {
        check_documents(tokens, ptr)?;
        let mut text = Vec::with_capacity(tokens.len() + ptr.len());
        for ends in ptr.windows(2).filter(|ends| ends[0] < ends[1]) {
            text.extend_from_slice(&tokens[ends[0] as usize..ends[1] as usize]);
            text.push(SEPARATOR);
        }
        Self::build(text)
    }

    /// One segment with the documents of several, in their order.
    ///
    /// # Errors
    /// As for [`Segment::build`].
    pub fn merge(segments: &[std::sync::Arc<Self>]) -> Result<Self> {
        let mut text = Vec::with_capacity(segments.iter().map(|segment| segment.text.len()).sum());
        for segment in segments {
            text.extend_from_slice(&segment.text);
        }
        Self::build(text)
    }

    /// A segment from text whose context order is known already.
    pub(super) fn from_order(text: Vec<u32>, order: Vec<u32>) -> Self {
        let documents = text.iter().filter(|&&token| token == SEPARATOR).count();
        let (mut directory, mut starts) = (Vec::new(), Vec::new());
        for (place, &position) in (0..).zip(&order) {
            let token = text[position as usize];
            if directory.last() != Some(&token) {
                directory.push(token);
                starts.push(place);
            }
        }
        directory.append(&mut starts);
        Self::of_words(text.into(), order.into(), directory.into(), documents as u64)
    }

    /// A segment of arrays that are known to fit together.
    pub(super) fn of_words(text: Words, order: Words, directory: Words, documents: u64) -> Self {
        let coarse = Coarse::new(&text, &order, &directory[..directory.len() / 2]);
        Self { text, order, directory, documents, coarse }
    }

    /// The tokens, documents ended by [`SEPARATOR`].
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    /// Positions in context order.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Documents held.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Tokens held, separators left out.
    pub fn tokens(&self) -> u64 {
        self.order.len() as u64
    }

    /// Bytes held, in memory or mapped.
    pub fn bytes(&self) -> usize {
        (self.text.len() + self.order.len() + self.directory.len()) * size_of::<u32>() + self.coarse.bytes()
    }

    /// Positions that share the longest suffixes with `context`, longest first.
    pub fn matches_of(&self, context: &[u32], limits: Limits, out: &mut Vec<Match>) {
        let Some(&last) = context.last() else { return };
        let (start, end) = self.places_of(last);
        if start == end {
            return;
        }
        let (text, order) = (&*self.text, &*self.order);
        let place = self.place_of(context, limits.max_length, start, end);
        // What is measured next, read here so that no line of it waits for another.
        let ends = (place.saturating_sub(limits.matches).max(start), place.saturating_add(limits.matches).min(end));
        black_box(order[ends.0..ends.1].iter().fold(0, |sum: u32, &position| sum ^ text[position as usize]));
        let mut left = order[start..place].iter().rev().copied();
        let mut right = order[place..end].iter().copied();
        nearest(text, context, || left.next(), || right.next(), limits, out);
    }

    /// The first place of `start..end`, which hold the context's last token, that does not sort below it.
    fn place_of(&self, context: &[u32], cap: usize, start: usize, end: usize) -> usize {
        let (text, order) = (&*self.text, &*self.order);
        let key = key_of_context(context, cap);
        let below = |place: usize| context_below(text, order[place], context, cap);
        let (start, end) = self.coarse.narrow(start, end, key, below);
        // Fewer than `STRIDE` places are left.
        let mut keys = [0; STRIDE];
        let (mut lower, mut equal) = (0, 0);
        for (own, &position) in keys.iter_mut().zip(&order[start..end]) {
            *own = key_before(text, position);
            lower += usize::from(*own < key);
            equal += usize::from(*own == key);
        }
        let equal = &order[start + lower..start + lower + equal];
        start + lower + equal.partition_point(|&position| context_below(text, position, context, cap))
    }

    /// How many positions have a context that ends with `pattern`.
    pub fn count(&self, pattern: &[u32]) -> usize {
        let Some(&last) = pattern.last() else { return self.order.len() };
        let (start, end) = self.places_of(last);
        let order = &self.order[start..end];
        let text = &*self.text;
        let ends_with =
            |position: u32| common_suffix(&text[..=position as usize], pattern, pattern.len()) == pattern.len();
        let first = self.place_of(pattern, usize::MAX, start, end) - start;
        order[first..].partition_point(|&position| ends_with(position))
    }

    /// The range of `order` whose positions hold `token`.
    fn places_of(&self, token: u32) -> (usize, usize) {
        let (tokens, starts) = self.directory.split_at(self.directory.len() / 2);
        match self.coarse.find(tokens, token) {
            Some(at) => (starts[at] as usize, starts.get(at + 1).map_or(self.order.len(), |&end| end as usize)),
            None => (0, 0),
        }
    }
}

/// Whether the context of `position` sorts before `context`, of which the last `cap` tokens count.
pub(super) fn context_below(text: &[u32], position: u32, context: &[u32], cap: usize) -> bool {
    let own = &text[..=position as usize];
    let shared = common_suffix(own, context, cap);
    if shared == context.len().min(cap) {
        return false;
    }
    let theirs = order_key(context[context.len() - 1 - shared]);
    own.len().checked_sub(1 + shared).is_none_or(|at| order_key(own[at]) < theirs)
}

/// The distinct tokens of a text, rising, and each one's rank from 1; separators have rank 0.
struct Ranks {
    distinct: Vec<u32>,
    /// How often each occurs.
    counts: Vec<u32>,
    /// Ranks by id, while ids are small, as those of real vocabularies are; else empty.
    table: Vec<u32>,
}

impl Ranks {
    fn of(text: &[u32]) -> Self {
        const TABLE: u32 = 1 << 22;
        let tokens = || text.iter().copied().filter(|&token| token != SEPARATOR);
        let largest = tokens().max().unwrap_or(0);
        let (mut distinct, mut counts) = (Vec::new(), Vec::new());
        if largest >= TABLE {
            let mut sorted: Vec<u32> = tokens().collect();
            sorted.sort_unstable();
            for run in sorted.chunk_by(|a, b| a == b) {
                distinct.push(run[0]);
                counts.push(run.len() as u32);
            }
            return Self { distinct, counts, table: Vec::new() };
        }
        let mut table = vec![0_u32; largest as usize + 1];
        tokens().for_each(|token| table[token as usize] += 1);
        for (token, count) in (0..).zip(&mut table) {
            if *count != 0 {
                distinct.push(token);
                counts.push(*count);
                *count = distinct.len() as u32;
            }
        }
        Self { distinct, counts, table }
    }

    /// The tokens, and then where the positions of each start in the order.
    fn directory(self) -> Vec<u32> {
        let mut directory = self.distinct;
        directory.reserve_exact(self.counts.len());
        let mut start = 0;
        directory.extend(self.counts.into_iter().map(|count| {
            start += count;
            start - count
        }));
        directory
    }

    #[inline]
    fn rank(&self, token: u32) -> u32 {
        if self.table.is_empty() {
            self.distinct.binary_search(&token).map_or(0, |rank| rank as u32 + 1)
        } else {
            // The separator is beyond every table.
            self.table.get(token as usize).copied().unwrap_or(0)
        }
    }
}
