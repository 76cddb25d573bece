// Chain acceptance of a diffusion model's drafts (PSD, arXiv 2605.15609): the deepest draft that the predictions support.
//
// Maths. drafts D_0 .. D_d fill more and more masked positions of a window; Y_j is what follows from scoring D_j.
//   exact:  from b = 0, b <- the largest j > b with D_j = Y_b everywhere, until none.
//   policy: the same with D_j's unmasked tokens equal to Y_b's (masks in D_j agree with anything).
//   token:  accept j = 1, 2, ... while the tokens that D_j adds to D_(j-1) are those of Y_(j-1) (its argmaxes).
// Shapes. drafts, outcomes (B, d + 1, W) int64; depths (B,) int32: drafts in use, at most d; accepted (B,) int32.
// Blocks. One per request, 128 threads over the window. Bytes. At most (d + 1)^2 W 16 B from L1.
// Operations. (d + 1)^2 W / 2 comparisons at most.
// Floor. One launch.
// Budget. accept_unmasked: 40 registers, 1 KB.
#include "../include/specrs/block.h"

SPECRS_KERNEL(128, accept_unmasked)(const long long* drafts, const long long* outcomes, const int* depths, int depth, int width,
                                    int rule, long long mask, int* accepted) {
  using namespace specrs;
  enum { EXACT = 0, POLICY = 1, TOKEN = 2 };
  __shared__ BlockScratch scratch;
  const long long b = blockIdx.x;
  drafts += row_offset(b * (depth + 1), width);
  outcomes += row_offset(b * (depth + 1), width);
  const int deepest = max(0, min(depths[b], depth));
  int best = 0;
  bool moved = true;
  while (moved) {
    moved = false;
    const long long* outcome = outcomes + row_offset(best, width);
    const int last = rule == TOKEN ? min(best + 1, deepest) : deepest;
    for (int j = last; j > best; j--) {
      const long long* draft = drafts + row_offset(j, width);
      const long long* before = drafts + row_offset(j - 1, width);
      bool differs = false;
      for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const bool counts = rule == EXACT || (rule == POLICY ? draft[i] != mask : draft[i] != before[i]);
        differs |= counts && draft[i] != outcome[i];
      }
      if (!block_any(differs, scratch)) {
        best = j;
        moved = true;
        break;
      }
    }
  }
  if (threadIdx.x == 0) accepted[b] = best;
}
SPECRS_EXPORT(accept_unmasked, 128)
