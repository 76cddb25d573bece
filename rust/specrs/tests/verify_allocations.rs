//! A verification allocates per call and per request, never per row.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use specrs::verify::{Batch, Coins, DraftLaw, Logits, Rule, Sampling, draw, verify};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VOCABULARY: usize = 1000;

/// Allocations of one verification of a chain of `nodes` tokens that all stand, every row the same.
fn allocations(nodes: usize, sampling: Sampling, rejection: bool) -> usize {
    let row: Vec<f32> = (0..VOCABULARY).map(|id| ((id * 7919) % 1013) as f32 / 100.0).collect();
    let rows = vec![row.as_slice(); nodes + 1];
    let coins = vec![0.25; nodes + 1];
    let mut law = vec![0.0; VOCABULARY];
    let token = draw(Logits::F32(&rows[..1]), &[sampling], &coins[..1], Some(&mut law)).expect("a law")[0];
    let (tokens, laws) = (vec![token; nodes], vec![law.as_slice(); nodes]);
    let parents: Vec<i32> = (-1..nodes as i32 - 1).collect();
    let row_ptr = [0, nodes as i64 + 1];
    let batch = Batch::new(Logits::F32(&rows), &row_ptr, &tokens, &parents).expect("a batch");
    let rule = if rejection { Rule::Chain(DraftLaw::Dense { rows: &laws, row_of: None }) } else { Rule::GreedyOrFixed };
    let before = COUNT.with(Cell::get);
    let verdict = verify(&batch, &[sampling], &rule, Coins { accept: &coins, emit: &coins }).expect("a verdict");
    let after = COUNT.with(Cell::get);
    assert_eq!(verdict.path.len(), nodes);
    after - before
}

#[test]
fn rows_cost_no_allocation() {
    let plain = Sampling { temperature: 0.8, ..Sampling::GREEDY };
    for sampling in [
        Sampling::GREEDY,
        plain,
        Sampling { top_p: 0.95, ..plain },
        Sampling { top_k: 40, ..plain },
        Sampling { top_k: 40, top_p: 0.9, min_p: 0.05, ..plain },
        Sampling { min_p: 0.1, ..plain },
    ] {
        for rejection in [false, true] {
            let few = allocations(2, sampling, rejection);
            assert!(few > 0, "the counter counts");
            assert_eq!(few, allocations(200, sampling, rejection), "{sampling:?}, rejection {rejection}");
        }
    }
}
