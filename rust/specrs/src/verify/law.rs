//! The law of one target row, formed from its logits without a vector of probabilities.
//!
//! A row is read once for its block maxima. Truncation (top-k, top-p, min-p) is a [`Cut`]: the smallest kept logit, and
//! among the ids that tie with it the smallest kept id. Blocks whose maximum is below the cut are never looked at
//! again. Weights are `exp((logit - max) / temperature)` in float32, sums of them float64 in one fixed order, and a
//! probability is `weight * (1 / sum)` in float32 wherever one is needed, so that drafter and verifier agree to the bit.

use super::logits::Element;
use super::sampling::Sampling;
use super::simd;

/// Logits per block. Small, so that a truncated law touches little; large enough for wide vectors.
pub(crate) const BLOCK: usize = 128;

/// Independent running sums inside a block; fixes the order of additions on every processor.
pub(crate) const LANES: usize = 8;

/// What the memory of one thread's rows is reused for.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Largest logit of each block.
    maxima: Vec<f32>,
    /// Total weight of each block's kept tokens.
    sums: Vec<f64>,
    /// Total of each block's residual.
    pub(crate) residual: Vec<f64>,
    values: Vec<f32>,
    candidates: Vec<(f32, u32)>,
}

/// 2^fraction for a fraction in [-0.5, 0.5]: minimax in relative error (2e-9 before rounding), exactly 1 at 0.
#[inline(always)]
fn exp2_fraction(fraction: f32) -> f32 {
    const C: [f32; 6] =
        [std::f32::consts::LN_2, 0.240_226_48, 0.055_503_324, 0.009_618_437, 0.001_339_887_4, 0.000_153_533_62];
    let mut sum = C[5];
    for coefficient in [C[4], C[3], C[2], C[1], C[0], 1.0] {
        sum = sum.mul_add(fraction, coefficient);
    }
    sum
}

/// 2^x for x ≤ 0, to about 1.5 units in the last place; 0 below 2^-100, so that a weight times 1/sum is never subnormal.
#[inline(always)]
fn exp2(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x + SHIFT;
    let fraction = x - (shifted - SHIFT);
    let bits = exp2_fraction(fraction).to_bits().wrapping_add(shifted.to_bits() << 23);
    if x >= -100.0 { f32::from_bits(bits) } else { 0.0 }
}

/// Largest logit and temperature of a row: the map from logit to weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    max: f32,
    /// log2(e) / temperature.
    rate: f32,
}

impl Scale {
    fn new(max: f32, temperature: f32) -> Self {
        let rate = (std::f64::consts::LOG2_E / f64::from(temperature)).min(f64::from(f32::MAX)) as f32;
        Self { max, rate }
    }

    /// exp((logit - max) / temperature), 1 at the maximum.
    #[inline(always)]
    pub(crate) fn weight(self, logit: f32) -> f32 {
        exp2((logit - self.max) * self.rate)
    }
}

/// What is kept: logits above `logit`, and those equal to it from id `from` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cut {
    logit: f32,
    from: u32,
}

impl Cut {
    const NONE: Self = Self { logit: f32::NEG_INFINITY, from: 0 };

    #[inline(always)]
    fn keeps(self, id: usize, logit: f32) -> bool {
        logit > self.logit || (logit == self.logit && id >= self.from as usize)
    }
}

/// Why a row has no law: NaN, +∞, or nothing above −∞.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unusable;

/// Reads the row once: block maxima into `maxima`, the largest of all returned.
fn scan<E: Element>(row: &[E::Bits], maxima: &mut Vec<f32>) -> Result<f32, Unusable> {
    maxima.clear();
    let (lowest, highest) = simd::run(
        #[inline(always)]
        || {
            let (mut lowest, mut highest) = (E::HIGHEST, E::LOWEST);
            for block in row.chunks(BLOCK) {
                let (mut low, mut high) = (E::HIGHEST, E::LOWEST);
                for &bits in block {
                    let key = E::key(bits);
                    low = low.min(key);
                    high = high.max(key);
                }
                maxima.push(E::key_value(high));
                lowest = lowest.min(low);
                highest = highest.max(high);
            }
            (lowest, highest)
        },
    );
    if lowest < E::LOWEST || highest >= E::HIGHEST || highest == E::LOWEST {
        return Err(Unusable);
    }
    Ok(E::key_value(highest))
}

