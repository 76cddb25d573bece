//! Weighing the arms: what each would cost and bring, and where a cache draft is cut.

use super::calibration::Calibration;
use super::request::Offer;
use super::round::{Choice, Round, Rule};
use super::router::PayoffRouter;

/// Tokens that a text is expected to go on for at least.
const SHORT: usize = 64;
/// Share of reading what the cache wrote that the model drafter's next round has to pay for.
const NEXT_FEW: f64 = 0.5;
/// The model drafter's estimate has to beat plain decoding by this factor: a gain within the estimate's error is none.
const CLEARLY: f64 = 1.05;
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

/// What the request and those before it have shown.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Probability that a token of the model drafter is accepted given that its parent is.
    pub(super) acceptance: f64,
    /// Tokens written so far.
    pub(super) written: usize,
    /// Share of the text's tokens that the cache leaves to others.
    pub(super) left: f64,
    /// Accepted length of the chain that a predictor expects.
    pub(super) predicted: Option<f32>,
}

impl PayoffRouter {
    pub(super) fn choose(&self, round: &Round<'_>, known: Known) -> Choice {
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
        let chain = self.best_cut(round, &round.chain, &self.chain, trust, &other);
        let tree = self.best_cut(round, &round.tree, &self.tree, trust, &other);
        match (chain, tree) {
            (None, None) => other.choice,
            (Some((_, nodes)), None) => Choice::Chain { nodes },
            // Of equal gains the chain: it has no more nodes.
            (Some((gain, nodes)), Some((more, _))) if gain >= more => Choice::Chain { nodes },
            (_, Some((_, nodes))) => Choice::Tree { nodes },
        }
    }

    /// The request's share of a forward in which every request has `nodes` nodes.
    fn cost(&self, round: &Round<'_>, nodes: usize) -> f64 {
        let batch = round.batch.max(1);
        self.forward.seconds(batch * (1 + nodes)) / batch as f64
    }

    /// The model drafter's best length, and the seconds of that round without what is an investment.
    fn model_arm(&self, round: &Round<'_>, known: Known) -> Option<(Arm, f64)> {
        let Known { acceptance, written, left, .. } = known;
        let backlog = round.backlog?.max(1);
        let batch = round.batch.max(1) as f64;
        let token = self.model_forward.seconds(round.batch.max(1)) / batch;
        let read = self.model_forward.seconds(backlog) - self.model_forward.seconds(1);
        // A text goes on for about as long as it has gone on already; what the cache writes of it is not the model's gain.
        let ahead = (round.remaining.min(written.max(SHORT)) as f64 * left).max(1.0);
        let mut best: Option<(Arm, f64)> = None;
        let (mut survival, mut tokens) = (1.0, 1.0);
        for nodes in 1..=round.budget.min(self.options.longest_model) {
            survival *= acceptance.min(0.995);
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

    /// The part of a cache draft that gains most over the other arm: seconds gained, and nodes. None if nothing does.
    ///
    /// A token that the other arm would write is worth the time this takes. What lies beyond is not lost by the other
    /// arm, since the place to copy from is still there after its round: together it is worth one more round of copying,
    /// and each further token what it costs to copy. `trust` scales the calibrated rates to what a predictor says.
    fn best_cut(
        &self,
        round: &Round<'_>,
        offer: &Offer<'_>,
        calibration: &Calibration,
        trust: f32,
        other: &Arm,
    ) -> Option<(f64, usize)> {
        let offered = offer.path_probs.len().min(round.budget);
        let whole = self.cost(round, offered);
        let copying = (1.0 + offered as f64) / whole;
        let reach = other.tokens + other.rate * whole;
        let worth = |token: f64| {
            let within = (reach - token).clamp(0.0, 1.0);
            within / other.rate + (1.0 - within) / copying.max(other.rate)
        };
        let nodes = offered.min(MOST_NODES);
        let rates: Vec<f64> = offer.path_probs[..nodes]
            .iter()
            .map(|&path_prob| f64::from((calibration.rate(path_prob) * trust).min(1.0)))
            .collect();
        let mut best: Option<(f64, usize)> = None;
        let mut value = worth(0.0);
        let mut depths = [0_u32; MOST_NODES];
        for node in 0..self.fastest_cut(round, &rates) {
            let parent = offer.parents[node];
            depths[node] = if parent < 0 { 1 } else { depths[parent as usize] + 1 };
            value += rates[node] * worth(f64::from(depths[node]));
            let gain = value - self.cost(round, node + 1);
            if gain > best.map_or(0.0, |(most, _)| most) {
                best = Some((gain, node + 1));
            }
        }
        best
    }

    /// How many of a draft's first nodes bring most tokens per second. More of them are never worth it: what a longer
    /// draft would copy, the next round copies at this rate.
    fn fastest_cut(&self, round: &Round<'_>, rates: &[f64]) -> usize {
        let (mut tokens, mut fastest, mut nodes) = (1.0, 0.0, 0);
        for (node, rate) in rates.iter().enumerate() {
            tokens += rate;
            let rate = tokens / self.cost(round, node + 1);
            // Within rounding, the longer of two equal ones.
            if rate >= fastest {
                (fastest, nodes) = (rate, node + 1);
            }
        }
        nodes
    }
}
