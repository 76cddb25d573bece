//! What both tiers share: matches, separators, and the comparison of texts read backwards.

use crate::error::{Error, Result};

/// Ends a document inside a tier's text. No token has this id.
pub const SEPARATOR: u32 = u32::MAX;

/// A place in a tier's text whose context shares `length` tokens with the context asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Index of the last shared token; the continuation starts after it.
    pub position: u32,
    /// Shared tokens, at most the longest length asked for.
    pub length: u32,
}

/// What a lookup returns at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most matches.
    pub matches: usize,
    /// Shortest match returned.
    pub min_length: usize,
    /// Longest match measured.
    pub max_length: usize,
}

/// Orders tokens with the separator first: the start of a document is the smallest context.
#[inline]
pub fn order_key(token: u32) -> u32 {
    token.wrapping_add(1)
}

/// Tokens that the ends of `left` and `right` share, at most `cap`.
#[inline]
pub fn common_suffix(left: &[u32], right: &[u32], cap: usize) -> usize {
    let most = left.len().min(right.len()).min(cap);
    let left = &left[left.len() - most..];
    let right = &right[right.len() - most..];
    let mut shared = 0;
    while shared + 8 <= most && left[most - shared - 8..most - shared] == right[most - shared - 8..most - shared] {
        shared += 8;
    }
    while shared < most && left[most - 1 - shared] == right[most - 1 - shared] {
        shared += 1;
    }
    shared
}

/// Walks outwards from the place of `context` in a context order and collects the longest matches, longest first.
///
/// `left` and `right` yield the positions of `text` before and after that place. Going outwards the shared suffix only
/// gets shorter, so the longest of the two sides is the longest of all. Of equal lengths the later position comes first:
/// it is the more recent text.
pub fn nearest(
    text: &[u32],
    context: &[u32],
    mut left: impl FnMut() -> Option<u32>,
    mut right: impl FnMut() -> Option<u32>,
    limits: Limits,
    out: &mut Vec<Match>,
) {
    let measure = |at: Option<u32>, cap: usize| match at {
        Some(position) => (position, common_suffix(&text[..=position as usize], context, cap)),
        None => (0, 0),
    };
    let mut at_left = measure(left(), limits.max_length);
    let mut at_right = measure(right(), limits.max_length);
    for _ in 0..limits.matches {
        let take_left = at_left.1 > at_right.1 || (at_left.1 == at_right.1 && at_left.0 > at_right.0);
        let (position, length) = if take_left { at_left } else { at_right };
        if length < limits.min_length {
            break;
        }
        out.push(Match { position, length: length as u32 });
        if take_left {
            at_left = measure(left(), length);
        } else {
            at_right = measure(right(), length);
        }
    }
}

/// Refuses the one id that no token has.
///
/// # Errors
/// If it is among `tokens`.
pub fn check_tokens(tokens: &[u32]) -> Result<()> {
    match tokens.iter().position(|&token| token == SEPARATOR) {
        None => Ok(()),
        Some(at) => Err(Error::invalid(format!("token ids must be at most 4294967294, got {SEPARATOR} at index {at}"))),
    }
}

/// Checks that `ptr` cuts `tokens` into consecutive pieces, and the tokens.
///
/// # Errors
/// If it does not rise from 0 to the number of tokens, or a token is out of range.
pub fn check_documents(tokens: &[u32], ptr: &[i64]) -> Result<()> {
    let wrong = |what: &str| {
        let found = (ptr.first(), ptr.last());
        Err(Error::invalid(format!(
            "offsets must rise from 0 to {}, the number of tokens; got {} of them from {found:?}{what}",
            tokens.len(),
            ptr.len()
        )))
    };
    if ptr.first() != Some(&0) || ptr.last() != Some(&(tokens.len() as i64)) {
        return wrong("");
    }
    if !ptr.is_sorted() {
        return wrong(", not rising");
    }
    check_tokens(tokens)
}
