// How a block covers one tile of a vocabulary row: 8,192 elements, 16 bytes per load, any row alignment.
//
// A row of odd length begins anywhere. Tiles are laid over the row from the last 16-byte boundary at or before its
// first element, so that every chunk inside the row is one aligned load; only the chunks at the two ends are read
// element by element. Thread t of 256 holds chunk j * 256 + t of the tile for j = 0, 1, ...: neighbouring threads read
// neighbouring addresses, and (j, t, e) in lexicographic order is ascending id order, which the inverse CDF relies on.
#pragma once
#include "dtype.h"

namespace specrs {

constexpr int TILE = 8192;
constexpr int TILE_THREADS = 256;

template <class T>
struct Tile {
  static constexpr int WIDTH = Vec<T>::WIDTH;
  static constexpr int CHUNKS = TILE / (TILE_THREADS * WIDTH);  // per thread
  const T* row;
  int vocab;
  int lead;  // elements between the boundary and the row's first

  __device__ Tile(const T* row_, int vocab_)
      : row(row_), vocab(vocab_), lead(int(reinterpret_cast<uintptr_t>(row_) / sizeof(T) % WIDTH)) {}
  // Id of the first element of chunk j of this thread; may be negative or pass the end.
  __device__ int first_id(int tile, int j) const { return tile * TILE + (j * TILE_THREADS + int(threadIdx.x)) * WIDTH - lead; }
  // Loads chunk j; elements outside the row are -inf.
  __device__ void load(int tile, int j, float (&out)[WIDTH]) const {
    const int id = first_id(tile, j);
    if (id >= 0 && id + WIDTH <= vocab) {
      const Chunk c = load_chunk(row + id);
#pragma unroll
      for (int e = 0; e < WIDTH; e++) out[e] = chunk_element(c, e, T{});
    } else {
#pragma unroll
      for (int e = 0; e < WIDTH; e++)
        out[e] = id + e >= 0 && id + e < vocab ? to_float(row[id + e]) : negative_infinity();
    }
  }
};

// Tiles that cover a row, whatever its alignment. Host code uses the same formula.
__device__ __forceinline__ int tile_count(int vocab) { return (vocab + 7 + TILE - 1) / TILE; }

}  // namespace specrs
