//! Verification beside its floor, one streaming read of the rows that it must read. Throughput counts those bytes.
//!
//!     cargo bench -p specrs --bench verify
//!
//! All drafted nodes stand, so that every row is read. One request goes round several inputs, more than the cache holds,
//! so that rows come from memory. Logits are bfloat16 and resemble a language model's: a bulk, and a few hundred tokens
//! above it. `benches/verify.py` does the same through Python, beside torch and transformers.

use std::f64::consts::TAU;
use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use specrs::verify::{Batch, Coins, DraftLaw, Logits, Rule, Sampling, Verdict, draw, verify};

/// Inputs of one request: 62 MB of logits.
const INPUTS: usize = 12;
const PLAIN: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
const NUCLEUS: Sampling = Sampling { temperature: 0.8, top_p: 0.95, ..Sampling::GREEDY };

/// Random numbers from a linear congruential sequence.
struct Random(u64);

impl Random {
    /// In [0, 1).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (TAU * self.uniform()).cos()
    }

    /// One row of logits in bfloat16.
    fn row(&mut self, vocabulary: usize) -> Vec<u16> {
        let mut row: Vec<f64> = (0..vocabulary).map(|_| self.normal() * 2.5).collect();
        for _ in 0..300 {
            let token = (self.uniform() * vocabulary as f64) as usize;
            row[token] = 4.0 + 16.0 * self.uniform().powi(3);
        }
        row.into_iter().map(|logit| ((logit as f32).to_bits() >> 16) as u16).collect()
    }
}

/// The rows of some requests, each with a chain of nodes that stand at the coins.
struct Input {
    rows: Vec<Vec<u16>>,
    coins: Vec<f64>,
    row_ptr: Vec<i64>,
    parents: Vec<i32>,
}

/// What was drafted for an input, and the law of each of its rows.
struct Draft {
    tokens: Vec<u32>,
    laws: Vec<f32>,
}

impl Input {
    fn new(requests: usize, nodes: usize, vocabulary: usize, random: &mut Random) -> Self {
        let count = requests * (nodes + 1);
        Self {
            rows: (0..count).map(|_| random.row(vocabulary)).collect(),
            coins: (0..count).map(|_| random.uniform()).collect(),
            row_ptr: (0..=requests).map(|request| (request * (nodes + 1)) as i64).collect(),
            parents: (0..requests).flat_map(|_| -1..nodes as i32 - 1).collect(),
        }
    }

    fn rows(&self) -> Vec<&[u16]> {
        self.rows.iter().map(Vec::as_slice).collect()
    }

    fn bytes(&self) -> usize {
        self.rows.iter().map(|row| size_of_val(row.as_slice())).sum()
    }

    /// The floor: reads every row.
    fn read(&self) -> u16 {
        self.rows.iter().flatten().fold(0, |all, bits| all | bits)
    }

    /// Drafts what plain decoding draws at these coins.
    fn draft(&self, sampling: Sampling) -> Draft {
        let count = self.rows.len();
        let mut laws = vec![0.0; count * self.rows[0].len()];
        let drawn = draw(Logits::Bf16(&self.rows()), &vec![sampling; count], &self.coins, Some(&mut laws));
        let drawn = drawn.expect("sound logits");
        // Nothing is drafted behind a request's last node.
        let of_request = |ends: &[i64]| drawn[ends[0] as usize..ends[1] as usize - 1].to_vec();
        let tokens = self.row_ptr.windows(2).flat_map(of_request).collect();
        Draft { tokens, laws }
    }

    fn verify(&self, tokens: &[u32], sampling: Sampling, rule: &Rule<'_>) -> Verdict {
        let rows = self.rows();
        let batch = Batch::new(Logits::Bf16(&rows), &self.row_ptr, tokens, &self.parents).expect("a sound batch");
        let coins = Coins { accept: &self.coins, emit: &self.coins };
        verify(&batch, &vec![sampling; self.row_ptr.len() - 1], rule, coins).expect("sound input")
    }
}

/// Times `work` on the inputs in turn.
fn in_turn<I, R>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    bytes: usize,
    inputs: &[I],
    work: impl Fn(&I) -> R,
) {
    group.throughput(Throughput::Bytes(bytes as u64));
    let mut next = inputs.iter().cycle();
    group.bench_function(name, |bencher| bencher.iter(|| next.next().map(|input| black_box(work(input)))));
}

/// Times the rule that takes what plain decoding takes.
fn fixed(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, inputs: &[Input], sampling: Sampling) {
    let drafted: Vec<_> = inputs.iter().map(|input| (input, input.draft(sampling).tokens)).collect();
    let verdict = |(input, tokens): &(&Input, Vec<u32>)| input.verify(tokens, sampling, &Rule::GreedyOrFixed);
    assert!(drafted.iter().all(|case| verdict(case).path.len() == case.1.len()), "every node stands");
    in_turn(group, name, inputs[0].bytes(), &drafted, verdict);
}

/// Times rejection along a chain drafted from the target's own law, whose rows are read as well.
fn chain(group: &mut BenchmarkGroup<'_, WallTime>, inputs: &[Input]) {
    let drafted: Vec<_> = inputs.iter().map(|input| (input, input.draft(PLAIN))).collect();
    let vocabulary = inputs[0].rows[0].len();
    let law_rows = |draft: &Draft| draft.tokens.len() * vocabulary;
    let verdict = |(input, draft): &(&Input, Draft)| {
        let rows: Vec<&[f32]> = draft.laws[..law_rows(draft)].chunks_exact(vocabulary).collect();
        input.verify(&draft.tokens, PLAIN, &Rule::Chain(DraftLaw::Dense { rows: &rows, row_of: None }))
    };
    assert!(drafted.iter().all(|case| verdict(case).path.len() == case.1.tokens.len()), "every node stands");
    let bytes = inputs[0].bytes() + law_rows(&drafted[0].1) * size_of::<f32>();
    in_turn(group, "streaming read of logits and draft law", bytes, &drafted, |(input, draft)| {
        let law = draft.laws[..law_rows(draft)].iter().fold(0, |all, prob| all | prob.to_bits());
        (input.read(), law)
    });
    in_turn(group, "chain rejection, dense law, temperature 1", bytes, &drafted, verdict);
}

fn one_request(criterion: &mut Criterion) {
    let mut random = Random(1);
    let inputs: Vec<Input> = (0..INPUTS).map(|_| Input::new(1, 16, 151_936, &mut random)).collect();
    let mut group = criterion.benchmark_group("1 request x 16 nodes, V = 151936");
    in_turn(&mut group, "streaming read of logits", inputs[0].bytes(), &inputs, Input::read);
    fixed(&mut group, "greedy", &inputs, Sampling::GREEDY);
    fixed(&mut group, "temperature 0.8, top-p 0.95", &inputs, NUCLEUS);
    chain(&mut group, &inputs);
    group.finish();
}

fn many_requests(criterion: &mut Criterion) {
    let inputs = [Input::new(64, 8, 32_000, &mut Random(2))];
    let mut group = criterion.benchmark_group("64 requests x 8 nodes, V = 32000");
    in_turn(&mut group, "streaming read of logits by one thread", inputs[0].bytes(), &inputs, Input::read);
    fixed(&mut group, "greedy", &inputs, Sampling::GREEDY);
    fixed(&mut group, "temperature 0.8, top-p 0.95", &inputs, NUCLEUS);
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .without_plots()
        .configure_from_args();
    one_request(&mut criterion);
    many_requests(&mut criterion);
    criterion.final_summary();
}
