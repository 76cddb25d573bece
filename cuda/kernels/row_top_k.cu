// The k best ids of each row with their probabilities: top-k statistics, the fork tokens of SSD, margins.
//
// Maths. Largest logit first, the smaller id first among equals, one id left out per row if asked (a fork row leaves out the
//   draft token that a rejection there excludes). prob = exp(l * inverse_temperature - log_sum_exp) with the sums of row_summary.
// Shapes. logits (R, V); counts, exclude (R,) or null (k, none); offsets (R,) or null (rows of k); ids int64, probs
//   float32 (total,), flat at offsets[r], what passes their ends dropped; a row that row_summary found unusable, and places
//   beyond the vocabulary, get -1 and NaN.
// Blocks. One per row, 256 threads: radix selection (select.h), one pass to collect, a rank sort of k <= 256.
// Bytes. Four reads of the row, from L2 after row_partials; five when ties straddle the k-th place.
// Operations. Per id and pass a key and a comparison; per id in the first pass, and per id of the bin that was chosen in the
//   others, an addition of 32 bits in shared memory; k^2 comparisons to sort.
// Floor. Four reads of a row by one block, 1.2 MB of bfloat16 at V = 151,936, 11 us at 64 B per clock from L2; as long for one
//   row as for as many as there are multiprocessors.
// Budget. row_top_k: 80 registers, 43 KB.
#include "../include/specrs/block.h"
#include "../include/specrs/law.h"
#include "../include/specrs/select.h"

namespace specrs {

constexpr int MOST_BEST = 256;

struct BestList {
  float value[MOST_BEST];
  int id[MOST_BEST];
  int filled;
};

template <class T>
__device__ __forceinline__ void row_top_k(const void* logits, long long stride, int vocab, const int* counts, int k,
                                          const long long* exclude, const long long* offsets, const float* log_sum_exp,
                                          const int* status, float inverse_temperature, long long total, long long* ids, float* probs,
                                          BestList& list, SelectScratch& select, BlockScratch& scratch) {
  const long long r = blockIdx.x;
  const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);
  const int wanted = min(counts ? counts[r] : k, MOST_BEST);
  const int skip = exclude && exclude[r] >= 0 && exclude[r] < vocab ? int(exclude[r]) : -1;
  const int available = min(wanted, vocab - (skip >= 0 ? 1 : 0));
  const long long out = offsets ? offsets[r] : row_offset(r, k);
  const bool usable = status[r] == STATUS_OK && available > 0;
  if (threadIdx.x == 0) list.filled = 0;
  __syncthreads();
  if (usable) {
    const RowLaw law{};
    const Selected s = select_from_top(row, law, order_key(negative_infinity()), skip, false, available, 0.0, select, scratch);
    const unsigned long long ties = available - s.above;
    const int last_tie = ties < s.within ? nth_tie(row, s.key, skip, ties, select, scratch) : vocab;
    for (int tile = 0; tile < tile_count(vocab); tile++)
#pragma unroll 1
      for (int j = 0; j < Tile<T>::CHUNKS; j++) {
        float l[Tile<T>::WIDTH];
        row.load(tile, j, l);
        const int first = row.first_id(tile, j);
#pragma unroll
        for (int e = 0; e < Tile<T>::WIDTH; e++) {
          const int id = first + e;
          const unsigned key = order_key(l[e]);
          if (id < 0 || id >= vocab || id == skip || key < s.key || (key == s.key && id > last_tie)) continue;
          const int place = atomicAdd(&list.filled, 1);  // any order: the ranks below sort it
          list.value[place] = l[e];
          list.id[place] = id;
        }
      }
  }
  __syncthreads();
  const int filled = list.filled;
  const int i = threadIdx.x;
  const auto put = [&](long long place, long long id, float prob) {
    if (place < 0 || place >= total) return;
    ids[place] = id;
    probs[place] = prob;
  };
  if (i < filled) {
    int rank = 0;
    for (int other = 0; other < filled; other++)
      rank += list.value[other] > list.value[i] || (list.value[other] == list.value[i] && list.id[other] < list.id[i]);
    put(out + rank, list.id[i], expf(list.value[i] * inverse_temperature - log_sum_exp[r]));
  } else if (i < wanted) {
    put(out + i, -1, __uint_as_float(0x7fc00000u));
  }
}

}  // namespace specrs

#define SPECRS_ROW_TOP_K(suffix, T)                                                                                       \
  SPECRS_KERNEL_FEW(256, 3, row_top_k_##suffix)(const void* logits, long long stride, int vocab, const int* counts, int k, \
                                         const long long* exclude, const long long* offsets, const float* log_sum_exp,    \
                                         const int* status, float inverse_temperature, long long total, long long* ids,   \
                                         float* probs) {                                                                  \
    __shared__ specrs::BestList list;                                                                                     \
    __shared__ specrs::SelectScratch select;                                                                              \
    __shared__ specrs::BlockScratch scratch;                                                                              \
    specrs::row_top_k<T>(logits, stride, vocab, counts, k, exclude, offsets, log_sum_exp, status, inverse_temperature, total, \
                         ids, probs, list, select, scratch);                                                              \
  }                                                                                                                       \
  SPECRS_EXPORT(row_top_k_##suffix, 256)
SPECRS_ROW_TOP_K(f32, float)
SPECRS_ROW_TOP_K(bf16, specrs::bf16)
SPECRS_ROW_TOP_K(f16, specrs::f16)
