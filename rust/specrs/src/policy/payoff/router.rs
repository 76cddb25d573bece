//! The choice itself, and what it learns from.

use super::calibration::Calibration;
use super::cost::Cost;
use crate::error::{Error, ErrorKind, Result};

const TITLE: &str = "specrs payoff 1";

/// What to verify in the next round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The first nodes of the cache's draft.
    Cache {
        /// How many nodes are worth verifying.
        nodes: usize,
    },
    /// The model drafter's draft.
    Model,
    /// No draft: one plain step.
    Plain,
}

/// Where a router starts from; everything but `explore` is learned on.
#[derive(Clone, Copy, Debug)]
pub struct PayoffOptions {
    /// Cost of one more token in a forward, as a share of a forward over one token.
    pub token_cost: f64,
    /// Cost of a model draft, as a share of a forward over one token; infinite without a model drafter.
    pub model_cost: f64,
    /// Tokens that a model draft verifies beside the anchor.
    pub model_nodes: usize,
    /// Accepted tokens expected of a model draft.
    pub model_accepted: f64,
    /// Share of rounds that try the model drafter against the estimate, since its labels come from its rounds alone.
    pub explore: f64,
}

impl Default for PayoffOptions {
    fn default() -> Self {
        Self { token_cost: 0.02, model_cost: f64::INFINITY, model_nodes: 4, model_accepted: 1.5, explore: 0.01 }
    }
}

/// Compares drafts by the time that their expected tokens save.
#[derive(Clone, Debug, PartialEq)]
pub struct PayoffRouter {
    calibration: Calibration,
    forward: Cost,
    /// Seconds of a model draft.
    model: f64,
    model_known: bool,
    model_nodes: usize,
    model_accepted: f64,
    explore: f64,
}

impl PayoffRouter {
    /// A router that has learned nothing yet.
    ///
    /// # Errors
    /// If an option is negative or not a number.
    pub fn new(options: PayoffOptions) -> Result<Self> {
        let PayoffOptions { token_cost, model_cost, model_nodes, model_accepted, explore } = options;
        let wrong = token_cost.is_nan() || token_cost < 0.0 || model_cost.is_nan() || model_cost < 0.0;
        if wrong || !(model_accepted.is_finite() && model_accepted >= 0.0) || !(0.0..=1.0).contains(&explore) {
            return Err(Error::invalid(format!(
                "costs and accepted tokens must not be negative and explore must be between 0 and 1, got {options:?}"
            )));
        }
        Ok(Self {
            calibration: Calibration::default(),
            forward: Cost::new(1.0 - token_cost.min(0.5), token_cost),
            model: model_cost,
            model_known: false,
            model_nodes,
            model_accepted,
            explore,
        })
    }

    /// Chooses for one request. `path_probs` are those of the cache's draft in the order of its nodes, which is best
    /// first; `uniform` in [0, 1) decides on exploration.
    pub fn choose(&self, path_probs: &[f32], uniform: f64) -> Choice {
        let plain = 1.0 / self.forward.seconds(1);
        let model = (1.0 + self.model_accepted) / (self.model + self.forward.seconds(1 + self.model_nodes));
        if self.model.is_finite() && uniform < self.explore {
            return Choice::Model;
        }
        // The round that is the alternative, by its tokens and their rate.
        let (other, reach, rate) = if self.model.is_finite() && model > plain {
            (Choice::Model, 1.0 + self.model_accepted, model)
        } else {
            (Choice::Plain, 1.0, plain)
        };
        // A token that the alternative would write is worth the time this takes. What lies beyond is not lost by the
        // alternative, since the place to copy from is still there after its round: together it is worth one more round
        // of copying, and each further token what it costs to copy.
        let round = self.forward.seconds(1 + path_probs.len());
        let copying = (1.0 + path_probs.len() as f64) / round;
        let reach = reach + rate * round;
        let worth = |token: f64| {
            let within = (reach - token).clamp(0.0, 1.0);
            within / rate + (1.0 - within) / copying.max(rate)
        };
        let mut best = (0.0, other);
        let mut value = worth(0.0);
        for (node, &path_prob) in path_probs.iter().enumerate() {
            value += f64::from(self.calibration.rate(path_prob)) * worth((node + 1) as f64);
            let gain = value - self.forward.seconds(node + 2);
            if gain > best.0 {
                best = (gain, Choice::Cache { nodes: node + 1 });
            }
        }
        best.1
    }

