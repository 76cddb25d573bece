// The sampling law of each row: temperature, top-k, top-p, min-p as a cut on the logits, and the mass of each tile.
//
// Maths. See law.h for the law and select.h for the cuts. Top-k keeps what ties with the k-th largest logit after the
//   division by the temperature; top-p keeps a token as long as what lies above it weighs less than top_p, equal logits
//   in descending id order; min-p keeps weights of at least min_p times the largest.
// Shapes. logits (R, V); partials (R, tiles) from row_partials; sampling parameters (B,); laws (R,) of 8 words;
//   masses (R, tiles) float64, weights relative to the row's largest.
// Blocks. One per row, 256 threads. A row without top-k, top-p and min-p merges its partials and reads no logit.
// Bytes. Untruncated: 24 B per tile. Top-k or top-p: three reads of the row each (the row is in L2 after row_partials: 0.3 MB
//   of 50 MB), and one more for the masses; ties at the cut of top-p cost one more.
// Operations. Truncated rows: per id and pass a key and a comparison; per id in the first pass, and per id of the bin that was
//   chosen in the others, an addition of 32 bits in shared memory, under top-p an exponential and the carry as well.
// Floor. Untruncated: one launch. Top-k and top-p: 7 reads of a row by one block, 2.1 MB of bfloat16 at V = 151,936, 19 us at
//   64 B per clock from L2; as long for one row as for as many as there are multiprocessors. Only untruncated rows are split.
// Budget. row_law: 112 registers, 41 KB.
#include "../include/specrs/block.h"
#include "../include/specrs/draw.h"
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

template <class T>
__device__ void row_law(const void* logits, long long stride, int vocab, const long long* row_ptr, int requests,
                        const RowPartial* partials, int tiles, const float* temperature, const int* top_k,
                        const float* top_p, const float* min_p, RowLaw* laws, double* masses,
                        SelectScratch& select, BlockScratch& scratch) {
  const long long r = blockIdx.x;
  const int b = request_of_row(row_ptr, requests, r);
  const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);
  partials += row_offset(r, tiles);
  masses += row_offset(r, tiles);

  const Best best = merged_best(partials, tiles, scratch);
  const bool bad = best.id == NO_ID;
  RowLaw law{best.value, rate_of(temperature[b]), 1.f, negative_infinity(), 0, min_p[b], best.id, STATUS_OK};
  const bool greedy = law.rate == 0.f;
  double total = 1.0;
  if (bad) {
    law.status = STATUS_TARGET_NAN;
    law.argmax = -1;
  } else if (!greedy) {
    const bool by_count = top_k[b] > 0 && top_k[b] < vocab, by_mass = top_p[b] < 1.f;
    unsigned floor_key = order_key(negative_infinity());
    if (by_count) {
      const Selected s = select_from_top(row, law, floor_key, -1, false, top_k[b], 0.0, select, scratch);
      if (key_value(s.key) > negative_infinity()) {
        law.cut = widen_ties(key_value(s.key), temperature[b]);
        floor_key = order_key(law.cut);
      }
    }
    if (by_mass) {
      const Selected s = select_from_top(row, law, floor_key, -1, true, 0, double(top_p[b]), select, scratch);
      const unsigned long long each = fixed_mass(exp2_nonpositive((key_value(s.key) - law.max) * law.rate));
      const unsigned long long ties = s.within / each, kept = (s.goal - s.above + each - 1) / each;
      law.cut = key_value(s.key);
      if (kept < ties) law.from = nth_tie(row, s.key, -1, ties - kept + 1, select, scratch);
    }
    total = 0.0;
    if (by_count || by_mass || law.min_weight > 0.f) {
      const DrawSite whole{r, -1, 1.f, 0.f, -1, STATUS_OK};
      for (int tile = 0; tile < tiles; tile++) {
        const double mass = tile_mass(row, law, whole, DraftLaw{}, tile, scratch);
        if (threadIdx.x == 0) masses[tile] = mass;
        total += mass;
      }
    } else {
      for (int i = threadIdx.x; i < tiles; i += blockDim.x) {
        masses[i] = merged_mass(partials[i], law.max, law.rate);
        total += masses[i];
      }
      total = block_sum(total, scratch);
    }
  }
  law.inverse = float(1.0 / total);
  if (threadIdx.x == 0) laws[r] = law;
}

}  // namespace specrs

#define SPECRS_ROW_LAW(suffix, T)                                                                                     \
  SPECRS_KERNEL_FEW(256, 2, row_law_##suffix)(const void* logits, long long stride, int vocab, const long long* row_ptr,     \
                                       int requests, const void* partials, int tiles, const float* temperature,       \
                                       const int* top_k, const float* top_p, const float* min_p, void* laws,          \
                                       double* masses) {                                                              \
    __shared__ specrs::SelectScratch select;                                                                          \
    __shared__ specrs::BlockScratch scratch;                                                                          \
    specrs::row_law<T>(logits, stride, vocab, row_ptr, requests, static_cast<const specrs::RowPartial*>(partials),    \
                       tiles, temperature, top_k, top_p, min_p, static_cast<specrs::RowLaw*>(laws), masses, select,   \
                       scratch);                                                                                      \
  }                                                                                                                   \
  SPECRS_EXPORT(row_law_##suffix, 256)
SPECRS_ROW_LAW(f32, float)
SPECRS_ROW_LAW(bf16, specrs::bf16)
SPECRS_ROW_LAW(f16, specrs::f16)
