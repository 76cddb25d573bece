//! The map from a logit to its unnormalised weight, the same bits in every version of every loop.

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of a float32.
pub(super) const SHIFT: f32 = 12_582_912.0;

/// Weights below 2^-FLUSH are 0, so that a weight times 1/sum is never subnormal.
pub(super) const FLUSH: f32 = 100.0;

/// Coefficients of 2^fraction for a fraction in [-0.5, 0.5]: minimax in relative error (2e-9 before rounding), exactly 1
/// at 0.
pub(super) const EXP2: [f32; 7] =
    [1.0, std::f32::consts::LN_2, 0.240_226_48, 0.055_503_324, 0.009_618_437, 0.001_339_887_4, 0.000_153_533_62];

/// 2^23: from here to twice that, a float32 is an integer, in its low 23 bits.
pub(super) const INTEGERS: f32 = 8_388_608.0;

/// Steps per doubling in [`Scale::bound`].
pub(super) const STEPS: f32 = 32_768.0;

/// The step of weight 1 in [`Scale::bound`]: 127 doublings above the first.
pub(super) const STEP_OF_ONE: f32 = INTEGERS + 127.0 * STEPS;

/// A sum of weights is at least that of their [`Scale::bound`]s over `BOUND_EXCESS`, and at most `BOUND_SHORT` times it:
/// a chord lies up to 6.15 % above 2^x, the rest is more than rounding does.
pub(super) const BOUND_EXCESS: f64 = 1.0617;
pub(super) const BOUND_SHORT: f64 = 1.0001;

/// Largest logit and temperature of a row: the map from logit to weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(super) max: f32,
    /// log2(e) / temperature.
    pub(super) rate: f32,
}

impl Scale {
    pub(super) fn new(max: f32, temperature: f32) -> Self {
        let rate = (std::f64::consts::LOG2_E / f64::from(temperature)).min(f64::from(f32::MAX)) as f32;
        Self { max, rate }
    }

    /// exp((logit - max) / temperature) to about 1.5 units in the last place: exactly 1 at the maximum, 0 below 2^-100,
    /// so that a weight times 1/sum is never subnormal. The polynomial is in Estrin's form: short chains of dependent
    /// steps.
    #[inline(always)]
    pub(crate) fn weight(self, logit: f32) -> f32 {
        let below = logit - self.max;
        let shifted = below.mul_add(self.rate, SHIFT);
        let fraction = below.mul_add(self.rate, SHIFT - shifted);
        let square = fraction * fraction;
        let low = EXP2[3].mul_add(fraction, EXP2[2]).mul_add(square, EXP2[1].mul_add(fraction, EXP2[0]));
        let high = EXP2[6].mul_add(square, EXP2[5].mul_add(fraction, EXP2[4]));
        let sum = high.mul_add(square * square, low);
        let bits = sum.to_bits().wrapping_add(shifted.to_bits() << 23);
        if shifted >= SHIFT - FLUSH { f32::from_bits(bits) } else { 0.0 }
    }

    /// A bound of [`Self::weight`], up to 6.15 % above it: between two powers of two the chord, which is what the bits of
    /// a float32 count along. No logit may be above the largest.
    #[inline(always)]
    pub(super) fn bound(self, logit: f32) -> f32 {
        let step = (logit - self.max).mul_add(self.rate * STEPS, STEP_OF_ONE).max(INTEGERS);
        f32::from_bits(step.to_bits() << 8)
    }

    /// Whether [`Self::weight`] of `logit` and of all above it is too large to be replaced by 0.
    #[inline(always)]
    pub(super) fn is_surely_positive(self, logit: f32) -> bool {
        (logit - self.max) * self.rate >= 1.0 - FLUSH
    }

    /// A logit below which every weight is 0.
    pub(super) fn lightest(self) -> f32 {
        self.max - (FLUSH + 1.0) / self.rate
    }

    /// The logit below which every weight is less than `weight`, give or take rounding, which is on the safe side.
    pub(super) fn logit_of(self, weight: f64) -> f32 {
        let below = (weight.log2() - 0.001) / f64::from(self.rate);
        ((f64::from(self.max) + below) as f32).next_down()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_near_the_weights() {
        for temperature in [1e-3, 0.3, 1.0, 7.0] {
            let scale = Scale::new(12.5, temperature);
            assert_eq!(scale.bound(scale.max), 1.0);
            for step in 0..200_000 {
                let logit = scale.max - step as f32 * 5e-4 / scale.rate;
                let (weight, bound) = (f64::from(scale.weight(logit)), f64::from(scale.bound(logit)));
                assert!(weight <= bound * BOUND_SHORT, "{weight} {bound}");
                assert!(weight == 0.0 || bound <= weight * BOUND_EXCESS, "{weight} {bound}");
            }
            assert_eq!([-1e6, f32::MIN, f32::NEG_INFINITY].map(|logit| scale.bound(logit)), [0.0; 3]);
        }
    }
}
