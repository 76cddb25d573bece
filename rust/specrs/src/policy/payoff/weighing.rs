//! Weighing the arms: what each would cost and bring, and where a cache draft is cut.

use super::request::{Offer, Shape};
use super::round::{Choice, Round, Rule};
use super::router::PayoffRouter;

/// Share of reading what the cache wrote that the model drafter's next round has to pay for.
const NEXT_FEW: f64 = 0.5;
/// The model drafter's estimate has to beat plain decoding by this factor: a gain within the estimate's error is none.
const CLEARLY: f64 = 1.05;
/// No drafter is right for ever.
const MOST_ACCEPTANCE: f64 = 0.995;
/// An exploring round costs at most this many plain ones.
const DEAREST_TRY: f64 = 4.0;
/// Nodes of a cache draft that are looked at; more are never worth a forward.
const MOST_NODES: usize = 256;

/// An arm that needs no cache: its choice, expected tokens, and tokens per second.
#[derive(Clone, Copy)]
struct Arm {
    choice: Choice,
    tokens: f64,
    rate: f64,
}

/// What a cache draft is verified beside.
struct Ground {
    /// Tokens that this brings by itself.
    tokens: f64,
    /// Seconds that this takes besides the forward.
    seconds: f64,
    /// Its own nodes, a chain.
    nodes: usize,
    /// Acceptance of each of these given its parent's.
    acceptance: f64,
    /// How much of the cache's acceptance holds where these are refused.
    new: f64,
}

impl Ground {
    const ANCHOR: Self = Self { tokens: 1.0, seconds: 0.0, nodes: 0, acceptance: 0.0, new: 1.0 };

    /// Probability that its own chain is accepted down to `depth`.
    fn reaches(&self, depth: usize) -> f64 {
        self.acceptance.powi(depth as i32)
    }

    /// Share of a cache node's acceptance at `depth` that is not its own chain's already.
    fn leaves(&self, depth: usize) -> f64 {
        if depth > self.nodes { 1.0 } else { (1.0 - self.reaches(depth)) * self.new }
    }
}

/// What the request and those before it have shown.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Probability that a token of the model drafter is accepted given that its parent is.
    pub(super) acceptance: f64,
    /// Tokens written so far.
    pub(super) written: usize,
    /// Share of the text's tokens that the cache leaves to others.
    pub(super) left: f64,
    /// Tokens that earlier requests were given.
    pub(super) length: f64,
    /// How much of the cache's acceptance holds where the model drafter is wrong.
    pub(super) new: f64,
    /// Accepted length of the chain that a predictor expects.
    pub(super) predicted: Option<f32>,
}

impl PayoffRouter {
    pub(super) fn choose(&self, round: &Round<'_>, known: Known) -> Choice {
        let known = Known { acceptance: known.acceptance.min(MOST_ACCEPTANCE), ..known };
        let plain_seconds = self.cost(round, 0);
        let plain = Arm { choice: Choice::Plain, tokens: 1.0, rate: 1.0 / plain_seconds };
        let model = self.model_arm(round, known);
        if let Some((arm, seconds)) = model
            && round.uniform < self.options.explore
            && seconds <= DEAREST_TRY * plain_seconds
        {
            return arm.choice;
        }
        let other = model.map(|(arm, _)| arm).filter(|arm| arm.rate > CLEARLY * plain.rate).unwrap_or(plain);
        let stated = self.expected(round.chain.path_probs);
        let expected = known.predicted.unwrap_or(stated);
        let offered = round.chain.tokens.len().min(round.budget);
        let whole = match self.rule {
            Rule::Rate => None,
            Rule::Expected(least) => Some(expected > least),
            Rule::Match(least) => Some(round.chain.match_length >= least),
        };
        if let Some(whole) = whole {
            // These rules know two arms: without a model drafter the cache's draft is all there is.
            let taken = offered > 0 && (whole || model.is_none());
            return if taken {
                Choice::Chain { nodes: offered }
            } else {
                model.map_or(Choice::Plain, |(arm, _)| arm.choice)
            };
        }
        let trust = if stated > 0.0 { expected / stated } else { 1.0 };
        let mut best = (0.0, other.choice);
        let mut consider = |(gain, choice): (f64, Choice)| {
            if gain > best.0 {
                best = (gain, choice);
            }
        };
        // Of equal gains the first: a chain has no more nodes than a tree, and either spares the model's tokens.
        for (shape, offer) in [(Shape::Chain, &round.chain), (Shape::Tree, &round.tree)] {
            let rates = self.rates(round, shape, offer, trust);
            if let Some((gain, nodes)) = self.best_cut(round, offer, &rates, &other, &Ground::ANCHOR) {
                let choice = match shape {
                    Shape::Chain => Choice::Chain { nodes },
                    Shape::Tree => Choice::Tree { nodes },
                };
                consider((gain, choice));
            }
            if let (true, Choice::Model { nodes: model }) = (round.beside, other.choice) {
                let ground = Ground {
                    tokens: other.tokens,
                    seconds: other.tokens / other.rate - self.cost(round, model),
                    nodes: model,
                    acceptance: known.acceptance,
                    new: known.new,
                };
                if let Some((gain, nodes)) = self.best_cut(round, offer, &rates, &other, &ground) {
                    consider((gain, Choice::Both { shape, nodes, model }));
                }
            }
        }
        best.1
    }

