// How much of each draft to score: the length with the most expected tokens per unit of cost (LibraSpec, exact argmax form).
//
// Maths. S_j = c_1 ... c_j, E(L) = 1 + S_1 + ... + S_L, choose the L that maximises E(L) / cost[L]. A longer draft has to beat
//   the best so far by the factor `hysteresis`, so that noise in the costs does not lengthen drafts.
// Shapes. confidence (N,) float32 in chain order, row_ptr (B + 1,); cost (C,) float32, cost[L] of scoring L drafts, rising;
//   lengths (B,) int32. L stays below C.
// Blocks. One thread per request: a chain of dependent comparisons over a few dozen nodes.
// Bytes. 4 B per node. Floor. One launch. Budget. 32 registers, no shared memory.
#include "../include/specrs/portable.h"

SPECRS_KERNEL(256, select_lengths)(const float* confidence, const long long* row_ptr, int requests, const float* cost, int costs,
                                   float hysteresis, int* lengths) {
  using namespace specrs;
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= requests) return;
  const long long first = row_ptr[b] - b;
  const int nodes = int(row_ptr[b + 1] - row_ptr[b]) - 1;
  float survival = 1.f, expected = 1.f, best = 1.f / cost[0];
  int chosen = 0;
  for (int length = 1; length <= nodes && length < costs; length++) {
    const float c = confidence[first + length - 1];
    survival *= c >= 0.f ? fminf(c, 1.f) : 0.f;  // NaN and negative confidence promise nothing
    expected += survival;
    const float rate = expected / cost[length];
    if (rate > best * hysteresis) {
      best = rate;
      chosen = length;
    }
  }
  lengths[b] = chosen;
}
SPECRS_EXPORT(select_lengths, 256)
