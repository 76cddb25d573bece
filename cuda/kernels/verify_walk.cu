// Fixed candidates in a tree: draw what plain decoding draws at every row, then descend while the draft has it.
//
// Maths. y_r = the emit coin's place in the inverse cumulative law of row r (its argmax at temperature 0). From the anchor,
//   follow the first child whose token is y; emit y at the row that has no such child. Exact for every candidate set that
//   does not depend on the emit coins, duplicates included (one draw decides; no candidate is tested on its own).
// Shapes. logits (R, V), rows anchor first per request; row_ptr (B + 1,); tokens, parents (R - B,), a parent is -1 for the
//   anchor; laws, masses from row_law; emit (R,) float64; drawn (R,); path (B, S) padded with -1; accepted, bonus, status (B,).
// Blocks. draw_rows: one per row, 256 threads: R blocks fill the device where one block per request would not.
//   walk_tree: one warp per request.
// Bytes. One tile per row (16 KB in bfloat16, 11 % of a row of 151,936), from L2; the walk reads 20 B per node.
// Operations. draw_rows: per id of a tile an exponential and an addition in float64; walk_tree: N / 32 comparisons per
//   level.
// Floor. The two launches.
// Budget. draw_rows: 80 registers, 1 KB; walk_tree: 40 registers, 0 KB.
#include "../include/specrs/draw.h"

namespace specrs {

template <class T>
__device__ void draw_row(const void* logits, long long stride, int vocab, const RowLaw* laws, const double* masses, int tiles,
                         const double* emit, long long* drawn, BlockScratch& scratch) {
  const long long r = blockIdx.x;
  const RowLaw law = laws[r];
  int id = law.argmax;
  if (law.status == STATUS_OK && law.rate != 0.f) {
    const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);
    masses += row_offset(r, tiles);
    // The masses are weights relative to the row's largest; the site's weights are probabilities.
    const DrawSite whole{r, -1, 1.f, 0.f, -1, STATUS_OK};
    RowLaw unscaled = law;
    unscaled.inverse = 1.f;
    double total = 0.0, before = 0.0;
    for (int i = 0; i < tiles; i++) total += masses[i];
    const double goal = emit[r] * total;
    const int tile = find_tile(masses, tiles, goal, before);
    id = draw_in_tile(row, unscaled, whole, DraftLaw{}, tile, before, goal, scratch);
  }
  if (threadIdx.x == 0) drawn[r] = law.status == STATUS_OK ? id : -1;
}

}  // namespace specrs

#define SPECRS_DRAW_ROWS(suffix, T)                                                                                      \
  SPECRS_KERNEL_FEW(256, 3, draw_rows_##suffix)(const void* logits, long long stride, int vocab, const void* laws,              \
                                         const double* masses, int tiles, const double* emit, long long* drawn) {        \
    __shared__ specrs::BlockScratch scratch;                                                                             \
    specrs::draw_row<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), masses, tiles, emit, drawn,     \
                        scratch);                                                                                        \
  }                                                                                                                      \
  SPECRS_EXPORT(draw_rows_##suffix, 256)
SPECRS_DRAW_ROWS(f32, float)
SPECRS_DRAW_ROWS(bf16, specrs::bf16)
SPECRS_DRAW_ROWS(f16, specrs::f16)

// Grid ceil(B / 8), 256 threads. `drawn` is -1 at a row without a law: the path ends there with bonus -1 and status 2.
// A request without rows (padding of a captured graph) gets accepted 0, bonus -1, status 0; one out of range status 5.
SPECRS_KERNEL(256, walk_tree)(const long long* drawn, const long long* row_ptr, const long long* tokens, const int* parents,
                              int requests, int rows, int path_stride, int* path, int* accepted, long long* bonus,
                              int* status) {
  using namespace specrs;
  const int b = blockIdx.x * warp_count() + warp_id();
  if (b >= requests) return;
  const RequestRange range = request_range(row_ptr, requests, rows, b);
  const long long first_row = range.first_row, first_node = range.first_node;
  const int nodes = range.nodes;
  path += row_offset(b, path_stride);
  int node = -1, length = 0;
  long long token = -1;
  while (nodes >= 0) {
    token = drawn[first_row + node + 1];
    int child = NO_ID;
    // A parent precedes its children, so the search starts behind it and the walk always ends.
    for (int i = node + 1; i < nodes && child == NO_ID; i += 32) {
      const int candidate = i + lane_id();
      const bool match = candidate < nodes && parents[first_node + candidate] == node && tokens[first_node + candidate] == token;
      const unsigned found = __ballot_sync(FULL_WARP, match);
      if (found) child = i + __ffs(int(found)) - 1;
    }
    if (token < 0 || child == NO_ID || length == path_stride) break;
    if (lane_id() == 0) path[length] = child;
    length++;
    node = child;
  }
  for (int i = length + lane_id(); i < path_stride; i += 32) path[i] = -1;
  if (lane_id() == 0) {
    accepted[b] = length;
    bonus[b] = token;
    status[b] = nodes >= 0 && token < 0 ? int(STATUS_TARGET_NAN) : range.status;
  }
}
SPECRS_EXPORT(walk_tree, 256)
