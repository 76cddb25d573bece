//! The paper's predictor: a perceptron with two hidden layers of 256 units that estimates the accepted length of a cache
//! draft from [features](super::features). Trained in Python, run here.
#![allow(unsafe_code, reason = "calling the version for AVX2 that the processor was found to have")]

use super::features::{FEATURE_VERSION, FEATURES};
use crate::error::{Error, ErrorKind, Result};

/// Units of each hidden layer.
pub const HIDDEN: usize = 256;

const MAGIC: [u8; 8] = *b"SPECRSP\x01";
const FINGERPRINT_BYTES: usize = 64;
const HEADER_BYTES: usize = MAGIC.len() + 12 + FINGERPRINT_BYTES;
/// Hidden units worked on side by side, so that sums stay in registers.
const GROUP: usize = 4;

/// One row of weights per input unit.
type Layer = Vec<[f32; HIDDEN]>;

/// The perceptron. Rectified units make many inputs of the second layer exactly zero; their rows are never read.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    first: Layer,
    first_bias: [f32; HIDDEN],
    second: Layer,
    second_bias: [f32; HIDDEN],
    last: [f32; HIDDEN],
    last_bias: f32,
    fingerprint: String,
}

/// `bias + inputs · rows`, rows of zero inputs left out.
#[inline(always)]
fn layer(inputs: &[f32], rows: &[[f32; HIDDEN]], bias: &[f32; HIDDEN]) -> [f32; HIDDEN] {
    let mut out = *bias;
    let mut active = [0_usize; HIDDEN];
    let mut count = 0;
    for (at, &input) in inputs.iter().enumerate() {
        active[count] = at;
        count += usize::from(input != 0.0);
    }
    let mut groups = active[..count].chunks_exact(GROUP);
    for group in &mut groups {
        let (x, w): ([f32; GROUP], [&[f32; HIDDEN]; GROUP]) =
            (std::array::from_fn(|i| inputs[group[i]]), std::array::from_fn(|i| &rows[group[i]]));
        for unit in 0..HIDDEN {
            out[unit] += x[0] * w[0][unit] + x[1] * w[1][unit] + (x[2] * w[2][unit] + x[3] * w[3][unit]);
        }
    }
    for &at in groups.remainder() {
        for unit in 0..HIDDEN {
            out[unit] += inputs[at] * rows[at][unit];
        }
    }
    out
}

#[inline(always)]
fn rectify(units: &mut [f32; HIDDEN]) {
    for unit in units {
        *unit = unit.max(0.0);
    }
}

