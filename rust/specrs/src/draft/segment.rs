//! History tier: finished documents, immutable, with their positions in context order (a suffix array of the text read
//! backwards). Eight bytes per token and a directory of the tokens that occur; memory-mapped when it comes from a file.

use super::context::{Limits, Match, SEPARATOR, check_documents, common_suffix, nearest, order_key};
use super::words::Words;
use crate::error::{Error, Result};

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
        let (distinct, mut backwards) = rank_backwards(&text);
        let symbols = distinct.len() as i64 + 1;
        let extra = 6 * symbols;
        if text.len() as i64 + extra > i64::from(i32::MAX) {
            return Err(Error::invalid(format!(
                "a segment holds at most 2147483647 tokens and six times its distinct ones, got {} and {}",
                text.len(),
                distinct.len()
            )));
        }
        let mut suffixes = vec![0_i32; text.len() + extra as usize];
        if text.len() > 1 {
            let status = libsais_rs::libsais_int(&mut backwards, &mut suffixes, symbols as i32, extra as i32);
            if status != 0 {
                return Err(Error::invalid(format!("building a suffix array of {} tokens failed", text.len())));
            }
        }
        drop(backwards);
        // The separators rank lowest, so they are the first suffixes.
        let last = text.len().saturating_sub(1) as u32;
        suffixes.truncate(text.len());
        let mut order: Vec<u32> = suffixes.into_iter().skip(documents).map(|suffix| last - suffix as u32).collect();
        order.shrink_to_fit();
        Ok(Self::assemble(text, order, distinct, documents))
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
        let mut distinct: Vec<u32> = order.iter().map(|&position| text[position as usize]).collect();
        distinct.dedup();
        Self::assemble(text, order, distinct, documents)
    }

    fn assemble(text: Vec<u32>, order: Vec<u32>, mut directory: Vec<u32>, documents: usize) -> Self {
        let mut start = 0;
        for at in 0..directory.len() {
            let token = directory[at];
            directory.push(start as u32);
            // Runs are long for few tokens and short for most: gallop, then halve.
            let mut step = 1;
            while start + step < order.len() && text[order[start + step] as usize] == token {
                step *= 2;
            }
            let end = (start + step).min(order.len());
            start += order[start..end].partition_point(|&position| text[position as usize] == token);
        }
        Self { text: text.into(), order: order.into(), directory: directory.into(), documents: documents as u64 }
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
        (self.text.len() + self.order.len() + self.directory.len()) * size_of::<u32>()
    }

    /// Positions that share the longest suffixes with `context`, longest first.
    pub fn matches_of(&self, context: &[u32], limits: Limits, out: &mut Vec<Match>) {
        let Some(&last) = context.last() else { return };
        let (start, end) = self.places_of(last);
        let order = &self.order[start..end];
        let text = &*self.text;
        let place = order.partition_point(|&position| context_below(text, position, context, limits.max_length));
        let mut left = order[..place].iter().rev().copied();
        let mut right = order[place..].iter().copied();
        nearest(text, context, || left.next(), || right.next(), limits, out);
    }

    /// How many positions have a context that ends with `pattern`.
    pub fn count(&self, pattern: &[u32]) -> usize {
        let Some(&last) = pattern.last() else { return self.order.len() };
        let (start, end) = self.places_of(last);
        let order = &self.order[start..end];
        let text = &*self.text;
        let ends_with =
            |position: u32| common_suffix(&text[..=position as usize], pattern, pattern.len()) == pattern.len();
        let first = order.partition_point(|&position| context_below(text, position, pattern, usize::MAX));
        order[first..].partition_point(|&position| ends_with(position))
    }

    /// The range of `order` whose positions hold `token`.
    fn places_of(&self, token: u32) -> (usize, usize) {
        let (tokens, starts) = self.directory.split_at(self.directory.len() / 2);
        match tokens.binary_search(&token) {
            Ok(at) => (starts[at] as usize, starts.get(at + 1).map_or(self.order.len(), |&end| end as usize)),
            Err(_) => (0, 0),
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

/// The distinct tokens, rising, and the text read backwards with each token replaced by its rank from 1; separators are 0.
fn rank_backwards(text: &[u32]) -> (Vec<u32>, Vec<i32>) {
    // A table by id is fastest while ids are small, as those of real vocabularies are.
    const TABLE: u32 = 1 << 22;
    let largest = text.iter().copied().filter(|&token| token != SEPARATOR).max().unwrap_or(0);
    if largest < TABLE {
        let mut rank = vec![0_i32; largest as usize + 1];
        for &token in text {
            if token != SEPARATOR {
                rank[token as usize] = 1;
            }
        }
        let mut distinct = Vec::new();
        for (token, rank) in rank.iter_mut().enumerate() {
            if *rank != 0 {
                distinct.push(token as u32);
                *rank = distinct.len() as i32;
            }
        }
        let ranked =
            text.iter().rev().map(|&token| if token == SEPARATOR { 0 } else { rank[token as usize] }).collect();
        return (distinct, ranked);
    }
    let mut distinct: Vec<u32> = text.iter().copied().filter(|&token| token != SEPARATOR).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let ranked =
        text.iter().rev().map(|token| distinct.binary_search(token).map_or(0, |rank| rank as i32 + 1)).collect();
    (distinct, ranked)
}
