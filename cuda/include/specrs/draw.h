// Drawing one id from a row by inverse cumulative law: ids ascending, the first whose running sum passes coin * total.
//
// The weights are those of a draw site: max(0, target_scale * p(y) - draft_scale * q(y)), without one excluded id. This
// covers every rule we have: p itself (1, 0), the residual of rejection (1, 1), of block verification (c, 1), and of a
// rejected one-hot draft (1, 0, without it). Sums per tile come first, in a launch of their own that fills the device;
// the draw then reads a single tile again.
#pragma once
#include "block.h"
#include "law.h"
#include "tile.h"

namespace specrs {

struct DrawSite {
  long long row;       // target row; negative: the site is idle
  long long draft_row; // row of the dense draft law, or of the sparse one; negative: q = 0
  float target_scale;
  float draft_scale;
  int exclude;  // an id with weight 0, or -1; with a target scale of 0, the id that is taken whatever the coin
  int status;
};
__device__ __forceinline__ DrawSite whole_law(long long row, int status) { return DrawSite{row, -1, 1.f, 0.f, -1, status}; }
__device__ __forceinline__ DrawSite taken(long long row, int id) { return DrawSite{row, -1, 0.f, 0.f, id, 0}; }
__device__ __forceinline__ bool is_taken(const DrawSite& site) { return site.target_scale == 0.f && site.exclude >= 0; }
static_assert(sizeof(DrawSite) == 32, "one site is 8 words, see ops");

// Draft laws: none or one-hot (both null), dense rows of float32, or (ids, probabilities) lists of equal length.
struct DraftLaw {
  const float* dense;
  const long long* sparse_ids;
  const float* sparse_probs;
  int width;  // vocabulary of dense rows, entries of sparse ones
  const long long* row_of = nullptr;  // row of each node's law; without it every node has its own
  long long rows = 0;                 // how many there are, where row_of names them
};

// The row of a node's law; -1, where every probability is 0, if row_of names none.
__device__ __forceinline__ long long draft_row(const DraftLaw& draft, long long node) {
  if (!draft.row_of) return node;
  const long long row = draft.row_of[node];
  return row >= 0 && row < draft.rows ? row : -1;
}

// q(id): the first entry that names the id, 0 where none does. Ids below 0 pad a list.
__device__ __forceinline__ float draft_prob(const DraftLaw& draft, long long row, int id) {
  if (row < 0) return 0.f;
  if (draft.dense) return id < draft.width ? draft.dense[row_offset(row, draft.width) + id] : 0.f;
  if (!draft.sparse_ids) return 0.f;
  for (int i = 0; i < draft.width; i++)
    if (draft.sparse_ids[row_offset(row, draft.width) + i] == id) return draft.sparse_probs[row_offset(row, draft.width) + i];
  return 0.f;
}

// The draft probabilities of one chunk, 0 outside the row.
template <int WIDTH>
__device__ __forceinline__ void draft_chunk(const DraftLaw& draft, long long row, int first, float (&q)[WIDTH]) {
#pragma unroll
  for (int e = 0; e < WIDTH; e++) q[e] = 0.f;
  if (draft.dense) {
    const float* probs = draft.dense + row_offset(row, draft.width);
    if (first >= 0 && first + WIDTH <= draft.width && reinterpret_cast<uintptr_t>(probs + first) % 16 == 0) {
#pragma unroll
      for (int e = 0; e < WIDTH; e += 4) {
        const Chunk c = load_chunk(probs + first + e);
#pragma unroll
        for (int i = 0; i < 4; i++) q[e + i] = __uint_as_float(c.word[i]);
      }
    } else {
#pragma unroll
      for (int e = 0; e < WIDTH; e++)
        if (first + e >= 0 && first + e < draft.width) q[e] = probs[first + e];
    }
  } else if (draft.sparse_ids) {
    // Backwards, so that the first entry that names an id wins.
    for (int i = draft.width - 1; i >= 0; i--) {
      const long long at = draft.sparse_ids[row_offset(row, draft.width) + i] - first;
      if (at < 0 || at >= WIDTH) continue;
      const float prob = draft.sparse_probs[row_offset(row, draft.width) + i];
#pragma unroll
      for (int e = 0; e < WIDTH; e++)
        if (e == int(at)) q[e] = prob;
    }
  }
}

// A probability, with room for the rounding of a sum.
__device__ __forceinline__ bool is_prob(float q) { return q >= 0.f && q <= 1.001f; }

// Weights of one thread's chunk. A draft probability that is no probability makes the weight NaN, which the sums carry.
template <class T>
__device__ __forceinline__ void site_weights(const Tile<T>& row, const RowLaw& law, const DrawSite& site, const DraftLaw& draft,
                                             int tile, int j, float (&w)[Tile<T>::WIDTH]) {
  constexpr int WIDTH = Tile<T>::WIDTH;
  float l[WIDTH], q[WIDTH];
  row.load(tile, j, l);
  const int first = row.first_id(tile, j);
  const bool subtract = site.draft_scale != 0.f && site.draft_row >= 0;
  if (subtract) draft_chunk(draft, site.draft_row, first, q);
#pragma unroll
  for (int e = 0; e < WIDTH; e++) {
    const int id = first + e;
    const bool inside = id >= 0 && id < row.vocab && id != site.exclude;
    float weight = inside ? site.target_scale * law_prob(law, id, l[e]) : 0.f;
    if (subtract && inside) {
      const float rest = weight - site.draft_scale * q[e];
      weight = is_prob(q[e]) ? (rest > 0.f ? rest : 0.f) : __uint_as_float(0x7fc00000u);
    }
    w[e] = weight;
  }
}

// Sum of a tile's weights, in every thread. All threads of the block must call it.
template <class T>
__device__ __forceinline__ double tile_mass(const Tile<T>& row, const RowLaw& law, const DrawSite& site, const DraftLaw& draft, int tile,
                            BlockScratch& scratch) {
  double sum = 0.0;
#pragma unroll 1
  for (int j = 0; j < Tile<T>::CHUNKS; j++) {
    float w[Tile<T>::WIDTH];
    site_weights(row, law, site, draft, tile, j, w);
    float chunk = 0.f;
#pragma unroll
    for (int e = 0; e < Tile<T>::WIDTH; e++) chunk += w[e];
    sum += double(chunk);
  }
  return block_sum(sum, scratch);
}

// The tile in which the running sum of `masses` passes `goal`, and the sum before it. Rounding at the very end falls
// back to the last tile with mass. Every thread computes it alone. -1 when no tile has mass.
__device__ __forceinline__ int find_tile(const double* masses, int tiles, double goal, double& before) {
  double below = 0.0;
  int chosen = -1;
  for (int tile = 0; tile < tiles; tile++) {
    const double mass = masses[tile];
    if (!(mass > 0.0)) continue;
    chosen = tile;
    before = below;
    if (goal < below + mass) break;
    below += mass;
  }
  return chosen;
}

// The id in `tile` at which the running sum, which stands at `before`, passes `goal`; the tile's last id with weight
// when rounding leaves the goal above it. -1 when no id has weight. All threads of the block must call it.
template <class T>
__device__ __forceinline__ int draw_in_tile(const Tile<T>& row, const RowLaw& law, const DrawSite& site, const DraftLaw& draft, int tile,
                            double before, double goal, BlockScratch& scratch) {
  int pick = NO_ID, last = -1;
#pragma unroll 1
  for (int j = 0; j < Tile<T>::CHUNKS; j++) {
    float w[Tile<T>::WIDTH];
    site_weights(row, law, site, draft, tile, j, w);
    double sum = 0.0, total;
#pragma unroll
    for (int e = 0; e < Tile<T>::WIDTH; e++) sum += double(w[e]);
    double running = before + block_scan(sum, scratch.number, total);
    const int first = row.first_id(tile, j);
#pragma unroll
    for (int e = 0; e < Tile<T>::WIDTH; e++) {
      running += double(w[e]);
      if (w[e] > 0.f) {
        last = first + e;
        if (goal < running && pick == NO_ID) pick = first + e;
      }
    }
    before += total;
  }
  pick = block_min(pick, scratch);
  last = -block_min(-last, scratch);
  return pick != NO_ID ? pick : last;
}

}  // namespace specrs
