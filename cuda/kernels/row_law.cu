// The sampling law of each row: temperature, top-k, top-p, min-p as a cut on the logits, and the mass of each tile.
//
// Maths. See law.h for the law and select.h for the cuts. Top-k keeps what ties with the k-th largest logit after the
//   division by the temperature; top-p keeps a token as long as what lies above it weighs less than top_p, equal logits
//   in descending id order; min-p keeps weights of at least min_p times the largest. A truncated row's cut and masses are looked
//   for among its leaders and, where these do not reach down to it, in the row: to the bit the same, since what is summed are
//   integers, weights in units of 2^-40.
// Shapes. logits (R, V); partials (R, tiles) from row_partials; list and listed from row_leaders; sampling parameters (B,);
//   laws (R,) of 8 words; masses (R, tiles) float64, weights relative to the row's largest.
// Blocks. One per row, 256 threads. A row without top-k, top-p and min-p merges its partials and reads no logit.
// Bytes. Untruncated: 24 B per tile. Truncated: at most 2 KB per tile and pass, from L1 after the first; three passes for top-k,
//   three for top-p, one more for the masses and for ties at the cut of top-p. As many passes over the row, from L2, where the
//   law keeps more of a tile than its leaders: 192 to 256 ids of 8,192.
// Operations. Truncated rows: per id and pass a key and a comparison; per id in the first pass, and per id of the bin that was
//   chosen in the others, an addition of 32 bits in shared memory, under top-p an exponential and the carry as well.
// Floor. Untruncated: one launch. Truncated: 4,864 leaders at V = 151,936, 39 KB from L2, 0.4 us at 64 B per clock, and 19
//   rounds of a block per pass, which wait for shared memory; 19 us where 7 reads of the row in bfloat16 are needed.
// Budget. row_law: 112 registers, 41 KB.
#include "../include/specrs/block.h"
#include "../include/specrs/leaders.h"
#include "../include/specrs/law.h"
#include "../include/specrs/partials.h"
#include "../include/specrs/select.h"
#include "../include/specrs/tile.h"

