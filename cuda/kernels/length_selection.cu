// How much of each draft to score: the length with the most expected tokens per unit of cost (LibraSpec, exact argmax form).
//
// Maths. S_j = c_1 ... c_j, E(L) = 1 + S_1 + ... + S_L; of the L whose E(L) / cost[L] is largest the smallest, in float64, every
//   L compared because a measured cost is a staircase. Drafting at all has to beat drafting nothing by the share `hysteresis`,
//   so that noise in the costs does not switch drafting on; between two lengths the better one wins, because the rate is
//   flat around its maximum and a margin at each step would stop short of it. A confidence is at most 0.999; NaN and
//   negative ones promise nothing. The same operations in the same order as specrs::policy::length::best_length.
// Shapes. confidence (N,) float32 in chain order, row_ptr (B + 1,); cost (C,) float32, cost[L] of scoring L drafts, rising;
//   lengths (B,) int32. L stays below C. A request without rows, or out of range, scores nothing: length 0.
// Blocks. One thread per request: a chain of dependent comparisons over a few dozen nodes.
// Bytes. 4 B per node.
// Operations. About 10 in float64 per node, each waiting for the last.
// Floor. One launch.
// Budget. select_lengths: 48 registers, 0 KB.
#include "../include/specrs/requests.h"

namespace specrs {
constexpr float SUREST = 0.999f;
constexpr double EQUAL_RATES = 1e-12;  // rates that round apart are equal still
}  // namespace specrs

SPECRS_KERNEL(256, select_lengths)(const float* confidence, const long long* row_ptr, int requests, int rows, const float* cost,
                                   int costs, float hysteresis, int* lengths) {
  using namespace specrs;
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= requests) return;
  const RequestRange range = request_range(row_ptr, requests, rows, b);
  double survival = 1.0, expected = 1.0, best = 1.0 / double(cost[0]);
  const double margin = multiply(best, 1.0 + fmax(double(hysteresis), EQUAL_RATES));
  int chosen = 0;
  for (int length = 1; length <= range.nodes && length < costs; length++) {
    const float c = confidence[range.first_node + length - 1];
    survival = multiply(survival, c >= 0.f ? double(fminf(c, SUREST)) : 0.0);
    expected += survival;
    const double rate = expected / double(cost[length]);
    if (rate > (chosen ? multiply(best, 1.0 + EQUAL_RATES) : margin)) {
      best = rate;
      chosen = length;
    }
  }
  lengths[b] = chosen;
}
SPECRS_EXPORT(select_lengths, 256)
