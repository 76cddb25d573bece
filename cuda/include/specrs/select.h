// Finding a cut in one row by radix selection: the k-th largest logit, or the logit at which the mass above reaches a
// goal. One block per row; three passes of 11 bits over order-preserving keys. A row is a Tile, or the Leaders of one.
//
// A histogram holds integers, elements or masses in units of 2^-40, so its sums do not depend on the order of the atomics
// and a cut is bitwise the same in every run. The mass error is below vocabulary * 2^-40 of the largest weight.
// Shared memory adds words of 32 bits; one of 64 would be a loop of compare-and-swap on the few bins that most logits of a
// row share. So a bin is a low word, whose additions carry, and a high word, which few of them reach: a weight below 2^-8
// of the largest touches it by a carry alone. Neighbouring lanes take different copies of the low word, 8 banks apart.
#pragma once
#include "block.h"
#include "law.h"
#include "tile.h"

namespace specrs {

constexpr int SELECT_BINS = 2048, SELECT_COPIES = 4, SELECT_PITCH = SELECT_BINS + 8;
constexpr int MASS_BITS = 40;

struct SelectScratch {
  unsigned low[SELECT_COPIES][SELECT_PITCH];
  unsigned high[SELECT_BINS];
  unsigned long long above, within;
  int bin;
  int tie_id;
};

// Orders as the floats do; -0 and +0 get one key.
__device__ __forceinline__ unsigned order_key(float x) {
  const unsigned u = __float_as_uint(x == 0.f ? 0.f : x);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float key_value(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// What was selected: the key, how much lies strictly above it, how much the elements with it are, and what had to be
// reached; in elements, or in units of mass. Without `reached` all that take part are less than the goal was.
struct Selected {
  unsigned key;
  unsigned long long above, within, goal;
  bool reached;
};

// weight * 2^40 without its fraction, for a weight of at most 1 that is not subnormal: shifts, because a conversion to 64
// bits runs at 1/64 of the rate of an addition on several targets.
__device__ __forceinline__ unsigned long long fixed_mass(float weight) {
  const unsigned bits = __float_as_uint(weight);
  const unsigned long long fraction = (bits & 0x7fffffu) | 0x800000u;  // weight = fraction * 2^(exponent - 150)
  const int shift = int(bits >> 23) - 150 + MASS_BITS;
  if (shift >= 0) return fraction << shift;
  return shift > -24 ? fraction >> -shift : 0;
}

__device__ __forceinline__ void add_to_bin(SelectScratch& s, int bin, unsigned long long amount) {
  const unsigned low = unsigned(amount);
  const unsigned carry = atomicAdd(&s.low[threadIdx.x % SELECT_COPIES][bin], low) + low < low;
  const unsigned high = unsigned(amount >> 32) + carry;
  if (high) atomicAdd(&s.high[bin], high);
}

__device__ __forceinline__ unsigned long long bin_sum(const SelectScratch& s, int bin) {
  unsigned long long sum = (unsigned long long)(s.high[bin]) << 32;
#pragma unroll
  for (int copy = 0; copy < SELECT_COPIES; copy++) sum += s.low[copy][bin];
  return sum;
}

// Descends to the key where, counted from the top, `goal` is reached: elements (by_mass false) or units of mass; a goal of
// no mass is `share` of all that takes part. Elements below `floor_key` and the id `exclude` take no part.
// All threads of the block must call it; where no element takes part, by mass none of positive weight, the key is 0.
template <class Row>
__device__ Selected select_from_top(const Row& row, const RowLaw& law, unsigned floor_key, int exclude, bool by_mass,
                                    unsigned long long goal, double share, SelectScratch& s, BlockScratch& scratch) {
  constexpr int SHIFT[3] = {21, 10, 0};
  constexpr int BITS[3] = {11, 11, 10};
  constexpr int BINS_PER_THREAD = SELECT_BINS / TILE_THREADS;
  unsigned prefix = 0, prefix_mask = 0;
  Selected r{0, 0, 0, goal, true};
#pragma unroll
  for (int pass = 0; pass < 3; pass++) {
    const unsigned bin_mask = (1u << BITS[pass]) - 1;
    for (int i = threadIdx.x; i < SELECT_BINS; i += TILE_THREADS) {
#pragma unroll
      for (int copy = 0; copy < SELECT_COPIES; copy++) s.low[copy][i] = 0;
      s.high[i] = 0;
    }
    __syncthreads();
    const int tiles = tile_count(row.vocab);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++)
#pragma unroll 1
      for (int j = 0; j < Row::CHUNKS; j++) {
        float l[Row::WIDTH];
        row.load(tile, j, l);
        const int first = row.first_id(tile, j);
#pragma unroll
        for (int e = 0; e < Row::WIDTH; e++) {
          const int id = first + e;
          const unsigned key = order_key(l[e]);
          if (id < 0 || id >= row.vocab || id == exclude || key < floor_key || (key & prefix_mask) != prefix) continue;
          add_to_bin(s, int(key >> SHIFT[pass] & bin_mask),
                     by_mass ? fixed_mass(exp2_nonpositive((l[e] - law.max) * law.rate)) : 1);
        }
      }
    __syncthreads();
    // Thread t holds the bins from the top: 0 the highest eight, and so on.
    const int top = SELECT_BINS - 1 - int(threadIdx.x) * BINS_PER_THREAD;
    unsigned long long bins = 0, all;
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++) bins += bin_sum(s, top - i);
    unsigned long long above = r.above + block_scan(bins, scratch.word, all);
    if (pass == 0) {
      if (by_mass && !r.goal) r.goal = (unsigned long long)(share * double(all));
      r.goal = r.goal ? r.goal : 1;
      r.reached = r.goal <= all;
      if (!all) return r;
      r.goal = r.reached ? r.goal : all;
    }
    if (above < r.goal && r.goal <= above + bins) {
      for (int i = 0; i < BINS_PER_THREAD; i++) {
        const unsigned long long within = bin_sum(s, top - i);
        if (above + within >= r.goal) {
          s.bin = top - i;
          s.above = above;
          s.within = within;
          break;
        }
        above += within;
      }
    }
    __syncthreads();
    prefix |= unsigned(s.bin) << SHIFT[pass];
    prefix_mask |= bin_mask << SHIFT[pass];
    r.above = s.above;
    r.within = s.within;
    __syncthreads();
  }
  r.key = prefix;
  return r;
}

// The id of the `wanted`-th element with key `key`, counted from the lowest id (1 is the first).
// All threads of the block must call it.
template <class Row>
__device__ int nth_tie(const Row& row, unsigned key, int exclude, unsigned long long wanted, SelectScratch& s, BlockScratch& scratch) {
  unsigned long long before = 0;
  if (threadIdx.x == 0) s.tie_id = 0;
  __syncthreads();
  const int tiles = tile_count(row.vocab);
  for (int tile = 0; tile < tiles; tile++)
#pragma unroll 1
    for (int j = 0; j < Row::CHUNKS; j++) {
      float l[Row::WIDTH];
      row.load(tile, j, l);
      const int first = row.first_id(tile, j);
      unsigned long long mine = 0;
#pragma unroll
      for (int e = 0; e < Row::WIDTH; e++) {
        const int id = first + e;
        mine += id >= 0 && id < row.vocab && id != exclude && order_key(l[e]) == key;
      }
      unsigned long long total;
      const unsigned long long below = before + block_scan(mine, scratch.word, total);
      if (below < wanted && wanted <= below + mine) {
        unsigned long long seen = below;
#pragma unroll
        for (int e = 0; e < Row::WIDTH; e++) {
          const int id = first + e;
          if (id >= 0 && id < row.vocab && id != exclude && order_key(l[e]) == key && ++seen == wanted) s.tie_id = id;
        }
      }
      before += total;
    }
  __syncthreads();
  const int id = s.tie_id;
  __syncthreads();
  return id;
}

}  // namespace specrs
