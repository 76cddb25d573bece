//! History tier: finished documents, immutable, with their positions in context order (a suffix array of the text read
//! backwards). Eight bytes per token and a directory of the tokens that occur; memory-mapped when it comes from a file.

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
        let distinct = ranks.distinct;
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

/// The distinct tokens of a text, rising, and each one's rank from 1; separators have rank 0.
struct Ranks {
    distinct: Vec<u32>,
    /// Ranks by id, while ids are small, as those of real vocabularies are; else empty.
    table: Vec<u32>,
}

impl Ranks {
    fn of(text: &[u32]) -> Self {
        const TABLE: u32 = 1 << 22;
        let largest = text.iter().copied().filter(|&token| token != SEPARATOR).max().unwrap_or(0);
        let mut distinct = Vec::new();
        if largest >= TABLE {
            distinct.extend(text.iter().copied().filter(|&token| token != SEPARATOR));
            distinct.sort_unstable();
            distinct.dedup();
            return Self { distinct, table: Vec::new() };
        }
        let mut table = vec![0_u32; largest as usize + 1];
        for &token in text {
            if token != SEPARATOR {
                table[token as usize] = 1;
            }
        }
        for (token, rank) in (0..).zip(&mut table) {
            if *rank != 0 {
                distinct.push(token);
                *rank = distinct.len() as u32;
            }
        }
        Self { distinct, table }
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
