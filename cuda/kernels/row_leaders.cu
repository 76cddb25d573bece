// The largest logits of each tile of each row: what cuts are looked for among, with the vocabulary split over the device.
//
// Maths. A threshold on the order-preserving keys is bisected until 192 to 256 logits of the tile lie above it, or no key is
//   left between two counts; it depends on the tile's logits alone. A tile with fewer finite logits lists them all.
// Shapes. logits (R, V); row_ptr (B + 1,) and sampling parameters (B,), or null where every row is wanted; list (R, tiles,
//   256) of (logit, id), ids ascending; listed (R, tiles) of (count, key above which nothing is missing).
// Blocks. Grid R * tiles, 256 threads, one tile of 8,192 elements per block, its keys held in registers. Blocks of a row that
//   temperature, top-k, top-p and min-p do not truncate end at once and write nothing.
// Bytes. R * V * size from L2 after row_partials, at most R * tiles * 2,056 written.
// Operations. Per id two comparisons and an addition, and one of each for every step of the bisection, about 15.
// Floor. 64 rows of 151,936 in bfloat16 are 9.7 M ids of about 32 operations, 2.5 us at 128 per clock and multiprocessor.
// Budget. row_leaders: 64 registers, 1 KB.
#include "../include/specrs/block.h"
#include "../include/specrs/leaders.h"
#include "../include/specrs/law.h"
#include "../include/specrs/tile.h"

namespace specrs {

template <class T>
__device__ void row_leaders(const Tile<T>& row, int tile, Leader* list, ListedTile* listed, BlockScratch& scratch) {
  constexpr int WIDTH = Tile<T>::WIDTH, CHUNKS = Tile<T>::CHUNKS;
  unsigned keys[CHUNKS][WIDTH];
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) {
    float l[WIDTH];
    row.load(tile, j, l);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) keys[j][e] = order_key(l[e]);
  }
  const auto above = [&](unsigned key) {
    int count = 0;
#pragma unroll
    for (int j = 0; j < CHUNKS; j++)
#pragma unroll
      for (int e = 0; e < WIDTH; e++) count += keys[j][e] > key;
    return block_sum(count, scratch);
  };
  // Too many lie above `low`, `count` above `floor`.
  unsigned low = order_key(negative_infinity()), floor = low;
  int count = above(low);
  if (count > MOST_LISTED) {
    floor = ~0u;
    count = 0;
    while (count < MOST_LISTED * 3 / 4 && floor - low > 1) {
      const unsigned middle = low + (floor - low) / 2;
      const int found = above(middle);
      if (found > MOST_LISTED) {
        low = middle;
      } else {
        floor = middle;
        count = found;
      }
    }
  }
  int filled = 0;
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) {
    int mine = 0, all;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) mine += keys[j][e] > floor;
    int place = filled + block_scan(mine, scratch.id, all);
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
      if (keys[j][e] > floor) list[place++] = Leader{key_value(keys[j][e]), row.first_id(tile, j) + e};
    filled += all;
  }
  if (threadIdx.x == 0) *listed = ListedTile{count, floor};
}

}  // namespace specrs

#define SPECRS_ROW_LEADERS(suffix, T)                                                                                    \
  SPECRS_KERNEL_FEW(256, 4, row_leaders_##suffix)(const void* logits, long long stride, int vocab, int tiles,                    \
                                              const long long* row_ptr, int requests, const float* temperature,             \
                                              const int* top_k, const float* top_p, const float* min_p, void* list,         \
                                              void* listed) {                                                               \
    using namespace specrs;                                                                                                 \
    __shared__ BlockScratch scratch;                                                                                        \
    const long long r = blockIdx.x / unsigned(tiles);                                                                       \
    const int tile = int(blockIdx.x % unsigned(tiles));                                                                     \
    if (row_ptr) {                                                                                                          \
      const int b = request_of_row(row_ptr, requests, r);                                                                   \
      if (!Truncation{temperature[b], top_k[b], top_p[b], min_p[b], vocab}.any()) return;                                   \
    }                                                                                                                       \
    const long long place = row_offset(r, tiles) + tile;                                                                    \
    row_leaders(Tile<T>(static_cast<const T*>(logits) + row_offset(r, stride), vocab), tile,                             \
                   static_cast<Leader*>(list) + place * MOST_LISTED, static_cast<ListedTile*>(listed) + place, scratch); \
  }                                                                                                                         \
  SPECRS_EXPORT(row_leaders_##suffix, 256)
SPECRS_ROW_LEADERS(f32, float)
SPECRS_ROW_LEADERS(bf16, specrs::bf16)
SPECRS_ROW_LEADERS(f16, specrs::f16)
