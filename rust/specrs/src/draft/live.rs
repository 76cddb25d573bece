//! Live tier: text that is being written, its positions kept in context order.
//!
//! The *context* of a position is the text that ends there, read backwards. Positions sorted by context put every
//! position next to those that share the longest suffix with it, so the longest match of the whole text is one of the
//! two neighbours of the last position, and the next best ones are found by walking outwards: no search at draft time.
//!
//! The order is kept in blocks of at most 64 positions. Where a new position belongs is decided by its token and, among
//! equal tokens, by the order of the positions *before*, which are in place already (Amir and Nor, "Real-time indexing
//! over fixed finite alphabets", 2008, keep the same order in a balanced tree). A comparison therefore costs O(1)
//! whatever the text repeats, and an append costs O(log n). Memory: 14 to 20 bytes per token.

use super::context::{Limits, Match, SEPARATOR, common_suffix, nearest};
use super::segment::{Segment, context_below};
use crate::error::Result;

const BLOCK: usize = 64;
/// Positions per block after a load: room for what is appended.
const LOADED: usize = 48;
/// Tokens that a loaded text has room for beyond its own.
const ROOM: usize = 2048;
/// Tokens from which sorting at once beats inserting one by one.
const SORT_AT_ONCE: usize = 1024;
/// Neighbours looked at on each side before searching.
const NEIGHBOURS: usize = 4;
const NONE: u32 = u32::MAX;
/// Distance of the order labels of neighbouring blocks after a relabelling.
const LABEL_GAP: u64 = 1 << 32;

#[derive(Clone)]
struct Block {
    /// `NONE` from `len` on.
    positions: [u32; BLOCK],
    len: u32,
    previous: u32,
    next: u32,
    /// Grows along the order; two blocks compare by it.
    label: u64,
}

/// First token of a block, beside the block's number: the binary search mostly stays within this array.
#[derive(Clone, Copy)]
struct Head {
    token: u32,
    block: u32,
}

/// Where a position stands in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    label: u64,
    index: u32,
}

/// Text that grows at its end, with the context order of its positions.
#[derive(Clone, Default)]
pub struct LiveText {
    text: Vec<u32>,
    /// The block that holds a position (`NONE` for separators).
    block_of: Vec<u32>,
    blocks: Vec<Block>,
    heads: Vec<Head>,
    /// Where in its block the last position stands.
    tip: u32,
}

impl LiveText {
    /// An empty text.
    pub fn new() -> Self {
        Self::default()
    }

    /// The tokens, documents ended by [`SEPARATOR`].
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    /// Appends one token.
    pub fn push(&mut self, token: u32) {
        debug_assert!(token != SEPARATOR);
        let position = self.text.len() as u32;
        let last = self.last_place();
        if let Some((block, index)) = last.and_then(|(block, index)| self.beside_neighbour(block, index, token)) {
            self.text.push(token);
            self.place(position, block, index);
            return;
        }
        let before = last.map(|(block, index)| Rank { label: self.blocks[block as usize].label, index });
        self.text.push(token);
        self.insert(position, token, before);
    }

    /// Block and index of the last position; none at the start of a document, which sorts first.
    fn last_place(&self) -> Option<(u32, u32)> {
        let &block = self.block_of.last()?;
        (block != NONE).then_some((block, self.tip))
    }

    /// Appends tokens in order. The first tokens of an empty text are sorted at once if they are many.
    pub fn extend(&mut self, tokens: &[u32]) {
        if self.text.is_empty() && tokens.len() >= SORT_AT_ONCE && self.load(tokens).is_ok() {
            return;
        }
        self.text.reserve(tokens.len());
        self.block_of.reserve(tokens.len());
        for &token in tokens {
            self.push(token);
        }
    }

    /// Ends the document: nothing after this call is ever joined with what came before.
    pub fn end_document(&mut self) {
        if self.text.last().is_some_and(|&token| token != SEPARATOR) {
            self.text.push(SEPARATOR);
            self.block_of.push(NONE);
        }
    }

    /// The same text as a segment; nothing is sorted again.
    pub fn into_segment(mut self) -> Segment {
        self.end_document();
        let order = self.positions().collect();
        self.text.shrink_to_fit();
        Segment::from_order(self.text, order)
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        (self.text.capacity() + self.block_of.capacity()) * size_of::<u32>()
            + self.blocks.capacity() * size_of::<Block>()
            + self.heads.capacity() * size_of::<Head>()
    }

