//! The sampling parameters of a request, and what they may be.

use crate::{Error, Result};

/// How a request's tokens are drawn from its (already processed) logits: temperature, then top-k, then top-p, then
/// min-p, the order of the `transformers` processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 for the most probable token, otherwise logits are divided by it.
    pub temperature: f32,
    /// Keeps the `top_k` largest logits and whatever ties with the last of them; 0 keeps all.
    pub top_k: u32,
    /// Drops the low tail whose total probability is at most `1 - top_p`; 1 drops nothing.
    pub top_p: f32,
    /// Drops what is less probable than `min_p` times the most probable token; 0 drops nothing.
    pub min_p: f32,
}

impl Sampling {
    /// The most probable token, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// Whether the most probable token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Refuses values that have no meaning; `owner` names the request in the message.
    ///
    /// # Errors
    /// A temperature that is negative or not finite, `top_p` or `min_p` outside [0, 1].
    pub fn check(&self, owner: usize) -> Result<()> {
        let Self { temperature, top_p, min_p, .. } = *self;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Error::invalid(format!(
                "temperature must be 0 or a positive number, got {temperature} for request {owner}"
            )));
        }
        for (name, value) in [("top_p", top_p), ("min_p", min_p)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::invalid(format!("{name} must be in [0, 1], got {value} for request {owner}")));
            }
        }
        Ok(())
    }
}
