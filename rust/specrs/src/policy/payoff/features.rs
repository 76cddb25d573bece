//! What is known of a cache draft before it is verified, as numbers for a predictor.

use super::request::{Offer, RequestState};
use super::round::Round;

/// Number of features.
pub const FEATURES: usize = 24;
/// Changes whenever a feature does; a predictor trained on others is refused.
pub const FEATURE_VERSION: u32 = 1;

/// Bits of a token's class: it holds white space, punctuation, a bracket, or a delimiter.
pub const CLASSES: usize = 4;

/// The features of a request's cache chain.
///
/// | features | what |
/// |---|---|
/// | 0, 1 | sum of path probabilities, its logarithm and itself |
/// | 2, 3, 4 | longest match, its logarithm, length of the draft |
/// | 5 – 10 | path probability of the first, second, fourth, 8th, 16th and 32nd node |
/// | 11, 12, 13 | prompt, text written since (logarithms), its share of what may be written |
/// | 14 | how often the cache was chosen lately |
/// | 15 – 18 | known accepted length of the last four drafts: at most the tokens written since |
/// | 19 | tokens written since the last draft |
/// | 20 – 23 | whether the draft holds white space, punctuation, brackets, delimiters |
pub(super) fn features_of(request: &RequestState, round: &Round<'_>, classes: &[u8]) -> [f32; FEATURES] {
    let mut out = [0.0; FEATURES];
    let offer: &Offer<'_> = &round.chain;
    let score: f32 = offer.path_probs.iter().sum();
    out[0] = score.ln_1p();
    out[1] = score / 16.0;
    out[2] = offer.match_length.min(128) as f32 / 64.0;
    out[3] = (offer.match_length as f32).ln_1p();
    out[4] = offer.tokens.len() as f32 / 32.0;
    for (feature, node) in [0, 1, 3, 7, 15, 31].into_iter().enumerate() {
        out[5 + feature] = offer.path_probs.get(node).copied().unwrap_or(0.0);
    }
    let written = round.text.len().saturating_sub(request.prompt) as f32;
    out[11] = (request.prompt as f32).ln_1p() / 8.0;
    out[12] = written.ln_1p() / 8.0;
    out[13] = written / (written + round.remaining as f32).max(1.0);
    out[14] = request.cached;
    let mut since = 0;
    for (feature, (at, known)) in request.known_accepted(round.text).take(4).enumerate() {
        out[15 + feature] = (known as f32).ln_1p();
        if feature == 0 {
            since = round.text.len() - at;
        }
    }
    out[19] = (since as f32).ln_1p();
    let held = offer.tokens.iter().fold(0, |held, &token| held | classes.get(token as usize).copied().unwrap_or(0));
    for class in 0..CLASSES {
        out[20 + class] = f32::from(held >> class & 1);
    }
    out
}
