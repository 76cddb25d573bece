//! How much of a batch's drafts to score.

use super::times::StepTimes;
use crate::draft::StepDrafts;
use crate::policy::allocate;

/// Bins of stated confidence, and of the match that a draft rests on: shorter than each bound, or longer than all.
const CONFIDENCES: usize = 16;
const MATCHES: [i32; 5] = [2, 4, 8, 16, 32];
const BINS: usize = CONFIDENCES * (MATCHES.len() + 1);
/// Observations that the stated confidence counts for, in each bin, before it is outweighed.
const PRIOR: f64 = 4.0;
/// Share of its weight that the past of a bin keeps at each new step that it takes part in.
const MEMORY: f64 = 1.0 - 1.0 / 128.0;
/// Largest rate of acceptance that is believed.
const SUREST: f64 = 0.999;
/// Share by which drafting must beat a plain step, so that noise does not tip the scales.
const MARGIN: f64 = 0.03;
/// Steps of plain decoding after which a short draft is tried, in case the times were wrong, and its length.
const PROBE_EVERY: u32 = 40;
const PROBE_NODES: usize = 3;
/// Expected acceptance that a probe's first token must have.
const PROBE_LEAST: f32 = 0.5;

/// Cuts the drafts of a batch where one more token costs more time than it is expected to bring.
///
/// The tokens that stay are those of the largest survival, as many as make (B + their sum) / T(B + their count) largest,
/// T being the time of a step ([`allocate`]). Zero is among the choices. Survival is the product of confidences,
/// calibrated by what was accepted, by stated confidence and length of the match. Drafts are chains.
#[derive(Clone, Debug)]
pub struct PayoffGate {
    /// What a step takes.
    pub times: StepTimes,
    seen: [f64; BINS],
    hits: [f64; BINS],
    plain_steps: u32,
    survival: Vec<f32>,
    open: Vec<bool>,
    kept: Vec<bool>,
}

