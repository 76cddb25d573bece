//! Counter-based randomness: Philox4x32-10 keyed by (seed, request, position, purpose).
//!
//! A draw is a pure function of its key, so a request's result never depends on its neighbours, on the batch order, on
//! the number of threads or on what was drawn before. Drafting and verification use different [`Purpose`]s and
//! therefore never share a stream.
//!
//! Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;
const ROUNDS: usize = 10;

/// What a coin is drawn for. Each purpose is a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Drawing a draft token from the drafter's law.
    Draft = 1,
    /// Accepting or rejecting a draft token.
    Accept = 2,
    /// Drawing a token from the target's law or from a residual.
    Emit = 3,
    /// Exploration and other choices that do not touch the output law.
    Policy = 4,
}

/// The key of one draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The request's seed.
    pub seed: u64,
    /// Which of several samples of the same prompt and seed this is; 0 for a single one.
    pub request: u32,
    /// Number of committed tokens before the token that is drawn (prompt included).
    pub position: u32,
    /// What the coin is for.
    pub purpose: Purpose,
    /// Counts several draws at one position (siblings of a tree); 0 for a chain.
    pub index: u32,
}

/// The ten Philox rounds: a bijection of 128 bits under a 64-bit key.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let low = u64::from(MULTIPLIER_0) * u64::from(counter[0]);
        let high = u64::from(MULTIPLIER_1) * u64::from(counter[2]);
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(WEYL_0), key[1].wrapping_add(WEYL_1)];
    }
    counter
}

/// Draws the coin of `key`: a multiple of 2⁻⁵³ in [0, 1).
pub fn uniform(key: Key) -> f64 {
    let counter = [key.position, key.purpose as u32, key.request, key.index];
    let bits = philox(counter, [key.seed as u32, (key.seed >> 32) as u32]);
    let wide = (u64::from(bits[0]) << 32) | u64::from(bits[1]);
    (wide >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn streams_differ_and_repeat() {
        let key = Key { seed: 7, request: 0, position: 3, purpose: Purpose::Accept, index: 0 };
        assert_eq!(uniform(key), uniform(key));
        for other in [
            Key { seed: 8, ..key },
            Key { request: 1, ..key },
            Key { position: 4, ..key },
            Key { purpose: Purpose::Emit, ..key },
            Key { index: 1, ..key },
        ] {
            assert_ne!(uniform(key), uniform(other), "{other:?}");
        }
        assert!((0..10_000).all(|position| (0.0..1.0).contains(&uniform(Key { position, ..key }))));
    }
}