namespace specrs {

// The smallest logit that the division by the temperature makes equal to `kth`.
__device__ inline float widen_ties(float kth, float temperature) {
  const float scaled = kth / temperature;
  if (scaled == 0.f || !(fabsf(scaled) <= 3.402823466e38f)) return kth;
  for (;;) {
    const float below = key_value(order_key(kth) - 1);
    if (!(fabsf(below) <= 3.402823466e38f) || below / temperature != scaled) return kth;
    kth = below;
  }
}

// What all of a row weighs, and each of its tiles, from what row_partials found.
__device__ __forceinline__ double merged_masses(const RowPartial* partials, int tiles, const RowLaw& law, double* masses,
                                                BlockScratch& scratch) {
  double total = 0.0;
  for (int i = threadIdx.x; i < tiles; i += blockDim.x) {
    masses[i] = merged_mass(partials[i], law.max, law.rate);
    total += masses[i];
  }
  return block_sum(total, scratch);
}

// Sets the cut of a law by the logits of `row` and the mass of all of its ids, and then the masses and their total to what is
// kept. `row` lacks logits whose keys are not above `floor`: false where one of them may decide or be kept, with the law as it
// was. All threads of the block must call it.
template <class Row>
__device__ bool truncate_law(const Row& row, unsigned floor, const Truncation& to, RowLaw& law, double& total, int tiles,
                             double* masses, SelectScratch& select, BlockScratch& scratch) {
  RowLaw cut = law;
  unsigned least = order_key(negative_infinity());
  if (to.by_count()) {
    const Selected s = select_from_top(row, law, least, -1, false, to.top_k, 0.0, select, scratch);
    if (!s.reached || s.key <= floor) return false;
    if (key_value(s.key) > negative_infinity()) {
      cut.cut = widen_ties(key_value(s.key), to.temperature);
      least = order_key(cut.cut);
      if (least <= floor) return false;
    }
  }
  if (to.by_mass()) {
    const double all = multiply(total, double(1ull << MASS_BITS));
    const unsigned long long goal = to.by_count() ? 0 : (unsigned long long)fmax(1.0, multiply(double(to.top_p), all));
    const Selected s = select_from_top(row, law, least, -1, true, goal, double(to.top_p), select, scratch);
    if (s.key <= floor || (floor && !s.reached)) return false;
    const unsigned long long each = fixed_mass(exp2_nonpositive((key_value(s.key) - law.max) * law.rate));
    const unsigned long long ties = s.within / each, kept = (s.goal - s.above + each - 1) / each;
    cut.cut = key_value(s.key);
    if (kept < ties) cut.from = nth_tie(row, s.key, -1, ties - kept + 1, select, scratch);
  }
  if (floor && law_weight(cut, NO_ID, key_value(floor)) > 0.f) return false;
  unsigned long long sum = 0;
  for (int tile = 0; tile < tiles; tile++) {
    unsigned long long mass = 0;
#pragma unroll 1
    for (int j = 0; j < Row::CHUNKS; j++) {
      float l[Row::WIDTH];
      row.load(tile, j, l);
      const int first = row.first_id(tile, j);
#pragma unroll
      for (int e = 0; e < Row::WIDTH; e++)
        if (first + e >= 0 && first + e < row.vocab) mass += fixed_mass(law_weight(cut, first + e, l[e]));
    }
    mass = block_sum(mass, scratch);
    if (threadIdx.x == 0) masses[tile] = double(mass) / double(1ull << MASS_BITS);
    sum += mass;
  }
  total = double(sum) / double(1ull << MASS_BITS);
  law = cut;
  return true;
}

template <class T>
__device__ void row_law(const void* logits, long long stride, int vocab, const long long* row_ptr, int requests,
                        const RowPartial* partials, int tiles, const Leader* list, const ListedTile* listed,
                        const float* temperature, const int* top_k, const float* top_p, const float* min_p, RowLaw* laws,
                        double* masses, SelectScratch& select, BlockScratch& scratch) {
  const long long r = blockIdx.x;
  const int b = request_of_row(row_ptr, requests, r);
  const Truncation to{temperature[b], top_k[b], top_p[b], min_p[b], vocab};
  partials += row_offset(r, tiles);
  masses += row_offset(r, tiles);

  const Best best = merged_best(partials, tiles, scratch);
  RowLaw law{best.value, rate_of(to.temperature), 1.f, negative_infinity(), 0, to.min_p, best.id, STATUS_OK};
  double total = 1.0;
  if (best.id == NO_ID) {
    law.status = STATUS_TARGET_NAN;
    law.argmax = -1;
  } else if (law.rate > 0.f) {
    total = merged_masses(partials, tiles, law, masses, scratch);
    if (to.any()) {
      const Leaders leaders(list, listed, r, vocab);
      if (!truncate_law(leaders, leaders.floor(scratch), to, law, total, tiles, masses, select, scratch)) {
        const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);
        truncate_law(row, 0, to, law, total, tiles, masses, select, scratch);
      }
    }
  }
  law.inverse = float(1.0 / total);
  if (threadIdx.x == 0) laws[r] = law;
}

}  // namespace specrs

#define SPECRS_ROW_LAW(suffix, T)                                                                                       \
  SPECRS_KERNEL_FEW(256, 2, row_law_##suffix)(const void* logits, long long stride, int vocab, const long long* row_ptr,  \
                                              int requests, const void* partials, int tiles, const void* list,            \
                                              const void* listed, const float* temperature, const int* top_k,             \
                                              const float* top_p, const float* min_p, void* laws, double* masses) {       \
    using namespace specrs;                                                                                               \
    __shared__ SelectScratch select;                                                                                      \
    __shared__ BlockScratch scratch;                                                                                      \
    row_law<T>(logits, stride, vocab, row_ptr, requests, static_cast<const RowPartial*>(partials), tiles,                 \
               static_cast<const Leader*>(list), static_cast<const ListedTile*>(listed), temperature, top_k, top_p,    \
               min_p, static_cast<RowLaw*>(laws), masses, select, scratch);                                               \
  }                                                                                                                       \
  SPECRS_EXPORT(row_law_##suffix, 256)
SPECRS_ROW_LAW(f32, float)
SPECRS_ROW_LAW(bf16, specrs::bf16)
SPECRS_ROW_LAW(f16, specrs::f16)