impl Mlp {
    /// A perceptron from its weights: `first` is `[FEATURES][HIDDEN]`, `second` `[HIDDEN][HIDDEN]`, `last` `[HIDDEN]`,
    /// flat; biases as long as the layers' outputs. `fingerprint` names the tokenizer it was trained on, or is empty.
    ///
    /// # Errors
    /// If a length does not fit, a weight is not finite, or the fingerprint is longer than 64 bytes.
    pub fn new(first: [&[f32]; 2], second: [&[f32]; 2], last: [&[f32]; 2], fingerprint: &str) -> Result<Self> {
        let found = [first, second, last].map(|[weights, bias]| (weights.len(), bias.len()));
        let wanted = [(FEATURES * HIDDEN, HIDDEN), (HIDDEN * HIDDEN, HIDDEN), (HIDDEN, 1)];
        if found != wanted {
            return Err(Error::invalid(format!("layers must have (weights, biases) {wanted:?}, got {found:?}")));
        }
        if [first, second, last].iter().flatten().any(|part| part.iter().any(|weight| !weight.is_finite())) {
            return Err(Error::invalid("weights must be finite"));
        }
        if fingerprint.len() > FINGERPRINT_BYTES || !fingerprint.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid(format!(
                "a tokenizer fingerprint is at most {FINGERPRINT_BYTES} printable ASCII characters without spaces, got \
                 {fingerprint:?}"
            )));
        }
        let rows = |flat: &[f32]| flat.as_chunks::<HIDDEN>().0.to_vec();
        let one = |flat: &[f32]| rows(flat)[0];
        Ok(Self {
            first: rows(first[0]),
            first_bias: one(first[1]),
            second: rows(second[0]),
            second_bias: one(second[1]),
            last: one(last[0]),
            last_bias: last[1][0],
            fingerprint: fingerprint.to_owned(),
        })
    }

    /// The tokenizer's fingerprint.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Accepted tokens expected of a draft with these features; never negative.
    pub fn predict(&self, features: &[f32; FEATURES]) -> f32 {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            #[target_feature(enable = "avx2")]
            fn wide(mlp: &Mlp, features: &[f32; FEATURES]) -> f32 {
                mlp.run(features)
            }
            // SAFETY: the feature was detected on the line above.
            return unsafe { wide(self, features) };
        }
        self.run(features)
    }

    #[inline(always)]
    fn run(&self, features: &[f32; FEATURES]) -> f32 {
        let mut hidden = layer(features, &self.first, &self.first_bias);
        rectify(&mut hidden);
        let mut hidden = layer(&hidden, &self.second, &self.second_bias);
        rectify(&mut hidden);
        // Eight sums side by side, the same ones whatever the processor.
        let mut sums = [0_f32; 8];
        for (units, weights) in hidden.as_chunks::<8>().0.iter().zip(self.last.as_chunks::<8>().0) {
            for lane in 0..8 {
                sums[lane] += units[lane] * weights[lane];
            }
        }
        (sums.iter().sum::<f32>() + self.last_bias).max(0.0)
    }

    /// The perceptron as the bytes of a file: versions, sizes, fingerprint, weights, checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for number in [FEATURE_VERSION, FEATURES as u32, HIDDEN as u32] {
            out.extend(number.to_le_bytes());
        }
        let mut name = [0_u8; FINGERPRINT_BYTES];
        name[..self.fingerprint.len()].copy_from_slice(self.fingerprint.as_bytes());
        out.extend(name);
        for part in [
            self.first.as_flattened(),
            &self.first_bias,
            self.second.as_flattened(),
            &self.second_bias,
            &self.last,
            &[self.last_bias],
        ] {
            out.extend(part.iter().flat_map(|weight| weight.to_le_bytes()));
        }
        let sum = crc32fast::hash(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// A perceptron from what [`Self::to_bytes`] gave.
    ///
    /// # Errors
    /// If the bytes are foreign, damaged, or for other features than this version computes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: String| Error::new(ErrorKind::Corrupt, format!("payoff predictor: {what}"));
        if bytes.len() < HEADER_BYTES + 4 || bytes[..7] != MAGIC[..7] {
            return Err(corrupt("not a payoff predictor of specrs".to_owned()));
        }
        if bytes[7] != MAGIC[7] {
            return Err(corrupt(format!("format version {}, expected {}", bytes[7], MAGIC[7])));
        }
        let (content, sum) = bytes.split_at(bytes.len() - 4);
        if crc32fast::hash(content).to_le_bytes() != sum {
            return Err(corrupt("the checksum does not fit".to_owned()));
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let found = [number(8), number(12), number(16)];
        let wanted = [FEATURE_VERSION, FEATURES as u32, HIDDEN as u32];
        if found != wanted {
            return Err(corrupt(format!("(feature version, features, hidden units) {found:?}, expected {wanted:?}")));
        }
        let name = content[20..HEADER_BYTES].split(|&byte| byte == 0).next().unwrap_or_default();
        let weights: Vec<f32> =
            content[HEADER_BYTES..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let sizes = [FEATURES * HIDDEN, HIDDEN, HIDDEN * HIDDEN, HIDDEN, HIDDEN, 1];
        if weights.len() != sizes.iter().sum::<usize>() {
            return Err(corrupt(format!("{} weights, expected {}", weights.len(), sizes.iter().sum::<usize>())));
        }
        let mut rest = &weights[..];
        let [a, b, c, d, e, f] = sizes.map(|size| {
            let (part, behind) = rest.split_at(size);
            rest = behind;
            part
        });
        Self::new([a, b], [c, d], [e, f], &String::from_utf8_lossy(name)).map_err(|error| corrupt(error.to_string()))
    }
}
