// The accept and emit coin of every row of a round, on the device, so that a captured graph draws new ones each replay.
//
// Maths. coin(seed, request, committed + depth, purpose, 0): see philox.h; the bits are those of specrs::verify::round_coins.
//   A row's accept coin decides about its child. Where siblings are tried in turn (by_sibling), a node's accept coin is its
//   own instead: its parent's, indexed by the node's rank among its siblings, so that the tries are independent.
// Shapes. seeds (B,) int64 bits; samples, positions (B,) int64; row_ptr (B + 1,); parents (N,); accept, emit (R,) float64.
//   A row that no request owns has the coins of an anchor.
// Blocks. One thread per row; a node climbs to the anchor to find its depth, and counts its elder siblings.
// Bytes. 16 B written per row.
// Operations. 40 multiplications of 32 bits per coin, two coins per row.
// Floor. One launch.
// Budget. round_coins: 40 registers, 0 KB.
#include "../include/specrs/law.h"
#include "../include/specrs/philox.h"

SPECRS_KERNEL(256, round_coins)(const long long* seeds, const long long* samples, const long long* positions,
                                const long long* row_ptr, const int* parents, int requests, int rows, int by_sibling,
                                double* accept, double* emit) {
  using namespace specrs;
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int b = request_of_row(row_ptr, requests, row);
  const RequestRange range = request_range(row_ptr, requests, rows, b);
  const bool owned = range.nodes >= 0 && row >= range.first_row && row - range.first_row <= range.nodes;
  const int own = owned ? int(row - range.first_row) - 1 : -1;
  unsigned depth = 0;
  // A parent is below its child, so the climb ends; anything else would be refused by the checks before it.
  for (int node = own; node >= 0; depth++) node = min(parents[range.first_node + node], node - 1);
  const unsigned position = unsigned(positions[b]) + depth;
  const bool ranked = by_sibling && own >= 0;
  unsigned rank = 0;
  for (int other = 0; ranked && other < own; other++) rank += parents[range.first_node + other] == parents[range.first_node + own];
  accept[row] = coin((unsigned long long)seeds[b], unsigned(samples[b]), position - ranked, PURPOSE_ACCEPT, rank);
  emit[row] = coin((unsigned long long)seeds[b], unsigned(samples[b]), position, PURPOSE_EMIT, 0);
}
SPECRS_EXPORT(round_coins, 256)