    /// Accepted tokens expected of the first `nodes` of a cache draft.
    pub fn expected(&self, path_probs: &[f32]) -> f32 {
        path_probs.iter().map(|&path_prob| self.calibration.rate(path_prob)).sum()
    }

    /// Learns the time of a target forward over `tokens` tokens.
    pub fn note_time(&mut self, tokens: usize, seconds: f64) {
        self.forward.note(tokens, seconds);
    }

    /// Learns from a model draft: nodes verified, tokens accepted, seconds spent drafting.
    pub fn note_model(&mut self, nodes: usize, accepted: usize, seconds: f64) {
        const STEP: f64 = 0.05;
        self.model_accepted += STEP * (accepted as f64 - self.model_accepted);
        self.model_nodes = nodes;
        if seconds.is_finite() && seconds >= 0.0 {
            self.model = if self.model_known { self.model + STEP * (seconds - self.model) } else { seconds };
            self.model_known = true;
        }
    }

    /// Learns from a cache draft: each node's path probability and whether it was accepted, or would have been.
    pub fn note_cache(&mut self, nodes: impl Iterator<Item = (f32, bool)>) {
        self.calibration.observe(nodes);
    }

    /// What was learned about the cache, the forward and the model drafter, as text with its version.
    pub fn save(&self) -> String {
        let (base, slope) = self.forward.line();
        let mut text = format!(
            "{TITLE}\nforward {base} {slope}\nmodel {} {} {} {}\nexplore {}\n",
            self.model, self.model_known, self.model_nodes, self.model_accepted, self.explore
        );
        for (accepted, seen) in self.calibration.counts() {
            let line = format!("bin {accepted} {seen}\n");
            text.push_str(&line);
        }
        text
    }

    /// A router from what [`Self::save`] gave.
    ///
    /// # Errors
    /// If the text is of another version or damaged.
    pub fn load(text: &str) -> Result<Self> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("saved payoff router: {what}"));
        let mut lines = text.lines();
        let title = lines.next().unwrap_or_default();
        if title != TITLE {
            return Err(corrupt(&format!("first line is {title:?}, expected {TITLE:?}")));
        }
        let mut router = Self::new(PayoffOptions::default())?;
        let mut bins = Vec::new();
        for line in lines {
            let wrong = || corrupt(&format!("line {line:?} is not understood"));
            let number = |field: &str| field.parse::<f64>().ok().filter(|n| *n >= 0.0).ok_or_else(wrong);
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["forward", base, slope] => router.forward = Cost::new(number(base)?, number(slope)?),
                ["model", seconds, known, nodes, accepted] => {
                    router.model = number(seconds)?;
                    router.model_known = known.parse().map_err(|_| wrong())?;
                    router.model_nodes = nodes.parse().map_err(|_| wrong())?;
                    router.model_accepted = number(accepted)?;
                }
                ["explore", share] => router.explore = number(share)?,
                ["bin", accepted, seen] => bins.push((number(accepted)?, number(seen)?)),
                _ => return Err(wrong()),
            }
        }
        router.calibration =
            Calibration::from_counts(&bins).ok_or_else(|| corrupt(&format!("{} bins do not fit", bins.len())))?;
        Ok(router)
    }
}

/// Which nodes of a draft the following text would have accepted, and whether that is known yet.
///
/// A node is `Some(true)` if its path equals the text, `Some(false)` if it does not, and `None` if it lies deeper than the
/// text that follows. A failure above such a node would tell its fate too, but to count deep nodes only when they fail
/// would make them look worse than they are.
pub fn replayed(tokens: &[u32], parents: &[i32], following: &[u32]) -> Vec<Option<bool>> {
    let mut fate: Vec<(Option<bool>, usize)> = Vec::with_capacity(tokens.len());
    for (&token, &parent) in tokens.iter().zip(parents) {
        let (above, depth) = if parent < 0 { (Some(true), 0) } else { fate[parent as usize] };
        let own = match above {
            _ if depth >= following.len() => None,
            Some(true) => Some(following[depth] == token),
            other => other,
        };
        fate.push((own, depth + 1));
    }
    fate.into_iter().map(|(own, _)| own).collect()
}
