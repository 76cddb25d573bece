// Statistics of vocabulary rows in one pass: argmax, largest probability, entropy, log-sum-exp.
//
// Maths. With m = max l and d = (l - m) / T:  Z = sum exp(d),  max_prob = 1 / Z,  entropy = ln Z - sum exp(d) d / Z (nats),
//   log_sum_exp = m / T + ln Z. Tiles are merged in tile order with the usual rescaling, in float64.
// Shapes. logits (R, V) float32 / bfloat16 / float16, row stride in elements; temperature (B,) by request, or null for 1;
//   partials (R, tiles) of 4 words; outputs (R,).
// Blocks. row_partials: grid R * tiles, 256 threads, one tile of 8,192 elements per block, held in registers between
//   its maximum and its sum, so that memory is read once. row_summary: one warp per row.
// Bytes. R * V * size read + R * tiles * 16 written and read again (0.1 % of a bfloat16 row).
// Operations. Per id five comparisons, an exponential and 4 in float32: 64 rows are 9.7 M exponentials, 2.6 us at 16 per
//   clock and multiprocessor.
// Floor. R * V * size / bandwidth: 64 rows of 151,936 in bfloat16 are 19.4 MB, 4.1 us at 4.8 TB/s.
// Budget. row_partials: 64 registers, 1 KB; row_summary: 48 registers, 0 KB.
#include "../include/specrs/block.h"
#include "../include/specrs/law.h"
#include "../include/specrs/tile.h"

namespace specrs {

template <class T>
__device__ void row_partials(const void* logits, long long stride, int vocab, int tiles, const long long* row_ptr, int requests,
                             const float* temperature, int exclude, RowPartial* partials, BlockScratch& scratch) {
  constexpr int WIDTH = Tile<T>::WIDTH, CHUNKS = Tile<T>::CHUNKS;
  const long long r = blockIdx.x / unsigned(tiles);
  const int tile = int(blockIdx.x % unsigned(tiles));
  const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);
  const float t = temperature ? temperature[request_of_row(row_ptr, requests, r)] : 1.f;
  const float rate = t > 0.f ? rate_of(t) : LOG2_E;  // a greedy row still reports the statistics of temperature 1
  float l[CHUNKS][WIDTH];
  Best best{negative_infinity(), NO_ID};
  bool bad = false;
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) row.load(tile, j, l[j]);
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) {
    const int first = row.first_id(tile, j);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
      if (first + e == exclude) l[j][e] = negative_infinity();
      bad |= !(l[j][e] <= 3.402823466e38f);  // NaN or +inf
      if (l[j][e] > best.value) best = Best{l[j][e], first + e};
    }
  }
  best = block_best(best, scratch);
  float sum = 0.f, weighted = 0.f;
  if (best.id != NO_ID) {
#pragma unroll
    for (int j = 0; j < CHUNKS; j++)
#pragma unroll
      for (int e = 0; e < WIDTH; e++) {
        const float d = (l[j][e] - best.value) * rate;
        const float weight = exp2_nonpositive(d);
        sum += weight;
        weighted += weight > 0.f ? weight * d : 0.f;
      }
  }
  const double total = block_sum(double(sum), scratch);
  const double total_weighted = block_sum(double(weighted), scratch);
  const bool any_bad = block_any(bad, scratch);
  if (threadIdx.x == 0) {
    RowPartial out{best.value, float(total), float(total_weighted) * LN_2, best.id};
    if (any_bad) out.sum = __uint_as_float(0x7fc00000u);
    partials[row_offset(r, tiles) + tile] = out;
  }
}

}  // namespace specrs

#define SPECRS_ROW_PARTIALS(suffix, T)                                                                              \
  SPECRS_KERNEL(256, row_partials_##suffix)(const void* logits, long long stride, int vocab, int tiles,         \
                                            const long long* row_ptr, int requests, const float* temperature, int exclude, void* partials) {  \
    __shared__ specrs::BlockScratch scratch;                                                                        \
    specrs::row_partials<T>(logits, stride, vocab, tiles, row_ptr, requests, temperature, exclude,                         \
                            static_cast<specrs::RowPartial*>(partials), scratch);                                   \
  }                                                                                                                 \
  SPECRS_EXPORT(row_partials_##suffix, 256)
SPECRS_ROW_PARTIALS(f32, float)
SPECRS_ROW_PARTIALS(bf16, specrs::bf16)
SPECRS_ROW_PARTIALS(f16, specrs::f16)

// Grid ceil(R / 8), 256 threads: one warp per row. An unusable row has argmax -1, NaN statistics and status 2.
SPECRS_KERNEL(256, row_summary)(const void* partials_, int tiles, int rows, const long long* row_ptr, int requests,
                                const float* temperature, long long* argmax, float* max_prob, float* entropy,
                                float* log_sum_exp, int* status) {
  using namespace specrs;
  const int r = blockIdx.x * warp_count() + warp_id();
  if (r >= rows) return;
  const RowPartial* partials = static_cast<const RowPartial*>(partials_) + row_offset(r, tiles);
  const float t = temperature ? temperature[request_of_row(row_ptr, requests, r)] : 1.f;
  const float rate = t > 0.f ? rate_of(t) : LOG2_E;
  Best best{negative_infinity(), NO_ID};
  bool bad = false;
  for (int i = lane_id(); i < tiles; i += 32) {
    best = better(best, Best{partials[i].max, partials[i].argmax});
    bad |= is_nan(partials[i].sum);
  }
  best = warp_best(best);
  bad = __any_sync(FULL_WARP, bad) || best.id == NO_ID;
  double sum = 0.0, weighted = 0.0;
  for (int i = lane_id(); i < tiles && !bad; i += 32) {
    if (partials[i].argmax == NO_ID) continue;
    const float shift = (partials[i].max - best.value) * rate;
    const double scale = exp2_nonpositive(shift);
    sum += scale * partials[i].sum;
    weighted += scale * (double(partials[i].weighted) + double(shift * LN_2) * partials[i].sum);
  }
  sum = warp_sum(sum);
  weighted = warp_sum(weighted);
  if (lane_id() == 0) {
    const float nan = __uint_as_float(0x7fc00000u);
    const float log_sum = logf(float(sum));
    argmax[r] = bad ? -1 : best.id;
    max_prob[r] = bad ? nan : float(1.0 / sum);
    entropy[r] = bad ? nan : fmaxf(0.f, float(double(log_sum) - weighted / sum));
    log_sum_exp[r] = bad ? nan : best.value * rate * LN_2 + log_sum;
    status[r] = bad ? STATUS_TARGET_NAN : STATUS_OK;
  }
}
SPECRS_EXPORT(row_summary, 256)
