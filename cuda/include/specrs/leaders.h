// The largest logits of a row, some of every tile: where cuts are looked for first.
//
// The k-th largest logit, the edge of a nucleus and all that min-p keeps lie mostly among the 256 largest logits of each
// tile: a few thousand of a vocabulary. row_leaders lists them, all tiles of all rows at once, and says how far down each
// list reaches. What is found among them is exact if it lies above where the lists end; else the whole row is read.
#pragma once
#include "select.h"

namespace specrs {

constexpr int MOST_LISTED = TILE_THREADS;  // per tile; a thread takes one

struct Leader {
  float logit;
  int id;
};
// Every logit of the tile whose key is above `floor` is listed, ids ascending.
struct ListedTile {
  int count;
  unsigned floor;
};
static_assert(sizeof(Leader) == 8 && sizeof(ListedTile) == 8, "a leader and a listed tile are 8 bytes, see ops");

// The leaders of one row, read as a row is.
struct Leaders {
  static constexpr int WIDTH = 1;
  static constexpr int CHUNKS = 1;
  const Leader* list;
  const ListedTile* listed;
  int vocab;

  __device__ Leaders(const Leader* list_, const ListedTile* listed_, long long row, int vocab_)
      : list(list_ + row_offset(row, tile_count(vocab_)) * MOST_LISTED),
        listed(listed_ + row_offset(row, tile_count(vocab_))),
        vocab(vocab_) {}
  __device__ bool has(int tile) const { return int(threadIdx.x) < listed[tile].count; }
  __device__ int first_id(int tile, int) const { return has(tile) ? list[tile * MOST_LISTED + int(threadIdx.x)].id : -1; }
  __device__ void load(int tile, int, float (&out)[WIDTH]) const {
    out[0] = has(tile) ? list[tile * MOST_LISTED + int(threadIdx.x)].logit : negative_infinity();
  }
  // The key above which the row's logits are all here. All threads of the block must call it.
  __device__ unsigned floor(BlockScratch& scratch) const {
    BestOf<unsigned long long> highest{0, 0};
    for (int i = threadIdx.x; i < tile_count(vocab); i += blockDim.x) highest = better(highest, {listed[i].floor, 0});
    return unsigned(block_best(highest, scratch.word, scratch).value);
  }
};

}  // namespace specrs