    /// Acceptance rates of the nodes that are looked at. `trust` scales the calibrated ones to what a predictor says.
    fn rates(&self, round: &Round<'_>, shape: Shape, offer: &Offer<'_>, trust: f32) -> Vec<f64> {
        let calibration = match shape {
            Shape::Chain => &self.chain,
            Shape::Tree => &self.tree,
        };
        let nodes = offer.path_probs.len().min(round.budget).min(MOST_NODES);
        let rate = |&path_prob: &f32| f64::from((calibration.rate(path_prob) * trust).min(1.0));
        offer.path_probs[..nodes].iter().map(rate).collect()
    }

    /// The request's share of a forward in which every request has `nodes` nodes.
    fn cost(&self, round: &Round<'_>, nodes: usize) -> f64 {
        let batch = round.batch.max(1);
        self.forward.seconds(batch * (1 + nodes)) / batch as f64
    }

    /// The model drafter's best length, and the seconds of that round without what is an investment.
    fn model_arm(&self, round: &Round<'_>, known: Known) -> Option<(Arm, f64)> {
        let Known { acceptance, written, left, length, .. } = known;
        let backlog = round.backlog?.max(1);
        let batch = round.batch.max(1) as f64;
        let token = self.model_forward.seconds(round.batch.max(1)) / batch;
        let read = self.model_forward.seconds(backlog) - self.model_forward.seconds(1);
        // A text becomes as long as others were, and goes on for about as long as it has gone on already; what the cache
        // writes of it is not the model's gain.
        let onward = (length - written as f64).max(written as f64);
        let ahead = ((round.remaining as f64).min(onward) * left).max(1.0);
        let mut best: Option<(Arm, f64)> = None;
        let (mut survival, mut tokens) = (1.0, 1.0);
        for nodes in 1..=round.budget.min(self.options.longest_model) {
            survival *= acceptance;
            tokens += survival;
            let seconds = nodes as f64 * token + self.cost(round, nodes);
            // The prompt is read for all rounds to come, a stretch that the cache wrote for the next few.
            let share = if backlog > written { (tokens / ahead).min(1.0) } else { NEXT_FEW };
            let rate = tokens / (seconds + read * share);
            if best.is_none_or(|(arm, _)| rate > arm.rate) {
                best = Some((Arm { choice: Choice::Model { nodes }, tokens, rate }, seconds + read));
            }
        }
        best
    }

    /// The part of a cache draft to verify: seconds gained over the other arm, and nodes. None if nothing is gained.
    ///
    /// Alone it is cut where it brings most tokens per second, beside the model's draft where it gains most.
    ///
    /// A token that the other arm would write is worth the time this takes. What lies beyond is not lost by the other
    /// arm, since the place to copy from is still there after its round: together it is worth one more round of copying,
    /// and each further token what it costs to copy. `rates` are those of the nodes that are looked at.
    fn best_cut(
        &self,
        round: &Round<'_>,
        offer: &Offer<'_>,
        rates: &[f64],
        other: &Arm,
        ground: &Ground,
    ) -> Option<(f64, usize)> {
        let offered = offer.path_probs.len().min(round.budget);
        let whole = self.cost(round, offered);
        let copying = (1.0 + offered as f64) / whole;
        let reach = other.tokens + other.rate * whole;
        let worth = |token: f64| {
            let within = (reach - token).clamp(0.0, 1.0);
            within / other.rate + (1.0 - within) / copying.max(other.rate)
        };
        let room = round.budget.saturating_sub(ground.nodes).min(rates.len());
        let mut depths = [0_usize; MOST_NODES];
        let mut brought = [0.0; MOST_NODES];
        for (node, rate) in rates[..room].iter().enumerate() {
            let parent = offer.parents[node];
            depths[node] = if parent < 0 { 1 } else { depths[parent as usize] + 1 };
            brought[node] = rate * ground.leaves(depths[node]);
        }
        let mut value: f64 = (0..=ground.nodes).map(|depth| ground.reaches(depth) * worth(depth as f64)).sum();
        let gains: Vec<f64> = (0..self.fastest_cut(round, &brought[..room], ground))
            .map(|node| {
                value += brought[node] * worth(depths[node] as f64);
                value - ground.seconds - self.cost(round, ground.nodes + node + 1)
            })
            .collect();
        let last = if ground.nodes == 0 {
            gains.len().checked_sub(1)
        } else {
            (0..gains.len()).max_by(|&a, &b| gains[a].total_cmp(&gains[b]).then(b.cmp(&a)))
        };
        last.map(|node| (gains[node], node + 1)).filter(|&(gain, _)| gain > 0.0)
    }

    /// How many of a draft's first nodes bring most tokens per second. More of them are never worth it: what a longer
    /// draft would copy, the next round copies at this rate.
    fn fastest_cut(&self, round: &Round<'_>, brought: &[f64], ground: &Ground) -> usize {
        let (mut tokens, mut fastest, mut nodes) = (ground.tokens, 0.0, 0);
        for (node, brings) in brought.iter().enumerate() {
            tokens += brings;
            let rate = tokens / (ground.seconds + self.cost(round, ground.nodes + node + 1));
            // Within rounding, the longer of two equal ones.
            if rate >= fastest {
                (fastest, nodes) = (rate, node + 1);
            }
        }
        nodes
    }
}