impl PayoffGate {
    /// A gate that has seen nothing; `token_cost` as for [`StepTimes::new`].
    pub fn new(token_cost: f64) -> Self {
        let stated = |bin: usize| PRIOR * ((bin % CONFIDENCES) as f64 + 0.5) / CONFIDENCES as f64;
        Self {
            times: StepTimes::new(token_cost),
            seen: [PRIOR; BINS],
            hits: std::array::from_fn(stated),
            plain_steps: 0,
            survival: Vec::new(),
            open: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// How many tokens of each draft to score.
    pub fn cut(&mut self, drafts: &StepDrafts) -> Vec<usize> {
        let batch = drafts.match_lengths.len();
        self.survival.clear();
        for row in 0..batch {
            let mut survival = 1.0;
            for &confidence in &drafts.nodes.confidence[nodes(drafts, row)] {
                let bin = bin(confidence, drafts.match_lengths[row]);
                survival *= (self.hits[bin] / self.seen[bin]).min(SUREST);
                self.survival.push(survival as f32);
            }
        }
        let drafted = self.survival.len();
        self.kept.clear();
        self.kept.resize(drafted, false);
        self.open.clear();
        self.open.resize(drafted, true);
        let seconds = self.times.run(batch, drafted + 1);
        allocate(&self.survival, &self.open, &mut self.kept, batch as f64, seconds, None, MARGIN);
        if drafted > 0 {
            self.probe();
        }
        (0..batch).map(|row| self.kept[nodes(drafts, row)].iter().filter(|&&kept| kept).count()).collect()
    }

    /// Tries the likeliest tokens when nothing was worth it for long.
    fn probe(&mut self) {
        self.plain_steps = if self.kept.contains(&true) { 0 } else { self.plain_steps + 1 };
        let likeliest = self.survival.iter().copied().fold(0.0, f32::max);
        if self.plain_steps >= PROBE_EVERY && likeliest > PROBE_LEAST {
            self.plain_steps = 0;
            // As if every number of tokens but that one took for ever.
            let most = PROBE_NODES.min(self.survival.len());
            let seconds: Vec<f64> = (0..=most).map(|count| if count == most { 1.0 } else { f64::INFINITY }).collect();
            allocate(&self.survival, &self.open, &mut self.kept, 1.0, &seconds, None, 0.0);
        }
    }

    /// Learns from drafts, scored or not, by the tokens that followed them: `following(row)` is what is known of those.
    pub fn learn<'a>(&mut self, drafts: &StepDrafts, following: impl Fn(usize) -> &'a [i32]) {
        let (mut seen, mut hits) = ([0.0; BINS], [0.0; BINS]);
        for row in 0..drafts.match_lengths.len() {
            // A token is put to the test if all before it were hits.
            for (node, &came) in nodes(drafts, row).zip(following(row)) {
                let bin = bin(drafts.nodes.confidence[node], drafts.match_lengths[row]);
                seen[bin] += 1.0;
                if i64::from(drafts.nodes.tokens[node]) != i64::from(came) {
                    break;
                }
                hits[bin] += 1.0;
            }
        }
        for bin in (0..BINS).filter(|&bin| seen[bin] > 0.0) {
            self.seen[bin] = self.seen[bin] * MEMORY + seen[bin];
            self.hits[bin] = self.hits[bin] * MEMORY + hits[bin];
        }
    }
}

fn nodes(drafts: &StepDrafts, row: usize) -> std::ops::Range<usize> {
    drafts.row_ptr[row] as usize..drafts.row_ptr[row + 1] as usize
}

fn bin(confidence: f32, match_length: i32) -> usize {
    let stated = ((confidence * CONFIDENCES as f32) as usize).min(CONFIDENCES - 1);
    MATCHES.partition_point(|&bound| bound <= match_length) * CONFIDENCES + stated
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Draft;

    /// Chains of the given confidences, each with its match; tokens are 1, 2, 3, …
    fn drafts(rows: &[(&[f32], i32)]) -> StepDrafts {
        let mut made = StepDrafts { row_ptr: vec![0], ..StepDrafts::default() };
        for &(confidence, match_length) in rows {
            let n = confidence.len() as i32;
            let one = Draft {
                tokens: (1..=n as u32).collect(),
                parents: (-1..n - 1).collect(),
                depths: (1..=n).collect(),
                confidence: confidence.to_vec(),
                ..Draft::default()
            };
            made.nodes.tokens.extend(one.tokens);
            made.nodes.confidence.extend(one.confidence);
            made.row_ptr.push(made.nodes.tokens.len() as i64);
            made.match_lengths.push(match_length);
        }
        made
    }

    #[test]
    fn what_does_not_pay_is_cut() {
        let mut gate = PayoffGate::new(0.02);
        for rows in [1, 2, 4, 8, 16, 32] {
            for _ in 0..20 {
                gate.times.observe(rows, 0.1 * rows as f64); // a row costs as much as a plain step
            }
        }
        assert_eq!(gate.cut(&drafts(&[(&[0.8; 8], 4), (&[0.8; 8], 4)])), [0, 0]);
        assert_eq!(PayoffGate::new(0.001).cut(&drafts(&[(&[0.8; 8], 4), (&[0.8; 5], 4)])), [8, 5]);
        let mixed = PayoffGate::new(0.15).cut(&drafts(&[(&[0.95; 8], 40), (&[0.2; 8], 2)]));
        assert!(mixed[0] > 2 && mixed[1] == 0, "the likely one is kept: {mixed:?}");
        assert_eq!(PayoffGate::new(0.1).cut(&drafts(&[(&[], 0), (&[], 0)])), [0, 0]);
        assert_eq!(PayoffGate::new(0.1).cut(&drafts(&[])), [0; 0]);
    }

    #[test]
    fn acceptance_is_learnt_and_drafting_comes_back() {
        let mut gate = PayoffGate::new(0.05);
        let one = drafts(&[(&[0.9; 4], 3)]);
        for _ in 0..60 {
            gate.learn(&one, |_| &[9, 9, 9, 9]);
        }
        assert_eq!(gate.cut(&one), [0]);
        for _ in 0..200 {
            gate.learn(&one, |_| &[1]); // drafts that are not scored are labelled all the same, by what came
        }
        assert!(gate.cut(&one)[0] > 0);
    }

    #[test]
    fn plain_steps_end_with_a_trial_where_the_draft_is_likely() {
        for (confidence, tried) in [(0.8, 3), (0.4, 0)] {
            let mut gate = PayoffGate::new(5.0);
            let one = drafts(&[(&[confidence; 6], 3)]);
            for _ in 1..PROBE_EVERY {
                assert_eq!(gate.cut(&one), [0]);
            }
            assert_eq!(gate.cut(&one), [tried]);
        }
    }
}
