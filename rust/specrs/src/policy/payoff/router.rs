//! The choice itself, and what it learns from.

use std::collections::HashMap;
use std::sync::Arc;

use super::calibration::Calibration;
use super::cost::Cost;
use super::features::features_of;
use super::mlp::Mlp;
use super::request::{Example, Fate, Record, RequestState, Shape};
use super::round::{Choice, Round, Rule};
use super::weighing::Known;
use crate::error::{Error, ErrorKind, Result};

/// Weight of the newest text in what is expected of others.
const NEWEST_TEXT: f64 = 0.2;
/// By how much the model drafter's acceptance differs from text to text.
const DIFFER: f64 = 0.1;
/// Tokens of a text before any was seen.
const LENGTH: f64 = 128.0;
/// How much of the cache's acceptance holds where the model drafter is wrong, before it is known: what is easy for one is
/// often easy for both.
const NEW: f64 = 0.5;

/// Where a router starts from; everything but `explore` and `longest_model` is learned on.
#[derive(Clone, Copy, Debug)]
pub struct PayoffOptions {
    /// Cost of one more row in a forward, as a share of a forward over one row.
    pub token_cost: f64,
    /// Cost of one drafted token of the model drafter, as a share of a forward over one row.
    pub model_cost: f64,
    /// Probability that a token of the model drafter is accepted given that its parent is.
    pub model_acceptance: f64,
    /// Longest draft of the model drafter.
    pub longest_model: usize,
    /// Share of rounds that try the model drafter against the estimate, since its labels come from its rounds alone.
    pub explore: f64,
}

impl Default for PayoffOptions {
    fn default() -> Self {
        Self { token_cost: 0.02, model_cost: 0.25, model_acceptance: 0.7, longest_model: 8, explore: 0.01 }
    }
}

/// Compares drafts by the time that their expected tokens save.
#[derive(Clone, Debug)]
pub struct PayoffRouter {
    pub(super) chain: Calibration,
    pub(super) tree: Calibration,
    pub(super) forward: Cost,
    pub(super) model_forward: Cost,
    pub(super) model: Record,
    /// How often the cache was right where the model drafter was wrong, and how often it should have been were the two
    /// independent.
    pub(super) new: Record,
    /// Share of a text's tokens that the cache leaves to others, as the requests so far had it.
    pub(super) left: f64,
    /// Tokens written for a request, as the requests so far had it.
    pub(super) length: f64,
    pub(super) options: Knobs,
    pub(super) rule: Rule,
    predictor: Option<Arc<Mlp>>,
    /// Class bits of each token id, for the predictor's features; may be empty.
    classes: Arc<[u8]>,
    /// Examples that wait to be taken, if they are wanted.
    examples: Option<Vec<Example>>,
    requests: HashMap<u64, RequestState>,
}

/// What is not learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Knobs {
    pub(super) acceptance: f64,
    pub(super) longest_model: usize,
    pub(super) explore: f64,
}

impl PayoffRouter {
    /// A router that has learned nothing yet.
    ///
    /// # Errors
    /// If an option is negative or not a number, or a probability exceeds 1.
    pub fn new(options: PayoffOptions) -> Result<Self> {
        let PayoffOptions { token_cost, model_cost, model_acceptance, longest_model, explore } = options;
        let costs = [token_cost, model_cost].iter().all(|cost| cost.is_finite() && *cost >= 0.0);
        let shares = [model_acceptance, explore].iter().all(|share| (0.0..=1.0).contains(share));
        if !costs || !shares {
            return Err(Error::invalid(format!(
                "costs must not be negative and shares must be between 0 and 1, got {options:?}"
            )));
        }
        Ok(Self {
            chain: Calibration::default(),
            tree: Calibration::default(),
            forward: Cost::new(1.0 - token_cost.min(0.5), token_cost),
            model_forward: Cost::new(model_cost * 0.98, model_cost * 0.02),
            model: Record::default(),
            new: Record::default(),
            left: 0.5,
            length: LENGTH,
            options: Knobs { acceptance: model_acceptance, longest_model, explore },
            rule: Rule::Rate,
            predictor: None,
            classes: Arc::default(),
            examples: None,
            requests: HashMap::new(),
        })
    }

