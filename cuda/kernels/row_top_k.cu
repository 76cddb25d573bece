// The k best ids of each row with their probabilities: top-k statistics, the fork tokens of SSD, margins.
//
// Maths. Largest logit first, the smaller id first among equals, one id left out per row if asked (a fork row leaves out the
//   draft token that a rejection there excludes). prob = exp(l * inverse_temperature - log_sum_exp) with the sums of row_summary.
// Shapes. logits (R, V); leaders and listed from row_leaders; counts, exclude (R,) or null (k, none); offsets (R,) or null
//   (rows of k); ids int64, probs float32 (total,), flat at offsets[r], what passes their ends dropped; a row that row_summary
//   found unusable, and places beyond the vocabulary, get -1 and NaN.
// Blocks. One per row, 256 threads: radix selection (select.h) and one pass to collect, among the row's leaders if the k-th
//   best is one for certain, else in the row; a rank sort of k <= 256.
// Bytes. At most 2 KB per tile and pass, four passes, from L1 after the first; one more when ties straddle the k-th place. The
//   same passes over the row, from L2, for more than 192 ids of one tile or ties where its leaders end.
// Operations. Per id and pass a key and a comparison; per id in the first pass, and per id of the bin that was chosen in the
//   others, an addition of 32 bits in shared memory; k^2 comparisons to sort.
// Floor. 4,864 leaders at V = 151,936, 39 KB from L2, 0.4 us at 64 B per clock, and 19 rounds of a block per pass, which wait
//   for shared memory; the statistics read the row once from memory, row_leaders again from L2.
// Budget. row_top_k: 80 registers, 43 KB.
#include "../include/specrs/block.h"
#include "../include/specrs/leaders.h"
#include "../include/specrs/law.h"
#include "../include/specrs/select.h"

namespace specrs {

constexpr int MOST_BEST = 256;

struct BestList {
  float value[MOST_BEST];
  int id[MOST_BEST];
  int filled;
};

// Collects the `wanted` best ids of `row`, which lacks ids whose keys are not above `floor`: false where one of them may belong
// to the best. All threads of the block must call it.
template <class Row>
__device__ bool collect_best(const Row& row, unsigned floor, int skip, int wanted, BestList& list, SelectScratch& select,
                             BlockScratch& scratch) {
  const RowLaw law{};
  const Selected s = select_from_top(row, law, order_key(negative_infinity()), skip, false, wanted, 0.0, select, scratch);
  if (!s.reached || s.key <= floor) return false;
  const unsigned long long ties = s.goal - s.above;
  const int last_tie = ties < s.within ? nth_tie(row, s.key, skip, ties, select, scratch) : row.vocab;
  for (int tile = 0; tile < tile_count(row.vocab); tile++)
#pragma unroll 1
    for (int j = 0; j < Row::CHUNKS; j++) {
      float l[Row::WIDTH];
      row.load(tile, j, l);
      const int first = row.first_id(tile, j);
#pragma unroll
      for (int e = 0; e < Row::WIDTH; e++) {
        const int id = first + e;
        const unsigned key = order_key(l[e]);
        if (id < 0 || id >= row.vocab || id == skip || key < s.key || (key == s.key && id > last_tie)) continue;
        const int place = atomicAdd(&list.filled, 1);  // any order: the ranks below sort it
        list.value[place] = l[e];
        list.id[place] = id;
      }
    }
  return true;
}

template <class T>
__device__ __forceinline__ void row_top_k(const void* logits, long long stride, int vocab, const Leader* leaders,
                                          const ListedTile* listed, const int* counts, int k, const long long* exclude,
                                          const long long* offsets, const float* log_sum_exp, const int* status,
                                          float inverse_temperature, long long total, long long* ids, float* probs,
                                          BestList& list, SelectScratch& select, BlockScratch& scratch) {
  const long long r = blockIdx.x;
  const int wanted = min(counts ? counts[r] : k, MOST_BEST);
  const int skip = exclude && exclude[r] >= 0 && exclude[r] < vocab ? int(exclude[r]) : -1;
  const int available = min(wanted, vocab - (skip >= 0 ? 1 : 0));
  const long long out = offsets ? offsets[r] : row_offset(r, k);
  if (threadIdx.x == 0) list.filled = 0;
  __syncthreads();
  if (status[r] == STATUS_OK && available > 0) {
    const Leaders some(leaders, listed, r, vocab);
    if (!collect_best(some, some.floor(scratch), skip, available, list, select, scratch)) {
      const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);
      collect_best(row, 0, skip, available, list, select, scratch);
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

#define SPECRS_ROW_TOP_K(suffix, T)                                                                                          \
  SPECRS_KERNEL_FEW(256, 3, row_top_k_##suffix)(const void* logits, long long stride, int vocab, const void* leaders,     \
                                                const void* listed, const int* counts, int k, const long long* exclude,      \
                                                const long long* offsets, const float* log_sum_exp, const int* status,       \
                                                float inverse_temperature, long long total, long long* ids, float* probs) {  \
    using namespace specrs;                                                                                                  \
    __shared__ BestList list;                                                                                                \
    __shared__ SelectScratch select;                                                                                         \
    __shared__ BlockScratch scratch;                                                                                         \
    row_top_k<T>(logits, stride, vocab, static_cast<const Leader*>(leaders), static_cast<const ListedTile*>(listed),   \
                 counts, k, exclude, offsets, log_sum_exp, status, inverse_temperature, total, ids, probs, list, select,     \
                 scratch);                                                                                                   \
  }                                                                                                                          \
  SPECRS_EXPORT(row_top_k_##suffix, 256)
SPECRS_ROW_TOP_K(f32, float)
SPECRS_ROW_TOP_K(bf16, specrs::bf16)
SPECRS_ROW_TOP_K(f16, specrs::f16)
