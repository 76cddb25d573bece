//! The law of one target row, formed from its logits without a vector of probabilities.
//!
//! A row is read once, for its block maxima and, unless top-k makes that needless, for the weight of each block; a tile
//! is small enough for its second look to come from the nearest cache. Truncation (top-k, top-p, min-p) is a [`Cut`]: the smallest kept logit, and
//! among the ids that tie with it the smallest kept id. Blocks whose maximum is below the cut are never looked at
//! again. Weights are `exp((logit - max) / temperature)` in float32, sums of them float64 in one fixed order, and a
//! probability is `weight * (1 / sum)` in float32 wherever one is needed, so that drafter and verifier agree to the bit.

use super::logits::Element;
use super::sampling::Sampling;
use super::simd;

/// Logits per block. Small, so that a truncated law touches little; large enough for wide vectors.
pub(crate) const BLOCK: usize = 128;

/// Blocks that are scanned before they are summed.
const TILE: usize = 16;

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of a float32.
pub(super) const SHIFT: f32 = 12_582_912.0;

/// Weights below 2^-FLUSH are 0, so that a weight times 1/sum is never subnormal.
pub(super) const FLUSH: f32 = 100.0;

/// Coefficients of 2^fraction for a fraction in [-0.5, 0.5]: minimax in relative error (2e-9 before rounding), exactly 1
/// at 0.
pub(super) const EXP2: [f32; 7] =
    [1.0, std::f32::consts::LN_2, 0.240_226_48, 0.055_503_324, 0.009_618_437, 0.001_339_887_4, 0.000_153_533_62];

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
    /// so that a weight times 1/sum is never subnormal.
    #[inline(always)]
    pub(crate) fn weight(self, logit: f32) -> f32 {
        let below = logit - self.max;
        let shifted = below.mul_add(self.rate, SHIFT);
        let fraction = below.mul_add(self.rate, SHIFT - shifted);
        let mut sum = EXP2[6];
        for coefficient in [EXP2[5], EXP2[4], EXP2[3], EXP2[2], EXP2[1], EXP2[0]] {
            sum = sum.mul_add(fraction, coefficient);
        }
        let bits = sum.to_bits().wrapping_add(shifted.to_bits() << 23);
        if shifted >= SHIFT - FLUSH { f32::from_bits(bits) } else { 0.0 }
    }

    /// The logit below which every weight is less than `weight`, give or take rounding, which is on the safe side.
    fn logit_of(self, weight: f64) -> f32 {
        let below = (weight.log2() - 0.001) / f64::from(self.rate);
        ((f64::from(self.max) + below) as f32).next_down()
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

/// The largest value of a row of which these are the smallest and the largest key.
fn largest<E: Element>(low: E::Key, high: E::Key) -> Result<f32, Unusable> {
    if low < E::LOWEST || high >= E::HIGHEST || high == E::LOWEST {
        return Err(Unusable);
    }
    Ok(E::key_value(high))
}

/// The last, incomplete block of a row, padded with −∞.
fn padded<E: Element>(rest: &[E::Bits]) -> Option<[E::Bits; BLOCK]> {
    (!rest.is_empty()).then(|| {
        let mut block = [E::MASKED; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        block
    })
}

/// Reads the row once: block maxima into `maxima`, the largest of all returned.
fn scan<E: Element>(row: &[E::Bits], maxima: &mut Vec<f32>) -> Result<f32, Unusable> {
    maxima.clear();
    let (mut low, mut high) = (E::HIGHEST, E::LOWEST);
    let (whole, rest) = row.as_chunks::<BLOCK>();
    simd::extremes::<E>(whole, &mut low, &mut high, maxima);
    simd::extremes::<E>(padded::<E>(rest).as_slice(), &mut low, &mut high, maxima);
    largest::<E>(low, high)
}

/// Reads the row once: block maxima, the weight of each block, and the largest logit.
fn scan_and_sum<E: Element>(
    row: &[E::Bits],
    temperature: f32,
    maxima: &mut Vec<f32>,
    sums: &mut Vec<f64>,
) -> Result<f32, Unusable> {
    maxima.clear();
    sums.clear();
    let (mut low, mut high) = (E::HIGHEST, E::LOWEST);
    let mut scale = Scale::new(f32::NEG_INFINITY, temperature);
    let (whole, rest) = row.as_chunks::<BLOCK>();
    let last = padded::<E>(rest);
    for tile in whole.chunks(TILE).chain([last.as_slice()]) {
        let first = maxima.len();
        simd::extremes::<E>(tile, &mut low, &mut high, maxima);
        let tile_max = maxima[first..].iter().copied().fold(scale.max, f32::max);
        if tile_max > scale.max {
            // What is summed so far is relative to a smaller maximum.
            let factor = ((f64::from(scale.max) - f64::from(tile_max)) * f64::from(scale.rate)).exp2();
            for sum in sums.iter_mut() {
                *sum *= factor;
            }
            scale.max = tile_max;
        }
        simd::weight_sums::<E>(tile, scale, sums);
    }
    largest::<E>(low, high)
}

/// The most probable token of a row, the lowest id among equals.
pub(crate) fn argmax<E: Element>(row: &[E::Bits], scratch: &mut Scratch) -> Result<u32, Unusable> {
    let max = scan::<E>(row, &mut scratch.maxima)?;
    let block = scratch.maxima.iter().position(|&m| m == max).unwrap_or(0);
    let start = block * BLOCK;
    let inside = row[start..].iter().position(|&bits| E::value(bits) == max).unwrap_or(0);
    Ok((start + inside) as u32)
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
        let Sampling { temperature, top_k, top_p, min_p } = sampling;
        let truncates_first = top_k > 0 && (top_k as usize) < row.len();
        let max = if truncates_first {
            scan::<E>(row, &mut scratch.maxima)?
        } else {
            scan_and_sum::<E>(row, temperature, &mut scratch.maxima, &mut scratch.sums)?
        };
        let scale = Scale::new(max, temperature);
        let sum = scratch.sums.iter().sum();
        let mut law = Self { row, scale, cut: Cut::NONE, sum, inverse: 0.0, scratch };
        if truncates_first {
            law.cut_top_k(top_k as usize, temperature);
            law.sum_kept();
        }
        if (top_p < 1.0 && law.cut_top_p(f64::from(top_p))) | (min_p > 0.0 && law.cut_min_p(min_p)) {
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
    #[inline]
    fn weights(&self, block: usize) -> [f32; BLOCK] {
        let ids = self.block_range(block);
        let mut copy = [E::MASKED; BLOCK];
        let bits: &[E::Bits; BLOCK] = if let Ok(whole) = self.row[ids.clone()].try_into() {
            whole
        } else {
            copy[..ids.len()].copy_from_slice(&self.row[ids.clone()]);
            &copy
        };
        let mut weights = simd::weights::<E>(bits, self.scale);
        if self.cut != Cut::NONE {
            for (index, weight) in weights.iter_mut().enumerate() {
                if !self.cut.keeps(ids.start + index, E::value(bits[index])) {
                    *weight = 0.0;
                }
            }
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
                    let sum = if law.has_block(block) { simd::sum(&law.weights(block)) } else { 0.0 };
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
        let floor = floor.max(self.cut.logit);
        simd::run(
            #[inline(always)]
            || {
                for (block, &max) in self.scratch.maxima.iter().enumerate() {
                    if max < floor {
                        continue;
                    }
                    let ids = self.block_range(block);
                    for (index, group) in self.row[ids.clone()].chunks(32).enumerate() {
                        if !group.iter().fold(false, |any, &bits| any | (E::value(bits) >= floor)) {
                            continue;
                        }
                        for (id, &bits) in (ids.start + index * 32..).zip(group) {
                            let logit = E::value(bits);
                            if logit >= floor && self.cut.keeps(id, logit) {
                                visit(logit, id as u32);
                            }
                        }
                    }
                }
            },
        );
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
        let light = (1.0 - top_p) * self.sum / self.row.len() as f64;
        let mut candidates = std::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        self.visit_from(self.scale.logit_of(light), |logit, id| candidates.push((logit, id)));
        let cut = nucleus(&mut candidates, self.scale, top_p * self.sum);
        self.scratch.candidates = candidates;
        let changed = cut != self.cut;
        self.cut = cut;
        changed
    }

    /// Drops what weighs less than `min_p` times the heaviest. Returns whether the cut moved.
    fn cut_min_p(&mut self, min_p: f32) -> bool {
        let scale = self.scale;
        let mut smallest = scale.max;
        self.visit_from(scale.logit_of(f64::from(min_p)), |logit, _| {
            if logit < smallest && scale.weight(logit) >= min_p {
                smallest = logit;
            }
        });
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

    /// All probabilities, 0 for what is cut.
    pub(crate) fn probs(&self) -> Vec<f32> {
        let mut probs = vec![0.0; self.row.len()];
        self.write_probs(&mut probs);
        probs
    }

    /// Writes all probabilities.
    pub(crate) fn write_probs(&self, out: &mut [f32]) {
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            if self.has_block(block) {
                out.copy_from_slice(&self.block_probs(block)[..out.len()]);
            } else {
                out.fill(0.0);
            }
        }
    }

    /// Probability of the most probable token.
    pub(crate) fn max_prob(&self) -> f32 {
        self.inverse
    }

    /// Probability of the k-th most probable token; that of the last kept one if there are fewer.
    pub(crate) fn kth_prob(&self, k: usize) -> f32 {
        let logit = self.largest(k).last().map_or(self.scale.max, |last| last.0);
        self.scale.weight(logit) * self.inverse
    }

    /// Entropy in nats.
    pub(crate) fn entropy(&self) -> f64 {
        let mut moment = 0.0;
        for block in (0..self.blocks()).filter(|&block| self.has_block(block)) {
            for (weight, id) in self.weights(block).into_iter().zip(self.block_range(block)) {
                if weight > 0.0 {
                    moment += f64::from(weight) * f64::from(E::value(self.row[id]) - self.scale.max);
                }
            }
        }
        let per_logit = f64::from(self.scale.rate) * std::f64::consts::LN_2;
        self.sum.ln() - moment * per_logit / self.sum
    }

    /// The most probable token of weight * target + (1 - weight) * draft, the lowest id among equals.
    pub(crate) fn mixture_argmax(&self, draft: super::draft_law::LawRow<'_>, weight: f32) -> u32 {
        let (mut best, mut best_prob) = (0, -1.0);
        for block in 0..self.blocks() {
            let draft = draft.block(block * BLOCK).0;
            for ((target, draft), id) in self.block_probs(block).into_iter().zip(draft).zip(self.block_range(block)) {
                let mixed = f64::from(weight) * f64::from(target) + (1.0 - f64::from(weight)) * f64::from(draft);
                if mixed > best_prob {
                    (best, best_prob) = (id, mixed);
                }
            }
        }
        best as u32
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
    let (mut above, mut rest) = boundary_bucket(candidates, scale, goal);
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

/// Narrows `candidates` to those whose weight has about the size at which the running weight reaches `goal`, and tells
/// what lies above them.
fn boundary_bucket(candidates: &mut [(f32, u32)], scale: Scale, goal: f64) -> (f64, &mut [(f32, u32)]) {
    const BUCKETS: usize = 64;
    if candidates.len() <= 256 {
        return (0.0, candidates);
    }
    let lowest = candidates.iter().map(|c| c.0).fold(scale.max, f32::min);
    let per_bucket = BUCKETS as f32 / (scale.max - lowest).max(f32::MIN_POSITIVE);
    let bucket = |logit: f32| (((scale.max - logit) * per_bucket) as usize).min(BUCKETS - 1);
    let mut masses = [0f64; BUCKETS];
    simd::run(
        #[inline(always)]
        || candidates.iter().for_each(|c| masses[bucket(c.0)] += f64::from(scale.weight(c.0))),
    );
    let (mut above, mut boundary) = (0.0, 0);
    while boundary + 1 < BUCKETS && above + masses[boundary] < goal {
        above += masses[boundary];
        boundary += 1;
    }
    let mut kept = 0;
    for index in 0..candidates.len() {
        if bucket(candidates[index].0) == boundary {
            candidates.swap(index, kept);
            kept += 1;
        }
    }
    if kept == 0 { (0.0, candidates) } else { (above, &mut candidates[..kept]) }
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
