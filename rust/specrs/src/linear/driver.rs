//! Cuts a product into chunks of weight rows for the workers, and a chunk into tiles for a path.
//!
//! Nothing here touches the order of accumulation: blocks of inputs carry their partial sums on, so the cuts are free to
//! follow the caches.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Shape;
use super::element::Element;
use super::kernel::{BLOCK_ROWS, GROUP, Kernel, Lanes, TileCall};
use crate::workers::Workers;

/// The most weight rows of a chunk: enough to use the packed rows well.
const CHUNK: usize = 48;
/// The least: a multiple of every block size.
const SMALL_CHUNK: usize = 12;
/// Chunks to aim for, so that the workers finish together.
const CHUNKS: usize = 16;
/// Bytes of packed rows that one pass over inputs keeps in the first-level cache.
const NEAR_BYTES: usize = 16 << 10;
/// Weight bytes below which waking the other workers costs more than it saves.
const ALONE_BYTES: usize = 64 << 10;

thread_local! {
    /// Packed rows (the caller's thread) and partial sums (each worker), kept from call to call.
    static PACKED: RefCell<Vec<Lanes>> = const { RefCell::new(Vec::new()) };
    static SUMS: RefCell<Vec<Lanes>> = const { RefCell::new(Vec::new()) };
}

/// A run of rows that the leaf routine takes at once.
#[derive(Clone, Copy)]
struct RowTile {
    start: usize,
    rows: usize,
}

/// What all workers share. The pointers outlive the call, and chunks write disjoint columns of `out`.
struct Job<'a, E: Element> {
    kernel: &'a Kernel<E>,
    shape: Shape,
    tiles: &'a [RowTile],
    packed: *const f32,
    weight: *const E,
    bias: *const E,
    out: *mut E,
    /// Groups that lie whole in a weight row.
    whole_groups: usize,
    /// Groups of one pass over the inputs.
    pass_groups: usize,
}

// SAFETY: shared inputs are only read, and each column of `out` is written by the one worker that took its chunk.
unsafe impl<E: Element> Sync for Job<'_, E> {}

/// Runs a checked product. Slices have the lengths of `shape`; there is at least one row and one output.
pub fn run<E: Element>(
    kernel: &Kernel<E>,
    x: &[E],
    weight: &[E],
    bias: Option<&[E]>,
    out: &mut [E],
    shape: Shape,
    workers: Workers,
) {
    let Shape { rows, inputs, outputs } = shape;
    let tiles = row_tiles(rows, kernel.tile_rows);
    let groups = inputs.div_ceil(GROUP);
    let longest = NEAR_BYTES / (tiles[0].rows * GROUP * size_of::<f32>());
    PACKED.with_borrow_mut(|packed| {
        let needed = rows * groups * 2;
        if packed.len() < needed {
            packed.resize(needed, Lanes::default());
        }
        let packed = packed.as_mut_ptr().cast::<f32>();
        for tile in &tiles {
            // SAFETY: the tile's rows are rows of `x`, and `packed` holds rows × groups × 16 values.
            unsafe {
                let to = packed.add(tile.start * groups * GROUP);
                (kernel.pack)(x.as_ptr().add(tile.start * inputs), tile.rows, inputs, to);
            }
        }
        let job = Job {
            kernel,
            shape,
            tiles: &tiles,
            packed,
            weight: weight.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[E]>::as_ptr),
            out: out.as_mut_ptr(),
            whole_groups: inputs / GROUP,
            pass_groups: groups.div_ceil(groups.div_ceil(longest).max(1)).max(1),
        };
        let most = (outputs / CHUNKS / SMALL_CHUNK * SMALL_CHUNK).clamp(SMALL_CHUNK, CHUNK);
        let next = AtomicUsize::new(0);
        let work = || {
            SUMS.with_borrow_mut(|sums| {
                let needed = most * rows;
                if sums.len() < needed {
                    sums.resize(needed, Lanes::default());
                }
                let mut start = next.fetch_add(most, Ordering::Relaxed);
                while start < outputs {
                    let then = next.fetch_add(most, Ordering::Relaxed);
                    // SAFETY: the job's pointers match its shape, and `sums` holds `most` × rows partial sums.
                    unsafe { job.chunk(start, most.min(outputs - start), then, sums.as_mut_ptr()) }
                    start = then;
                }
            });
        };
        if size_of_val(weight) < ALONE_BYTES { Workers::Serial.run(&work) } else { workers.run(&work) }
    });
}

