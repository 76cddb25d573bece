//! From matches to a draft: every match votes for the text that follows it, and the draft is the tree of the most
//! probable continuations.
//!
//! A vote weighs what a match of its length is worth as evidence (odds that its continuation is the one to come), and
//! grows along the path, since each accepted token lengthens the match. The probability of a child given its parent is
//! the child's weight over all weight at the parent plus one, so that a lone weak match stays a weak draft and agreement
//! makes a strong one. The vote is over tokens, not over places: the same continuation in two tiers counts once, with
//! the weight of both.

use std::collections::BinaryHeap;

use super::context::SEPARATOR;
use super::evidence::{Evidence, Odds};

/// Shape of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One path.
    Chain,
    /// Best-first tree.
    Tree,
}

/// What a draft may be.
#[derive(Clone, Copy, Debug)]
pub struct DraftOptions<'a> {
    /// Most nodes.
    pub budget: usize,
    /// Chain or tree.
    pub shape: Shape,
    /// Least probability of the path to a node, for the node to be drafted.
    pub min_prob: f32,
    /// Tokens that end a draft (they are drafted themselves).
    pub eos: &'a [u32],
    /// Ids at or above it are never drafted.
    pub vocab_size: u32,
}

/// One piece of evidence: a place in a text, and what it is worth.
#[derive(Clone, Copy, Debug)]
pub struct Vote<'a> {
    /// The text that follows the match; it may run into the next document, which a separator marks.
    pub continuation: &'a [u32],
    /// Shared tokens before it.
    pub length: u32,
    /// What kind of evidence it is.
    pub kind: Evidence,
    /// What the text weighs for its age; 1 is all.
    pub scale: f32,
}

/// A draft: nodes in topological order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// Token of each node.
    pub tokens: Vec<u32>,
    /// Index of the parent, −1 for children of the anchor.
    pub parents: Vec<i32>,
    /// Distance from the anchor, from 1.
    pub depths: Vec<i32>,
    /// Estimated probability that the node is accepted given that its parent is.
    pub confidence: Vec<f32>,
    /// Longest match behind the draft, in tokens.
    pub match_length: u32,
    /// Sum of path probabilities: the expected number of accepted tokens.
    pub expected_accepted: f32,
}

impl Draft {
    /// Empties the draft and keeps its storage.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.depths.clear();
        self.confidence.clear();
        self.match_length = 0;
        self.expected_accepted = 0.0;
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn push(&mut self, token: u32, parent: i32, depth: i32, confidence: f32, path: f32) {
        self.tokens.push(token);
        self.parents.push(parent);
        self.depths.push(depth);
        self.confidence.push(confidence);
        self.expected_accepted += path;
    }
}

/// A candidate child: a token, its weight, and how many votes are for it.
#[derive(Clone, Copy)]
struct Child {
    token: u32,
    weight: f32,
    votes: usize,
}

/// A node that could be drafted next, ordered by path probability, then by age.
struct Open {
    path: f32,
    order: u32,
    confidence: f32,
    token: u32,
    parent: i32,
    depth: usize,
    /// Range in the pool of votes that pass through the parent.
    votes: (u32, u32),
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Open {}
impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Open {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.path.total_cmp(&other.path).then(other.order.cmp(&self.order))
    }
}

/// Storage that drafting reuses from call to call.
#[derive(Default)]
pub struct Workspace {
    children: Vec<Child>,
    alive: Vec<u32>,
    pool: Vec<u32>,
    open: BinaryHeap<Open>,
}

/// Adds up the votes for each next token at `depth`; returns all weight there, the prior's included.
#[inline]
fn count(
    votes: &[Vote<'_>],
    alive: &[u32],
    depth: usize,
    vocab_size: u32,
    odds: &Odds,
    children: &mut Vec<Child>,
) -> f32 {
    children.clear();
    let mut total = 1.0;
    for &index in alive {
        let vote = &votes[index as usize];
        let Some(&token) = vote.continuation.get(depth) else { continue };
        let weight = odds.of(vote.kind, vote.length as usize + depth) * vote.scale;
        total += weight;
        if token == SEPARATOR || token >= vocab_size {
            continue;
        }
        match children.iter_mut().find(|child| child.token == token) {
            Some(child) => {
                child.weight += weight;
                child.votes += 1;
            }
            None => children.push(Child { token, weight, votes: 1 }),
        }
    }
    total
}

/// Drafts from votes. Of equal weights the earlier vote wins: votes come longest match first and, within a length, most
/// recent first.
pub fn draft(votes: &[Vote<'_>], odds: &Odds, options: &DraftOptions<'_>, work: &mut Workspace, out: &mut Draft) {
    out.clear();
    out.match_length = votes.iter().map(|vote| vote.length).max().unwrap_or(0);
    match options.shape {
        Shape::Chain => chain(votes, odds, options, work, out),
        Shape::Tree => tree(votes, odds, options, work, out),
    }
}

fn chain(votes: &[Vote<'_>], odds: &Odds, options: &DraftOptions<'_>, work: &mut Workspace, out: &mut Draft) {
    let Workspace { children, alive, .. } = work;
    alive.clear();
    alive.extend(0..votes.len() as u32);
    let mut path = 1.0;
    for depth in 0..options.budget {
        let total = count(votes, alive, depth, options.vocab_size, odds, children);
        let mut best: Option<Child> = None;
        for &child in children.iter() {
            if best.is_none_or(|best| child.weight > best.weight) {
                best = Some(child);
            }
        }
        let Some(best) = best else { break };
        let confidence = best.weight / total;
        path *= confidence;
        if path < options.min_prob {
            break;
        }
        out.push(best.token, depth as i32 - 1, depth as i32 + 1, confidence, path);
        if options.eos.contains(&best.token) {
            break;
        }
        // Mostly all that is left agrees.
        if best.votes < alive.len() {
            alive.retain(|&index| votes[index as usize].continuation.get(depth) == Some(&best.token));
        }
    }
}

fn tree(votes: &[Vote<'_>], odds: &Odds, options: &DraftOptions<'_>, work: &mut Workspace, out: &mut Draft) {
    let Workspace { children, alive, pool, open } = work;
    pool.clear();
    open.clear();
    alive.clear();
    alive.extend(0..votes.len() as u32);
    let mut order = 0;
    let mut parent = (-1, 0, 1.0_f32); // node, depth of its children − 1, path probability
    loop {
        let (node, depth, path) = parent;
        let total = count(votes, alive, depth, options.vocab_size, odds, children);
        let start = pool.len() as u32;
        pool.extend_from_slice(alive);
        let range = (start, pool.len() as u32);
        for child in children.iter() {
            let confidence = child.weight / total;
            let path = path * confidence;
            if path >= options.min_prob {
                open.push(Open { path, order, confidence, token: child.token, parent: node, depth, votes: range });
                order += 1;
            }
        }
        let next = loop {
            if out.len() == options.budget {
                return;
            }
            let Some(best) = open.pop() else { return };
            let node = out.len() as i32;
            out.push(best.token, best.parent, best.depth as i32 + 1, best.confidence, best.path);
            if !options.eos.contains(&best.token) {
                break (best, node);
            }
        };
        let (best, node) = next;
        alive.clear();
        alive.extend(
            pool[best.votes.0 as usize..best.votes.1 as usize]
                .iter()
                .copied()
                .filter(|&index| votes[index as usize].continuation.get(best.depth) == Some(&best.token)),
        );
        parent = (node, best.depth + 1, best.path);
    }
}
