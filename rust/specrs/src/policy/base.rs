//! What a length policy is: when it is asked, what it is told, and what it may look at.

use super::calibration::Mode;

/// What a policy looks at before it decides that a token is verified.
///
/// Where the drafter *draws* its tokens, whether `x_j` is verified may depend on the tokens before it, on the laws that
/// they and `x_j` itself are drawn from, and on nothing else: not on `x_j`, nor on anything computed from it. A policy
/// that looks further biases the output. Tokens that are *chosen* (argmax, cache) allow every sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// Past rounds alone.
    PastRounds,
    /// The tokens drafted so far: each is verified, and they decide whether one more is drafted.
    DraftedTokens,
    /// Besides, the law that a token is drawn from: its largest probability or its entropy, not the token.
    OwnLaw,
    /// The whole finished draft. Biased where tokens are drawn.
    WholeDraft,
}

impl Sight {
    /// Whether the output keeps the target's law when the draft's tokens are drawn.
    pub fn safe_when_drawn(self) -> bool {
        self < Self::WholeDraft
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PastRounds => "past rounds",
            Self::DraftedTokens => "drafted tokens",
            Self::OwnLaw => "own law",
            Self::WholeDraft => "whole draft",
        }
    }
}

/// The requests of a round.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// Shape (B,).
    pub ids: &'a [u64],
    /// Shape (B,): what kind of round it is for each request.
    pub modes: &'a [Mode],
    /// Shape (B,): whether the request's drafts are drawn from a law.
    pub drawn: &'a [bool],
    /// Committed tokens of the longest text.
    pub context: usize,
}

impl Round<'_> {
    /// Number of requests, B.
    pub fn batch(&self) -> usize {
        self.ids.len()
    }
}

/// A draft for a batch of requests: N nodes, parents first.
#[derive(Clone, Copy, Debug)]
pub struct DraftFacts<'a> {
    /// Shape (N,): index of the parent within the same request, −1 below the anchor.
    pub parents: &'a [i32],
    /// Shape (N,), empty where the drafter states none.
    pub confidence: &'a [f32],
    /// Shape (B + 1,).
    pub node_ptr: &'a [usize],
    /// Whether the confidence of a node depends on its own token, and not on the law it is drawn from alone.
    pub sees_token: bool,
}

impl DraftFacts<'_> {
    /// Nodes of request `b`.
    pub fn nodes(&self, b: usize) -> std::ops::Range<usize> {
        self.node_ptr[b]..self.node_ptr[b + 1]
    }

    /// Whether request `b`'s nodes are a path without branches.
    pub fn is_chain(&self, b: usize) -> bool {
        self.parents[self.nodes(b)].iter().enumerate().all(|(node, &parent)| parent == node as i32 - 1)
    }
}

/// One request's chain after its last drafted token, while the drafter writes token by token.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Which request of the round.
    pub request: usize,
    /// Tokens drafted, the last one included.
    pub length: usize,
    /// Largest probability of the law that the last token was drawn from, at temperature 1.
    pub confidence: f32,
    /// Entropy of that law in nats, at temperature 1.
    pub entropy: f32,
    /// Probability of the drafted token in it.
    pub token_prob: f32,
    /// A trained head's estimate that the token is accepted; NaN without a head.
    pub head: f32,
}

/// A finished round.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// What was scored.
    pub draft: DraftFacts<'a>,
    /// Shape (N,): whether a node was kept.
    pub accepted: &'a [bool],
    /// Tokens that the drafter wrote one after the other, before anything was cut.
    pub steps: usize,
    /// Seconds of drafting, of the target's forward, and of everything else.
    pub draft_seconds: f64,
    /// Seconds of the target's forward.
    pub score_seconds: f64,
    /// Seconds of trimming, verifying and committing.
    pub other_seconds: f64,
}

impl Outcome<'_> {
    /// Number of accepted nodes of request `b`.
    pub fn accepted_of(&self, b: usize) -> usize {
        self.accepted[self.draft.nodes(b)].iter().filter(|&&kept| kept).count()
    }

    /// Calls `each(request, node, depth)` for the nodes that a verdict was passed on: those below an accepted path.
    pub fn judged(&self, mut each: impl FnMut(usize, usize, usize)) {
        for b in 0..self.draft.node_ptr.len() - 1 {
            let nodes = self.draft.nodes(b);
            let first = nodes.start;
            for node in nodes {
                let parent = self.draft.parents[node];
                if parent < 0 {
                    each(b, node, 1);
                } else if self.accepted[first + parent as usize] {
                    // Accepted nodes are one path, so a node's depth is one more than those up to its parent.
                    let above = self.accepted[first..=first + parent as usize].iter().filter(|&&kept| kept).count();
                    each(b, node, above + 1);
                }
            }
        }
    }
}

/// Decides how much to draft and how much of the draft to score.
///
/// The engine calls, each round: [`budgets`](Self::budgets); while a token-by-token drafter writes,
/// [`more`](Self::more) after each token; [`trim`](Self::trim) on the finished draft; and after the verdict
/// [`observe`](Self::observe).
pub trait LengthPolicy: Send + std::fmt::Debug {
    /// The furthest that it looks, for requests whose drafts are drawn.
    fn sight(&self) -> Sight;

    /// Writes the nodes to ask for into `out`, shape (B,), at most `limits[b]` each.
    fn budgets(&mut self, round: &Round<'_>, limits: &[usize], out: &mut [usize]);

    /// Whether each of the chains should get one more token; `wanted` is true throughout at the call.
    fn more(&mut self, round: &Round<'_>, steps: &[Step], wanted: &mut [bool]) {
        let _ = (round, steps, wanted);
    }

    /// Whether it decides in [`more`](Self::more), so that a drafter has to ask.
    fn decides_stepwise(&self) -> bool {
        false
    }

    /// Unsets in `kept`, shape (N,) and true throughout at the call, what is not worth scoring. What stays is closed
    /// under parents.
    fn trim(&mut self, round: &Round<'_>, draft: &DraftFacts<'_>, kept: &mut [bool]) {
        let _ = (round, draft, kept);
    }

    /// Learns from a finished round.
    fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        let _ = (round, outcome);
    }

    /// Lets go of a request.
    fn forget(&mut self, id: u64) {
        let _ = id;
    }
}