/// The most probable token of a row, the lowest id among equals.
pub(crate) fn argmax<E: Element>(row: &[E::Bits], scratch: &mut Scratch) -> Result<u32, Unusable> {
    let max = scan::<E>(row, &mut scratch.maxima)?;
    let block = scratch.maxima.iter().position(|&m| m == max).unwrap_or(0);
    let start = block * BLOCK;
    let inside = row[start..].iter().position(|&bits| E::value(bits) == max).unwrap_or(0);
    Ok((start + inside) as u32)
}

/// Adds up `values` in [`LANES`] interleaved float64 sums.
#[inline(always)]
pub(crate) fn lane_sum(values: &[f32; BLOCK]) -> f64 {
    let mut lanes = [0f64; LANES];
    for group in values.chunks_exact(LANES) {
        for lane in 0..LANES {
            lanes[lane] += f64::from(group[lane]);
        }
    }
    let pairs = [lanes[0] + lanes[4], lanes[1] + lanes[5], lanes[2] + lanes[6], lanes[3] + lanes[7]];
    (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
}

/// The law of one row. Borrows the row's logits and the thread's scratch memory.
pub(crate) struct RowLaw<'a, E: Element> {
    row: &'a [E::Bits],
    scale: Scale,
    cut: Cut,
    sum: f64,
    inverse: f32,
    scratch: &'a mut Scratch,
}

impl<'a, E: Element> RowLaw<'a, E> {
    /// Forms the law of `row` under `sampling`, whose temperature is positive.
    pub(crate) fn new(row: &'a [E::Bits], sampling: Sampling, scratch: &'a mut Scratch) -> Result<Self, Unusable> {
        let max = scan::<E>(row, &mut scratch.maxima)?;
        let scale = Scale::new(max, sampling.temperature);
        let mut law = Self { row, scale, cut: Cut::NONE, sum: 0.0, inverse: 0.0, scratch };
        if sampling.top_k > 0 && (sampling.top_k as usize) < row.len() {
            law.cut_top_k(sampling.top_k as usize, sampling.temperature);
        }
        let mut summed = false;
        if sampling.top_p < 1.0 {
            law.sum_kept();
            summed = !law.cut_top_p(f64::from(sampling.top_p));
        }
        if sampling.min_p > 0.0 {
            summed &= !law.cut_min_p(sampling.min_p);
        }
        if !summed {
            law.sum_kept();
        }
        law.inverse = (1.0 / law.sum) as f32;
        Ok(law)
    }

    /// Number of tokens that the row has logits for.
    pub(crate) fn vocabulary(&self) -> usize {
        self.row.len()
    }

    /// Probability of token `id`; 0 for ids outside the row.
    pub(crate) fn prob(&self, id: u32) -> f32 {
        match self.row.get(id as usize) {
            Some(&bits) if self.cut.keeps(id as usize, E::value(bits)) => {
                self.scale.weight(E::value(bits)) * self.inverse
            }
            _ => 0.0,
        }
    }

    /// Whether `block` holds any kept token.
    pub(crate) fn has_block(&self, block: usize) -> bool {
        self.scratch.maxima[block] >= self.cut.logit
    }

