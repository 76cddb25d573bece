use super::*;
use crate::uniforms::{Key, Purpose, uniform};

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    (0..count as u32)
        .map(|position| Key { seed, request: 0, position, purpose: Purpose::Policy, index: 0 })
        .map(|key| (uniform(key) * 4.0 - 2.0) as f32)
        .collect()
}

/// A text of `committed` tokens and the rows of a draft, with keys and values of its own for each row.
#[derive(Clone)]
struct Text {
    committed: usize,
    positions: Vec<i64>,
    seen: Option<Vec<bool>>,
    window: Option<usize>,
    shape: Shape,
    query: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

const ROOM: usize = 400;

impl Text {
    fn new(committed: usize, parents: &[i32], (query_heads, key_heads, size): (usize, usize, usize)) -> Self {
        let rows = parents.len();
        let shape = Shape { rows, query_heads, key_heads, size };
        let mut seen = vec![false; rows * rows];
        let mut positions = vec![0; rows];
        for (row, &parent) in parents.iter().enumerate() {
            positions[row] = committed as i64;
            if let Ok(parent) = usize::try_from(parent) {
                positions[row] = positions[parent] + 1;
                seen.copy_within(parent * rows..(parent + 1) * rows, row * rows);
            }
            seen[row * rows + row] = true;
        }
        let elements = key_heads * ROOM * size;
        let (query, keys, values) = (numbers(rows * query_heads * size, 1), numbers(elements, 2), numbers(elements, 3));
        Self { committed, positions, seen: Some(seen), window: None, shape, query, keys, values }
    }

    fn attend(&self, path: Path, workers: Workers) -> Vec<f32> {
        let Shape { rows, query_heads, size, .. } = self.shape;
        let query = Query { data: &self.query, row_stride: query_heads * size, head_stride: size };
        let (head_stride, slot_stride) = (ROOM * size, size);
        let memory = Memory { keys: &self.keys, values: &self.values, head_stride, slot_stride };
        let visible = Visible {
            committed: self.committed,
            positions: &self.positions,
            window: self.window,
            flags: self.seen.as_deref(),
        };
        let mut out = vec![0.0; rows * query_heads * size];
        attention_by(path, query, memory, visible, self.shape, 0.3, &mut out, workers).expect("it fits");
        out
    }

    /// The text in which all that `row` sees is committed and `row` is the one new row.
    fn alone(&self, row: usize) -> Self {
        let Shape { rows, query_heads, key_heads, size } = self.shape;
        let sees = |other: usize| self.seen.as_ref().map_or(other <= row, |seen| seen[row * rows + other]);
        let slots: Vec<usize> = (0..self.committed)
            .chain((0..rows).filter(|&other| sees(other)).map(|other| self.committed + other))
            .collect();
        let mut single = self.clone();
        for head in 0..key_heads {
            for (to, from) in slots.iter().enumerate() {
                let place = |slot: usize| (head * ROOM + slot) * size..(head * ROOM + slot + 1) * size;
                single.keys[place(to)].copy_from_slice(&self.keys[place(*from)]);
                single.values[place(to)].copy_from_slice(&self.values[place(*from)]);
            }
        }
        single.committed = slots.len() - 1;
        single.positions = vec![slots.len() as i64 - 1];
        assert_eq!(single.positions[0], self.positions[row]);
        single.seen = None;
        single.shape.rows = 1;
        single.query = self.query[row * query_heads * size..(row + 1) * query_heads * size].to_vec();
        single
    }

