// Finding a cut in one row by radix selection: the k-th largest logit, or the logit at which the mass above reaches a
// goal. One block per row; three passes of 11 bits over order-preserving keys.
//
// Histograms hold integers (counts, and masses in units of 2^-40), so their sums do not depend on the order of the
// atomics and a cut is bitwise the same in every run. The mass error is below vocabulary * 2^-41 of the largest weight.
#pragma once
#include "block.h"
#include "law.h"
#include "tile.h"

namespace specrs {

constexpr int SELECT_BINS = 2048;
constexpr float MASS_UNIT = 1099511627776.f;  // 2^40

struct SelectScratch {
  unsigned long long mass[SELECT_BINS];
  unsigned count[SELECT_BINS];
  unsigned long long above_mass;
  unsigned long long above_count, ties;
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

// What was selected: the key, how much lies strictly above it, and how many elements have it.
struct Selected {
  unsigned key;
  unsigned long long count_above, mass_above;
  unsigned long long ties;
  unsigned long long goal;  // elements or mass that had to be reached
};

__device__ __forceinline__ unsigned long long fixed_mass(float weight) { return (unsigned long long)(weight * MASS_UNIT); }

// Descends to the key where, counted from the top, `goal_count` elements are reached (by_mass false) or the mass
// reaches `share` of the total (by_mass true). Elements below `floor_key` and the id `exclude` take no part.
// All threads of the block must call it; at least one element must take part.
template <class T>
__device__ Selected select_from_top(const Tile<T>& row, const RowLaw& law, unsigned floor_key, int exclude, bool by_mass,
                                    unsigned long long goal_count, double share, SelectScratch& s, BlockScratch& scratch) {
  constexpr int SHIFT[3] = {21, 10, 0};
  constexpr int BITS[3] = {11, 11, 10};
  constexpr int BINS_PER_THREAD = SELECT_BINS / TILE_THREADS;
  unsigned prefix = 0, prefix_mask = 0;
  Selected r{0, 0, 0, 0, goal_count};
#pragma unroll
  for (int pass = 0; pass < 3; pass++) {
    const unsigned bin_mask = (1u << BITS[pass]) - 1;
    for (int i = threadIdx.x; i < SELECT_BINS; i += TILE_THREADS) {
      s.mass[i] = 0;
      s.count[i] = 0;
    }
    __syncthreads();
    const int tiles = tile_count(row.vocab);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++)
#pragma unroll 1
      for (int j = 0; j < Tile<T>::CHUNKS; j++) {
        float l[Tile<T>::WIDTH];
        row.load(tile, j, l);
        const int first = row.first_id(tile, j);
#pragma unroll
        for (int e = 0; e < Tile<T>::WIDTH; e++) {
          const int id = first + e;
          const unsigned key = order_key(l[e]);
          if (id < 0 || id >= row.vocab || id == exclude || key < floor_key || (key & prefix_mask) != prefix) continue;
          const int bin = int(key >> SHIFT[pass] & bin_mask);
          atomicAdd(&s.count[bin], 1u);
          if (by_mass) atomicAdd(&s.mass[bin], fixed_mass(exp2_nonpositive((l[e] - law.max) * law.rate)));
        }
      }
    __syncthreads();
    // Thread t holds the bins from the top: 0 the highest eight, and so on.
    const int top = SELECT_BINS - 1 - int(threadIdx.x) * BINS_PER_THREAD;
    unsigned long long count = 0, mass = 0, all_count, all_mass;
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++) {
      count += s.count[top - i];
      mass += s.mass[top - i];
    }
    unsigned long long above_count = r.count_above + block_scan(count, scratch.word, all_count);
    unsigned long long above_mass = r.mass_above + block_scan(mass, scratch.word, all_mass);
    if (pass == 0) {
      if (by_mass) r.goal = (unsigned long long)(share * double(all_mass));
      const unsigned long long reachable = by_mass ? all_mass : all_count;
      r.goal = r.goal > reachable ? reachable : r.goal;
      r.goal = r.goal ? r.goal : 1;
    }
    const unsigned long long above = by_mass ? above_mass : above_count;
    if (above < r.goal && r.goal <= above + (by_mass ? mass : count)) {
      for (int i = 0; i < BINS_PER_THREAD; i++) {
        const unsigned long long next_count = above_count + s.count[top - i], next_mass = above_mass + s.mass[top - i];
        if ((by_mass ? next_mass : next_count) >= r.goal) {
          s.bin = top - i;
          s.above_count = above_count;
          s.above_mass = above_mass;
          s.ties = s.count[top - i];
          break;
        }
        above_count = next_count;
        above_mass = next_mass;
      }
    }
    __syncthreads();
    prefix |= unsigned(s.bin) << SHIFT[pass];
    prefix_mask |= bin_mask << SHIFT[pass];
    r.count_above = s.above_count;
    r.mass_above = s.above_mass;
    r.ties = s.ties;
    __syncthreads();
  }
  r.key = prefix;
  return r;
}

// The id of the `wanted`-th element with key `key`, counted from the lowest id (1 is the first).
// All threads of the block must call it.
template <class T>
__device__ int nth_tie(const Tile<T>& row, unsigned key, int exclude, unsigned long long wanted, SelectScratch& s, BlockScratch& scratch) {
  unsigned long long before = 0;
  if (threadIdx.x == 0) s.tie_id = 0;
  __syncthreads();
  const int tiles = tile_count(row.vocab);
  for (int tile = 0; tile < tiles; tile++)
#pragma unroll 1
    for (int j = 0; j < Tile<T>::CHUNKS; j++) {
      float l[Tile<T>::WIDTH];
      row.load(tile, j, l);
      const int first = row.first_id(tile, j);
      unsigned long long mine = 0;
#pragma unroll
      for (int e = 0; e < Tile<T>::WIDTH; e++) {
        const int id = first + e;
        mine += id >= 0 && id < row.vocab && id != exclude && order_key(l[e]) == key;
      }
      unsigned long long total;
      const unsigned long long below = before + block_scan(mine, scratch.word, total);
      if (below < wanted && wanted <= below + mine) {
        unsigned long long seen = below;
#pragma unroll
        for (int e = 0; e < Tile<T>::WIDTH; e++) {
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
