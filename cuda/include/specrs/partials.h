// Merging what row_partials left of a row: the law that truncates nothing.
#pragma once
#include "block.h"
#include "law.h"

namespace specrs {

// The largest logit with its lowest id; NO_ID, in every thread, for a row that has no law. All threads must call it.
__device__ __forceinline__ Best merged_best(const RowPartial* partials, int tiles, BlockScratch& scratch) {
  Best best{negative_infinity(), NO_ID};
  bool bad = false;
  for (int i = threadIdx.x; i < tiles; i += blockDim.x) {
    best = better(best, Best{partials[i].max, partials[i].argmax});
    bad |= is_nan(partials[i].sum);
  }
  best = block_best(best, scratch);
  if (block_any(bad, scratch)) best.id = NO_ID;
  return best;
}

// What tile i weighs relative to the row's largest logit, at the rate that the partials were summed at.
__device__ __forceinline__ double merged_mass(const RowPartial& partial, float max, float rate) {
  if (partial.argmax == NO_ID) return 0.0;
  return double(exp2_nonpositive((partial.max - max) * rate)) * partial.sum;
}

}  // namespace specrs