    /// Ids of `block`.
    pub(crate) fn block_range(&self, block: usize) -> std::ops::Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.row.len())
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.row.len().div_ceil(BLOCK)
    }

    /// Kept weights of `block`, 0 elsewhere and past the end of the row.
    #[inline(always)]
    fn weights(&self, block: usize) -> [f32; BLOCK] {
        let mut weights = [0f32; BLOCK];
        let ids = self.block_range(block);
        let from = (self.cut.from as usize).clamp(ids.start, ids.end) - ids.start;
        let (before, after) = self.row[ids].split_at(from);
        let (out_before, out_after) = weights.split_at_mut(from);
        let (cut, scale) = (self.cut.logit, self.scale);
        for (out, &bits) in out_before.iter_mut().zip(before) {
            let logit = E::value(bits);
            *out = if logit > cut { scale.weight(logit) } else { 0.0 };
        }
        for (out, &bits) in out_after.iter_mut().zip(after) {
            let logit = E::value(bits);
            *out = if logit >= cut { scale.weight(logit) } else { 0.0 };
        }
        weights
    }

    /// Probabilities of `block`'s tokens.
    #[inline(always)]
    pub(crate) fn block_probs(&self, block: usize) -> [f32; BLOCK] {
        let mut probs = self.weights(block);
        for prob in &mut probs {
            *prob *= self.inverse;
        }
        probs
    }

    /// Sums the kept weights, per block and in total.
    fn sum_kept(&mut self) {
        let mut sums = std::mem::take(&mut self.scratch.sums);
        sums.clear();
        let law = &*self;
        let total = simd::run(
            #[inline(always)]
            || {
                let mut total = 0.0;
                for block in 0..law.blocks() {
                    let sum = if law.has_block(block) { lane_sum(&law.weights(block)) } else { 0.0 };
                    sums.push(sum);
                    total += sum;
                }
                total
            },
        );
        self.sum = total;
        self.scratch.sums = sums;
    }

    /// Calls `visit(logit, id)` for each kept token whose logit is at least `floor`.
    fn visit_from(&self, floor: f32, mut visit: impl FnMut(f32, u32)) {
        for (block, &max) in self.scratch.maxima.iter().enumerate() {
            if max < floor || max < self.cut.logit {
                continue;
            }
            for id in self.block_range(block) {
                let logit = E::value(self.row[id]);
                if logit >= floor && self.cut.keeps(id, logit) {
                    visit(logit, id as u32);
                }
            }
        }
    }

    /// Keeps the `k` largest scaled logits and what ties with the last.
    fn cut_top_k(&mut self, k: usize, temperature: f32) {
        let mut values = std::mem::take(&mut self.scratch.values);
        values.clear();
        // The k-th largest block maximum is at most the k-th largest logit: what is below it needs no look.
        let mut floor = f32::NEG_INFINITY;
        if self.scratch.maxima.len() >= k {
            values.extend_from_slice(&self.scratch.maxima);
            floor = *values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
            values.clear();
        }
        self.visit_from(floor, |logit, _| values.push(logit));
        let mut kth = *values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        self.scratch.values = values;
        if kth == f32::NEG_INFINITY {
            return;
        }
        // Ties are judged after the division by the temperature, which can make equals of neighbours.
        let scaled = kth / temperature;
        while scaled.is_normal() && kth.next_down() / temperature == scaled {
            kth = kth.next_down();
        }
        self.cut = Cut { logit: kth, from: 0 };
    }

    /// Drops the low tail; needs the sum of what is kept so far. Returns whether anything was dropped.
    fn cut_top_p(&mut self, top_p: f64) -> bool {
        // Tokens lighter than this cannot be in the nucleus: all of them together weigh less than the tail.
        let light = ((1.0 - top_p) * self.sum / self.row.len() as f64 * 0.999) as f32;
        let mut candidates = std::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        let scale = self.scale;
        for (block, &max) in self.scratch.maxima.iter().enumerate() {
            if max < self.cut.logit || scale.weight(max) < light {
                continue;
            }
            for id in self.block_range(block) {
                let logit = E::value(self.row[id]);
                if self.cut.keeps(id, logit) && scale.weight(logit) >= light {
                    candidates.push((logit, id as u32));
                }
            }
        }
        let cut = nucleus(&mut candidates, scale, top_p * self.sum);
        self.scratch.candidates = candidates;
        let changed = cut != self.cut;
        self.cut = cut;
        changed
    }

    /// Drops what weighs less than `min_p` times the heaviest. Returns whether the cut moved.
    fn cut_min_p(&mut self, min_p: f32) -> bool {
        let scale = self.scale;
        let mut smallest = scale.max;
        for (block, &max) in self.scratch.maxima.iter().enumerate() {
            if scale.weight(max) < min_p {
                continue;
            }
            for id in self.block_range(block) {
                let logit = E::value(self.row[id]);
                if logit < smallest && scale.weight(logit) >= min_p {
                    smallest = logit;
                }
            }
        }
        if smallest <= self.cut.logit {
            return false;
        }
        self.cut = Cut { logit: smallest, from: 0 };
        true
    }

    /// The token at `coin` of the inverse cumulative law, ids ascending.
    pub(crate) fn draw(&self, coin: f64) -> u32 {
        pick(&self.scratch.sums, coin * self.sum, |block| self.weights(block))
    }

    /// Natural logarithm of the probability of a kept `logit`, for a law at temperature 1.
    pub(crate) fn log_prob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.scale.max) - self.sum.ln()) as f32
    }

    /// The `k` largest logits with their ids, largest first, lower id first among equals.
    pub(crate) fn largest(&self, k: usize) -> Vec<(f32, u32)> {
        let mut floor = f32::NEG_INFINITY;
        if self.scratch.maxima.len() >= k {
            let mut maxima = self.scratch.maxima.clone();
            floor = *maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        }
        let mut found = Vec::new();
        self.visit_from(floor, |logit, id| found.push((logit, id)));
        found.sort_unstable_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal).then(a.1.cmp(&b.1)));
        found.truncate(k);
        found
    }

    /// Lends the thread's residual sums, to be given back by [`Self::return_residual`].
    pub(crate) fn take_residual(&mut self) -> Vec<f64> {
        let mut sums = std::mem::take(&mut self.scratch.residual);
        sums.clear();
        sums
    }

    /// Takes the residual sums back, so that the next row needs no allocation.
    pub(crate) fn return_residual(&mut self, sums: Vec<f64>) {
        self.scratch.residual = sums;
    }
}