/// Cuts `rows` into the fewest tiles of at most `most` rows, as even as can be, larger ones first.
fn row_tiles(rows: usize, most: usize) -> Vec<RowTile> {
    let count = rows.div_ceil(most);
    let mut start = 0;
    (0..count)
        .map(|index| {
            let tile = RowTile { start, rows: (rows - start).div_ceil(count - index) };
            start += tile.rows;
            tile
        })
        .collect()
}

impl<E: Element> Job<'_, E> {
    /// Outputs `start .. start + count` of all rows, with an eye on the chunk from `then` on.
    ///
    /// # Safety
    ///
    /// The job's pointers match its shape, and `sums` is valid for `count * rows` partial sums.
    unsafe fn chunk(&self, start: usize, count: usize, then: usize, sums: *mut Lanes) {
        let Shape { inputs, outputs, .. } = self.shape;
        let groups = inputs.div_ceil(GROUP);
        // SAFETY: rows `start .. start + count` exist.
        let weight = unsafe { self.weight.add(start * inputs) };
        let mut from = 0;
        while from == 0 || from < self.whole_groups {
            let to = (from + self.pass_groups).min(self.whole_groups);
            // Elements from a weight of this pass to the same place of the worker's next pass.
            let next_pass = if to < self.whole_groups {
                (to - from) * GROUP
            } else if then < outputs {
                (then - start) * inputs - from * GROUP
            } else {
                0
            };
            for (index, tile) in self.tiles.iter().enumerate() {
                let most = self.kernel.block_rows[tile.rows - 1];
                for row in (0..count).step_by(most) {
                    let block = (count - row).min(most);
                    // One tile reads each weight once and wants the next block; several share the fetching of the next
                    // pass evenly, so that memory is busy during all of them.
                    let ahead = match self.tiles.len() {
                        1 => block * inputs,
                        tiles if row / most % tiles == index => next_pass,
                        _ => 0,
                    };
                    // SAFETY: the block and the groups lie within the weight, the tile's packed rows and its sums.
                    unsafe {
                        let call = TileCall {
                            weight: weight.add(row * inputs + from * GROUP),
                            stride: inputs,
                            x: self.packed.add((tile.start * groups + from * tile.rows) * GROUP),
                            groups: to - from,
                            sums: sums.add(tile.start * count + row * tile.rows),
                            first: from == 0,
                            ahead: ahead * size_of::<E>(),
                        };
                        (self.kernel.tile[block - 1][tile.rows - 1])(&call);
                    }
                }
            }
            from = to.max(1);
        }
        if self.whole_groups < groups {
            // SAFETY: as above.
            unsafe { self.tail(weight, count, sums) }
        }
        for tile in self.tiles {
            for row in 0..tile.rows {
                // SAFETY: the tile's sums lie by weight row, then row; the columns of `out` and `bias` exist.
                unsafe {
                    let sums = sums.add(tile.start * count + row);
                    let bias = if self.bias.is_null() { self.bias } else { self.bias.add(start) };
                    let out = self.out.add((tile.start + row) * outputs + start);
                    (self.kernel.finish)(sums, tile.rows, count, bias, out);
                }
            }
        }
    }

    /// The last group of inputs, padded with zeros.
    ///
    /// # Safety
    ///
    /// As [`Job::chunk`], whose weight rows start at `weight`.
    unsafe fn tail(&self, weight: *const E, count: usize, sums: *mut Lanes) {
        let inputs = self.shape.inputs;
        let groups = self.whole_groups + 1;
        let done = self.whole_groups * GROUP;
        let mut padded = [E::default(); BLOCK_ROWS * GROUP];
        for tile in self.tiles {
            for row in (0..count).step_by(self.kernel.block_rows[tile.rows - 1]) {
                let block = (count - row).min(self.kernel.block_rows[tile.rows - 1]);
                // SAFETY: the last `inputs - done` elements of each row of the block exist.
                unsafe {
                    for index in 0..block {
                        let from = weight.add((row + index) * inputs + done);
                        from.copy_to_nonoverlapping(padded[index * GROUP..].as_mut_ptr(), inputs - done);
                    }
                    let call = TileCall {
                        weight: padded.as_ptr(),
                        stride: GROUP,
                        x: self.packed.add((tile.start * groups + self.whole_groups * tile.rows) * GROUP),
                        groups: 1,
                        sums: sums.add(tile.start * count + row * tile.rows),
                        first: false,
                        ahead: 0,
                    };
                    (self.kernel.tile[block - 1][tile.rows - 1])(&call);
                }
            }
        }
    }
}
