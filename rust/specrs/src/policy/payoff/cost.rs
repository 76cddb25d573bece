//! What a forward costs by the number of its tokens: a line learned from timings.

/// Weight kept by what was learned, per observation.
const KEEP: f64 = 0.98;

/// `seconds ≈ base + slope · tokens`, by least squares with exponential forgetting; the slope is never negative.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    base: f64,
    slope: f64,
    weight: f64,
    tokens: f64,
    seconds: f64,
    tokens_squared: f64,
    product: f64,
}

impl Cost {
    /// A guess that a few timings replace; only ratios of costs matter before.
    pub fn new(base: f64, slope: f64) -> Self {
        let mut cost = Self { base, slope, weight: 0.0, tokens: 0.0, seconds: 0.0, tokens_squared: 0.0, product: 0.0 };
        cost.scale_to(1.0);
        cost
    }

    fn scale_to(&mut self, weight: f64) {
        // Two made-up timings, at 1 and 33 tokens.
        for tokens in [1.0, 33.0] {
            self.add(tokens, self.base + self.slope * tokens, weight);
        }
    }

    fn add(&mut self, tokens: f64, seconds: f64, weight: f64) {
        self.weight += weight;
        self.tokens += weight * tokens;
        self.seconds += weight * seconds;
        self.tokens_squared += weight * tokens * tokens;
        self.product += weight * tokens * seconds;
    }

    /// Learns from one timing. Values that no clock gives are ignored.
    pub fn note(&mut self, tokens: usize, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        if self.weight <= 2.0 {
            // The first timing sets the scale of the guess.
            let factor = seconds / self.seconds(tokens);
            *self = Self { weight: 0.0, tokens: 0.0, seconds: 0.0, tokens_squared: 0.0, product: 0.0, ..*self };
            self.base *= factor;
            self.slope *= factor;
            self.scale_to(1.0);
        }
        for sum in [&mut self.weight, &mut self.tokens, &mut self.seconds, &mut self.tokens_squared, &mut self.product]
        {
            *sum *= KEEP;
        }
        self.add(tokens as f64, seconds, 1.0);
        let spread = self.weight * self.tokens_squared - self.tokens * self.tokens;
        let slope = (self.weight * self.product - self.tokens * self.seconds) / spread;
        let mean = self.seconds / self.weight;
        // With timings of one size only, the slope is unknown and the guess's share stays.
        self.slope = if spread > 1e-9 * self.tokens_squared * self.weight { slope.max(0.0) } else { self.slope };
        self.base = (mean - self.slope * self.tokens / self.weight).max(0.05 * mean);
    }

    /// Seconds for a forward over `tokens` tokens.
    #[inline]
    pub fn seconds(&self, tokens: usize) -> f64 {
        self.base + self.slope * tokens as f64
    }

    pub(super) fn line(&self) -> (f64, f64) {
        (self.base, self.slope)
    }
}