/// The cut below which `candidates` (logit, id) lie outside the smallest top set that weighs `goal`.
///
/// Order is by logit, then by id, both descending: the reverse of a stable ascending sort. A token is kept as long as
/// what lies above it weighs less than `goal`, and the first always.
fn nucleus(candidates: &mut [(f32, u32)], scale: Scale, goal: f64) -> Cut {
    let order =
        |a: &(f32, u32), b: &(f32, u32)| b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal).then(b.1.cmp(&a.1));
    let mut rest = candidates;
    let mut above = 0.0;
    while rest.len() > 32 {
        let half = rest.len() / 2;
        rest.select_nth_unstable_by(half, order);
        let mass: f64 = rest[..half].iter().map(|c| f64::from(scale.weight(c.0))).sum();
        if above + mass >= goal {
            rest = &mut rest[..half];
        } else {
            above += mass;
            rest = &mut rest[half..];
        }
    }
    rest.sort_unstable_by(order);
    let mut last = rest[0];
    for &candidate in &rest[1..] {
        above += f64::from(scale.weight(last.0));
        if above >= goal {
            break;
        }
        last = candidate;
    }
    Cut { logit: last.0, from: last.1 }
}

/// The first index whose running sum exceeds `goal`; rounding at the very end falls back to the last index with mass.
///
/// `sums` holds the total of each block, `values` gives a block's entries.
pub(crate) fn pick(sums: &[f64], goal: f64, values: impl Fn(usize) -> [f32; BLOCK]) -> u32 {
    let mut below = 0.0;
    let mut chosen = 0;
    let mut reached = false;
    for (block, &sum) in sums.iter().enumerate() {
        if sum > 0.0 {
            chosen = block;
            reached = goal < below + sum;
            if reached {
                break;
            }
            below += sum;
        }
    }
    let mut last = 0;
    for (index, &value) in values(chosen).iter().enumerate() {
        if value > 0.0 {
            last = index;
            below += f64::from(value);
            if reached && goal < below {
                break;
            }
        }
    }
    (chosen * BLOCK + last) as u32
}