    /// Changes the rule of the choice.
    pub fn set_rule(&mut self, rule: Rule) {
        self.rule = rule;
    }

    /// Changes what predicts a chain's accepted length: a trained perceptron, or with none the calibrated probabilities.
    pub fn set_predictor(&mut self, predictor: Option<Arc<Mlp>>) {
        self.predictor = predictor;
    }

    /// Tells the class bits of each token id, [`CLASSES`](super::CLASSES) of them, for the features.
    pub fn set_classes(&mut self, classes: Arc<[u8]>) {
        self.classes = classes;
    }

    /// Keeps an example of every chain whose label becomes known, until [`Self::take_examples`].
    pub fn keep_examples(&mut self) {
        self.examples.get_or_insert_default();
    }

    /// The examples kept so far, which are forgotten here.
    pub fn take_examples(&mut self) -> Vec<Example> {
        self.examples.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Replaces the guessed costs by measured ones: of the target's forward, and of the model drafter's.
    pub fn set_costs(&mut self, forward: Cost, model_forward: Option<Cost>) {
        self.model_forward.scale_guess(forward.seconds(1) / self.forward.seconds(1));
        self.forward = forward;
        if let Some(cost) = model_forward {
            self.model_forward = cost;
        }
    }

    /// What this router learned, without its requests.
    #[must_use]
    pub fn without_requests(&self) -> Self {
        Self { requests: HashMap::new(), ..self.clone() }
    }

    /// Meets a request with a prompt of that many tokens.
    ///
    /// # Errors
    /// If the id is active already.
    pub fn start(&mut self, id: u64, prompt: usize) -> Result<()> {
        if self.requests.contains_key(&id) {
            return Err(Error::new(ErrorKind::Request, format!("request {id} is routed already: finish it first")));
        }
        self.requests.insert(id, RequestState::new(prompt));
        Ok(())
    }

    /// Lets go of a request, learning what its text still tells. Unknown ids are ignored.
    pub fn finish(&mut self, id: u64, text: &[u32]) {
        if let Some(mut request) = self.requests.remove(&id) {
            let (chain, tree, new) = (&mut self.chain, &mut self.tree, &mut self.new);
            let mut examples = Vec::new();
            request.label(text, true, &mut examples, |fate| observe(chain, tree, new, &fate));
            request.wrote(text.len());
            self.left += NEWEST_TEXT * (request.left(self.left) - self.left);
            let written = text.len().saturating_sub(request.prompt);
            if written > 0 {
                self.length += NEWEST_TEXT * (written as f64 - self.length);
            }
            if let Some(kept) = &mut self.examples {
                kept.append(&mut examples);
            }
        }
    }

    /// Chooses for one request, after learning from its earlier drafts as far as the text tells their fate.
    ///
    /// # Errors
    /// If the id is unknown, or the arrays of a draft do not fit together.
    pub fn route(&mut self, id: u64, round: &Round<'_>) -> Result<Choice> {
        round.check()?;
        let credit = self.acceptance_of_a_new_text();
        let Some(request) = self.requests.get_mut(&id) else {
            return Err(unknown(id));
        };
        let (chain, tree, new) = (&mut self.chain, &mut self.tree, &mut self.new);
        let mut examples = Vec::new();
        request.label(round.text, false, &mut examples, |fate| observe(chain, tree, new, &fate));
        let wanted = self.predictor.is_some() || self.examples.is_some();
        let features = wanted.then(|| Box::new(features_of(request, round, &self.classes)));
        let predicted = features.as_ref().and_then(|known| Some(self.predictor.as_ref()?.predict(known)));
        let features = features.filter(|_| self.examples.is_some());
        if let Some(kept) = &mut self.examples {
            kept.append(&mut examples);
        }
        request.keep(round.text.len(), Shape::Chain, &round.chain, features);
        request.keep(round.text.len(), Shape::Tree, &round.tree, None);
        request.wrote(round.text.len());
        let known = Known {
            acceptance: request.model.rate(credit),
            written: round.text.len().saturating_sub(request.prompt),
            left: request.left(self.left),
            length: self.length,
            new: share_where_the_model_is_wrong(&self.new),
            predicted,
        };
        let choice = self.choose(round, known);
        if let Some(request) = self.requests.get_mut(&id) {
            request.chose(matches!(choice, Choice::Chain { .. } | Choice::Tree { .. }));
        }
        Ok(choice)
    }

    /// Chooses by the drafts and costs alone, for a caller that keeps its own record of requests: no predictor, nothing
    /// learned.
    ///
    /// # Errors
    /// If the arrays of a draft do not fit together.
    pub fn weigh(&self, round: &Round<'_>) -> Result<Choice> {
        round.check()?;
        let acceptance = self.model.rate(self.options.acceptance);
        Ok(self.choose(
            round,
            Known {
                acceptance,
                written: 0,
                left: self.left,
                length: self.length,
                new: share_where_the_model_is_wrong(&self.new),
                predicted: None,
            },
        ))
    }

    /// What the model drafter is given credit for on a text that it has not tried: what others showed, or a little more
    /// if that is less than the guess, for texts differ and none of its own speaks against it.
    fn acceptance_of_a_new_text(&self) -> f64 {
        let (guess, shown) = (self.options.acceptance, self.model.rate(self.options.acceptance));
        shown.max(guess.min(shown + DIFFER))
    }

    /// Accepted tokens expected of a cache chain, by its calibrated path probabilities.
    pub fn expected(&self, path_probs: &[f32]) -> f32 {
        path_probs.iter().map(|&path_prob| self.chain.rate(path_prob)).sum()
    }

    /// Learns the time of a target forward over `rows` rows.
    pub fn note_forward(&mut self, rows: usize, seconds: f64) {
        if !self.forward.is_measured() {
            self.model_forward.scale_guess(seconds / self.forward.seconds(rows));
        }
        self.forward.note(rows, seconds);
    }

    /// Learns the time of a model draft of `nodes` tokens for `batch` requests, after `read` unread ones in all.
    pub fn note_model_time(&mut self, nodes: usize, batch: usize, read: usize, seconds: f64) {
        if nodes == 0 {
            return;
        }
        let batch = batch.max(1);
        let expected = self.model_forward.seconds(read.max(1)) + (nodes - 1) as f64 * self.model_forward.seconds(batch);
        let ratio = seconds / expected;
        if !self.model_forward.is_measured() {
            self.forward.scale_guess(ratio);
        }
        self.model_forward.note(batch, self.model_forward.seconds(batch) * ratio);
    }

    /// Learns from a model draft that was verified: tokens accepted, and whether one was refused after them.
    ///
    /// # Errors
    /// If the id is unknown.
    pub fn note_model(&mut self, id: u64, accepted: usize, refused: bool) -> Result<()> {
        let request = self.requests.get_mut(&id).ok_or_else(|| unknown(id))?;
        request.model.add(accepted, usize::from(refused));
        if refused {
            request.refused(accepted);
        }
        self.model.add(accepted, usize::from(refused));
        Ok(())
    }

    /// Learns from a cache chain: each node's path probability and whether it was accepted, or would have been.
    pub fn note_chain(&mut self, nodes: &[(f32, bool)]) {
        self.chain.observe(nodes.iter().copied());
    }
}

/// How much of the cache's acceptance holds where the model drafter is wrong.
fn share_where_the_model_is_wrong(new: &Record) -> f64 {
    new.rate(NEW).min(1.0)
}

fn unknown(id: u64) -> Error {
    Error::new(ErrorKind::Request, format!("request {id} is not routed: start it first"))
}

fn observe(chain: &mut Calibration, tree: &mut Calibration, new: &mut Record, fate: &Fate<'_>) {
    let calibration = match fate.shape {
        Shape::Chain => chain,
        Shape::Tree => tree,
    };
    if let Some((path_prob, accepted)) = fate.instead {
        new.compare(accepted, f64::from(calibration.rate(path_prob)));
    }
    calibration.observe(fate.nodes.iter().copied());
}