    /// All positions in context order.
    pub fn positions(&self) -> impl Iterator<Item = u32> + '_ {
        self.heads.iter().flat_map(|head| {
            let block = &self.blocks[head.block as usize];
            block.positions[..block.len as usize].iter().copied()
        })
    }

    /// Earlier positions that share the longest suffixes with the end of the text, longest first.
    pub fn matches_of_end(&self, limits: Limits, out: &mut Vec<Match>) {
        let Some((block, index)) = self.last_place() else { return };
        let left = self.step_back(block, index);
        let right = self.step_forward(block, index);
        let left = self.outwards(left, Self::step_back);
        let right = self.outwards(right, Self::step_forward);
        nearest(&self.text, &self.text, left, right, limits, out);
    }

    /// Positions that share the longest suffixes with `context`, a text of its own, longest first.
    pub fn matches_of(&self, context: &[u32], limits: Limits, out: &mut Vec<Match>) {
        if context.is_empty() || self.heads.is_empty() {
            return;
        }
        let below = |position: u32| context_below(&self.text, position, context, limits.max_length);
        let head = self.heads.partition_point(|head| below(self.blocks[head.block as usize].positions[0]));
        let (left, right) = if head == 0 {
            (None, Some((self.heads[0].block, 0)))
        } else {
            let block = self.heads[head - 1].block;
            let positions = self.positions_of(block);
            let index = positions.partition_point(|&position| below(position)) as u32;
            (Some((block, index - 1)), self.step_forward(block, index - 1))
        };
        let left = self.outwards(left, Self::step_back);
        let right = self.outwards(right, Self::step_forward);
        nearest(&self.text, context, left, right, limits, out);
    }

    /// How many positions have a context that ends with `pattern`.
    pub fn count(&self, pattern: &[u32]) -> usize {
        self.positions()
            .filter(|&p| common_suffix(&self.text[..=p as usize], pattern, pattern.len()) == pattern.len())
            .count()
    }

    /// Iterates outwards from a block's index, it included.
    fn outwards(
        &self,
        mut at: Option<(u32, u32)>,
        step: impl Fn(&Self, u32, u32) -> Option<(u32, u32)>,
    ) -> impl FnMut() -> Option<u32> {
        move || {
            let (block, index) = at?;
            at = step(self, block, index);
            Some(self.blocks[block as usize].positions[index as usize])
        }
    }

    fn positions_of(&self, block: u32) -> &[u32] {
        let block = &self.blocks[block as usize];
        &block.positions[..block.len as usize]
    }

    fn step_back(&self, block: u32, index: u32) -> Option<(u32, u32)> {
        if index > 0 {
            return Some((block, index - 1));
        }
        let previous = self.blocks[block as usize].previous;
        (previous != NONE).then(|| (previous, self.blocks[previous as usize].len - 1))
    }

    fn step_forward(&self, block: u32, index: u32) -> Option<(u32, u32)> {
        let here = &self.blocks[block as usize];
        if index + 1 < here.len {
            return Some((block, index + 1));
        }
        (here.next != NONE).then_some((here.next, 0))
    }

    fn index_in(&self, block: u32, position: u32) -> u32 {
        // All of the block is compared, without a branch: a few wide steps. Behind its length there is no position.
        let equal = self.blocks[block as usize].positions.iter().zip(0_u32..);
        let found: u32 = equal.map(|(&other, index)| if other == position { index } else { 0 }).sum();
        debug_assert_eq!(self.positions_of(block).get(found as usize), Some(&position));
        found
    }

    /// Whether `position` sorts before a new position whose token is equal and whose predecessor ranks `before`.
    fn predecessor_below(&self, position: u32, before: Option<Rank>) -> bool {
        let Some(previous) = position.checked_sub(1) else { return true };
        let block = self.block_of[previous as usize];
        if block == NONE {
            return true;
        }
        let Some(before) = before else { return false };
        let label = self.blocks[block as usize].label;
        if label != before.label {
            return label < before.label;
        }
        self.index_in(block, previous) < before.index
    }

    fn sorts_below(&self, position: u32, token: u32, before: Option<Rank>) -> bool {
        let own = self.text[position as usize];
        own < token || (own == token && self.predecessor_below(position, before))
    }

    fn insert(&mut self, position: u32, token: u32, before: Option<Rank>) {
        if self.heads.is_empty() {
            self.blocks.push(Block { positions: [NONE; BLOCK], len: 0, previous: NONE, next: NONE, label: LABEL_GAP });
            self.heads.push(Head { token, block: 0 });
        }
        let after = self.heads.partition_point(|head| {
            head.token < token
                || (head.token == token
                    && self.blocks[head.block as usize].len > 0
                    && self.predecessor_below(self.blocks[head.block as usize].positions[0], before))
        });
        let at = after.saturating_sub(1);
        let block = self.heads[at].block;
        let index = if after == 0 {
            0
        } else {
            self.positions_of(block).partition_point(|&other| self.sorts_below(other, token, before))
        };
        if index == 0 {
            self.heads[at].token = token;
        }
        self.place(position, block, index);
    }

    /// Puts a position at an index of a block.
    fn place(&mut self, position: u32, block: u32, index: usize) {
        let here = &mut self.blocks[block as usize];
        let len = here.len as usize;
        here.positions.copy_within(index..len, index + 1);
        here.positions[index] = position;
        here.len += 1;
        let label = here.label;
        self.block_of.push(block);
        self.tip = index as u32;
        if len + 1 == BLOCK {
            self.split(self.heads.partition_point(|head| self.blocks[head.block as usize].label < label));
            self.tip = self.index_in(self.block_of[position as usize], position);
        }
    }

    /// Where a new position belongs, if a neighbour of the position before it is followed by the same token.
    ///
    /// Two positions of equal tokens stand in the order of the positions before them. So if going outwards from the
    /// position before, the first neighbour that is followed by `token` is found, the new position stands right beside
    /// the one after that neighbour. Text that repeats goes this way and needs no search.
    fn beside_neighbour(&self, block: u32, index: u32, token: u32) -> Option<(u32, usize)> {
        let index = index as usize;
        let neighbours = self.positions_of(block);
        let followed = |&&other: &&u32| self.text[other as usize + 1] == token;
        let place = |other: u32| {
            let block = self.block_of[other as usize + 1];
            (block, self.index_in(block, other + 1) as usize)
        };
        if let Some(&left) = neighbours[..index].iter().rev().take(NEIGHBOURS).find(followed) {
            let (block, index) = place(left);
            return Some((block, index + 1));
        }
        neighbours[index + 1..].iter().take(NEIGHBOURS).find(followed).map(|&right| place(right))
    }

    /// Fills an empty text: a suffix array costs less than as many insertions.
    fn load(&mut self, tokens: &[u32]) -> Result<()> {
        let mut ended = Vec::with_capacity(tokens.len() + 1);
        ended.extend_from_slice(tokens);
        ended.push(SEPARATOR);
        let segment = Segment::build(ended)?;
        // Room for what is written next, so that the first step does not move everything.
        let room = tokens.len() + ROOM;
        self.text.reserve_exact(room);
        self.text.extend_from_slice(tokens);
        self.block_of.reserve_exact(room);
        self.block_of.resize(tokens.len(), NONE);
        let chunks = segment.order().chunks(LOADED);
        let blocks = chunks.len() as u32;
        self.blocks = Vec::with_capacity(blocks as usize + ROOM / 32);
        self.heads = Vec::with_capacity(blocks as usize + ROOM / 32);
        for (number, chunk) in (0..).zip(chunks) {
            let mut block = Block {
                positions: [NONE; BLOCK],
                len: chunk.len() as u32,
                previous: if number == 0 { NONE } else { number - 1 },
                next: if number + 1 == blocks { NONE } else { number + 1 },
                label: (u64::from(number) + 1) * LABEL_GAP,
            };
            block.positions[..chunk.len()].copy_from_slice(chunk);
            self.heads.push(Head { token: tokens[chunk[0] as usize], block: number });
            self.blocks.push(block);
            for &position in chunk {
                self.block_of[position as usize] = number;
            }
        }
        let last = tokens.len() - 1;
        self.tip = self.index_in(self.block_of[last], last as u32);
        Ok(())
    }

    fn split(&mut self, at: usize) {
        let block = self.heads[at].block as usize;
        let new = self.blocks.len() as u32;
        let next = self.blocks[block].next;
        let mut label = self.label_after(block, next);
        if label.is_none() {
            for (rank, head) in self.heads.iter().enumerate() {
                self.blocks[head.block as usize].label = (rank as u64 + 1) * LABEL_GAP;
            }
            label = self.label_after(block, next);
        }
        let here = &mut self.blocks[block];
        let keep = if next == NONE { BLOCK - 8 } else { BLOCK / 2 };
        let mut right = Block {
            positions: [NONE; BLOCK],
            len: (BLOCK - keep) as u32,
            previous: block as u32,
            next,
            label: label.expect("labels were spread just now"),
        };
        right.positions[..BLOCK - keep].copy_from_slice(&here.positions[keep..]);
        here.positions[keep..].fill(NONE);
        here.len = keep as u32;
        here.next = new;
        if next != NONE {
            self.blocks[next as usize].previous = new;
        }
        for &moved in &right.positions[..BLOCK - keep] {
            self.block_of[moved as usize] = new;
        }
        self.heads.insert(at + 1, Head { token: self.text[right.positions[0] as usize], block: new });
        self.blocks.push(right);
    }

    /// A label between `block` and `next`, if there is one left.
    fn label_after(&self, block: usize, next: u32) -> Option<u64> {
        let low = self.blocks[block].label;
        if next == NONE {
            return low.checked_add(LABEL_GAP);
        }
        let high = self.blocks[next as usize].label;
        (high - low > 1).then(|| low + (high - low) / 2)
    }
}