    /// The definition, in float64.
    fn oracle(&self, row: usize, head: usize) -> Vec<f64> {
        let single = self.alone(row);
        let Shape { query_heads, key_heads, size, .. } = self.shape;
        let first = self.window.map_or(0, |window| (single.committed + 1).saturating_sub(window));
        let query = &single.query[head * size..][..size];
        let of = |data: &[f32], slot: usize| -> Vec<f64> {
            let at = (head / (query_heads / key_heads) * ROOM + slot) * size;
            data[at..at + size].iter().map(|&value| f64::from(value)).collect()
        };
        let weights: Vec<f64> = (first..=single.committed)
            .map(|slot| {
                of(&single.keys, slot).iter().zip(query).map(|(key, &query)| key * f64::from(query)).sum::<f64>() * 0.3
            })
            .map(f64::exp)
            .collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; size];
        for (slot, weight) in (first..).zip(&weights) {
            for (out, value) in out.iter_mut().zip(of(&single.values, slot)) {
                *out += weight / total * value;
            }
        }
        out
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Trees by parent, -1 for a root: one row, a chain, siblings, and two pending tokens with a bushy tree behind them.
const TREES: [&[i32]; 4] =
    [&[-1], &[-1, 0, 1, 2, 3, 4, 5, 6, 7, 8], &[-1, 0, 0, 1, 2], &[-1, 0, 1, 1, 2, 2, 3, 4, 7, 5, 1]];
const HEADS: [(usize, usize, usize); 3] = [(1, 1, 8), (6, 2, 72), (4, 4, 64)];

fn texts() -> impl Iterator<Item = Text> {
    TREES.into_iter().flat_map(|tree| {
        HEADS.into_iter().flat_map(move |heads| {
            [0, 5, 150].into_iter().flat_map(move |committed| {
                [None, Some(1), Some(3), Some(40)].map(|window| Text { window, ..Text::new(committed, tree, heads) })
            })
        })
    })
}

#[test]
fn a_row_among_others_has_the_bits_that_it_has_alone() {
    for text in texts() {
        let among = bits(&text.attend(Path::best(), Workers::Serial));
        let row_size = text.shape.query_heads * text.shape.size;
        for row in 0..text.shape.rows {
            let alone = bits(&text.alone(row).attend(Path::best(), Workers::Serial));
            assert_eq!(among[row * row_size..][..row_size], alone, "row {row} of {:?}", text.seen);
        }
    }
}

#[test]
fn paths_and_workers_agree_to_the_bit() {
    for text in texts() {
        let portable = bits(&text.attend(Path::Portable, Workers::Serial));
        assert_eq!(bits(&text.attend(Path::best(), Workers::Threads(3))), portable);
    }
    let large = Text::new(300, &std::array::from_fn::<i32, 64, _>(|row| row as i32 - 1), (6, 2, 64));
    let serial = bits(&large.attend(Path::best(), Workers::Serial));
    assert_eq!(bits(&large.attend(Path::best(), Workers::Threads(3))), serial);
}

#[test]
fn it_is_attention() {
    for text in texts() {
        let made = text.attend(Path::best(), Workers::Serial);
        let Shape { rows, query_heads, size, .. } = text.shape;
        for row in 0..rows {
            for head in 0..query_heads {
                let expected = text.oracle(row, head);
                for (found, expected) in made[(row * query_heads + head) * size..].iter().zip(expected) {
                    assert!((f64::from(*found) - expected).abs() < 2e-6, "{found} {expected}");
                }
            }
        }
    }
}

#[test]
fn without_flags_rows_are_causal() {
    let chain = Text::new(7, TREES[1], HEADS[2]);
    let causal = Text { seen: None, ..chain.clone() };
    assert_eq!(bits(&chain.attend(Path::best(), Workers::Serial)), bits(&causal.attend(Path::best(), Workers::Serial)));
}

#[test]
fn rows_see_slots_of_earlier_steps_too() {
    // All rows at once, and the last two alone behind the slots of the others.
    let whole = Text::new(9, TREES[3], HEADS[1]);
    let (rows, row_size) = (whole.shape.rows, whole.shape.query_heads * whole.shape.size);
    let mut last = whole.clone();
    last.shape.rows = 2;
    last.query = whole.query[(rows - 2) * row_size..].to_vec();
    last.seen = whole.seen.as_ref().map(|seen| seen[(rows - 2) * rows..].to_vec());
    let made = bits(&whole.attend(Path::best(), Workers::Serial));
    assert_eq!(bits(&last.attend(Path::best(), Workers::Serial)), made[(rows - 2) * row_size..]);
}

#[test]
fn a_score_without_a_value_spoils_its_head_alone() {
    let mut text = Text::new(20, &[-1, 0], (2, 1, 8));
    let usual = text.attend(Path::best(), Workers::Serial);
    text.query[8] = f32::NAN; // the second head of the first row
    let spoilt = text.attend(Path::best(), Workers::Serial);
    assert!(spoilt[8..16].iter().all(|value| value.is_nan()));
    assert_eq!((&spoilt[..8], &spoilt[16..]), (&usual[..8], &usual[16..]));
    text.query[8] = f32::INFINITY;
    assert!(text.attend(Path::best(), Workers::Serial)[8..16].iter().all(|value| value.is_nan()));
}

#[test]
fn refuses_what_does_not_fit() {
    let text = Text::new(3, &[-1, 0], (2, 1, 8));
    let query = Query { data: &text.query, row_stride: 16, head_stride: 8 };
    let memory = Memory { keys: &text.keys, values: &text.values, head_stride: ROOM * 8, slot_stride: 8 };
    let visible = Visible { committed: 3, positions: &[3, 4], window: None, flags: None };
    let call = |query, memory, visible, shape, scale| {
        let mut out = [0.0; 32];
        attention(query, memory, visible, shape, scale, &mut out, Workers::Serial).map_err(|error| error.to_string())
    };
    let fails = |result: std::result::Result<(), String>, part: &str| {
        assert!(result.as_ref().is_err_and(|text| text.contains(part)), "{result:?} does not say {part}");
    };
    let shape = text.shape;
    assert_eq!(call(query, memory, visible, shape, 1.0), Ok(()));
    fails(call(Query { data: &text.query[1..], ..query }, memory, visible, shape, 1.0), "query has 31 elements");
    fails(call(query, Memory { keys: &text.keys[..39], ..memory }, visible, shape, 1.0), "keys has 39 elements");
    fails(call(query, Memory { values: &[], ..memory }, visible, shape, 1.0), "values has 0 elements");
    fails(call(query, memory, Visible { committed: usize::MAX, ..visible }, shape, 1.0), "reaches None");
    fails(call(query, memory, Visible { positions: &[3], ..visible }, shape, 1.0), "2 new rows have 1 positions");
    fails(call(query, memory, Visible { flags: Some(&[true]), ..visible }, shape, 1.0), "2 x 2 flags, got 1");
    let blind = [true, false, true, false];
    fails(call(query, memory, Visible { flags: Some(&blind), ..visible }, shape, 1.0), "row 1 must see itself");
    let early = [true, true, true, true];
    fails(call(query, memory, Visible { flags: Some(&early), ..visible }, shape, 1.0), "row 0 must see itself");
    fails(call(query, memory, visible, Shape { size: 12, ..shape }, 1.0), "multiple of 8 elements, got 12");
    fails(call(query, memory, visible, Shape { key_heads: 0, ..shape }, 1.0), "multiple of the 0 key heads");
    fails(call(query, memory, visible, Shape { rows: 3, ..shape }, 1.0), "out has 32 elements");
    fails(call(query, memory, visible, shape, f32::NAN), "positive number, got NaN");
}
