// Several sampled candidates at one node: recursive rejection in a tree, drawn with or without replacement.
//
// Maths. At a node with law p and draft law q, children x_1, x_2, ... in draft order, p_1 = p, q_1 = q: accept x_i when
//   u_i q_i(x_i) < p_i(x_i), else p_(i+1) = norm((p_i - q_i)+). With replacement q_i = q (SpecInfer); without, q_(i+1) is
//   q_i with x_i zeroed and renormalised (Sequoia, EAGLE). After the last rejection the bonus is drawn from p_(k+1).
//   No vector is kept: by induction p_i = max(0, a_i p - b_i q), with a' = a / s, b' = (b + 1 / n) / s, where n is what is left
//   of q's mass (1 with replacement) and s the residual's sum; a rejected id has a p - b q < 0 and keeps it.
//   u_i is the accept coin of the child's own row. An empty residual (p_i equals q_i) draws from p_i. Without replacement a
//   token that comes twice cannot have been drawn, so it ends the candidates with status 3.
// Shapes. As verify_chain.cu, with parents (N,); all children of a node have the same draft row, that of the first child.
// Blocks. One per request, 256 threads: the stages follow one another. masses: (B, tiles) float64 scratch.
// Bytes. Per rejected candidate one read of a row of p and of q, per request one tile more.
// Operations. Those of residual.cu per rejected candidate, one stage after another.
// Floor. A stage is bound by what one multiprocessor reads: about 10 us for V = 151,936. Chains belong to verify_chain.
// Budget. verify_siblings: 112 registers, 1 KB.
#include "../include/specrs/accept.h"

namespace specrs {

// The sums of a stage's weights, by tile into `masses`, and together. All threads of the block must call it.
template <class T>
__device__ __forceinline__ double stage_masses(const Tile<T>& row, const RowLaw& law, const DrawSite& site, const DraftLaw& draft,
                                               int tiles, double* masses, BlockScratch& scratch) {
  double sum = 0.0;
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    const double mass = tile_mass(row, law, site, draft, tile, scratch);
    if (threadIdx.x == 0) masses[tile] = mass;
    sum += mass;
  }
  return sum;
}

template <class T>
__device__ void verify_siblings(const void* logits, long long stride, int vocab, const RowLaw* laws, const double* law_masses,
                                int tiles, const long long* row_ptr, int rows, const long long* tokens, const int* parents, int kind,
                                const DraftLaw& draft, const double* accept, bool replacement, double* masses,
                                int path_stride, int* path, int* accepted, DrawSite* sites, BlockScratch& scratch) {
  const int b = blockIdx.x;
  const RequestRange range = request_range(row_ptr, gridDim.x, rows, b);
  path += row_offset(b, path_stride);
  masses += row_offset(b, tiles);
  int node = -1, length = 0;
  DrawSite site{range.nodes < 0 ? -1 : range.first_row, -1, 1.f, 0.f, -1, range.status};
  bool descend = range.nodes > 0;
  while (descend) {
    descend = false;
    const long long row_number = range.first_row + node + 1;
    site = DrawSite{row_number, -1, 1.f, 0.f, -1, STATUS_OK};
    const RowLaw law = laws[row_number];
    if (law.status != STATUS_OK || length == path_stride) break;
    const Tile<T> row(static_cast<const T*>(logits) + row_offset(row_number, stride), vocab);
    double a = 1.0, subtracted = 0.0, left = 1.0;
    for (int child = node + 1; child < range.nodes; child++) {
      const long long n = range.first_node + child;
      if (parents[n] != node) continue;
      if (site.draft_row < 0) site.draft_row = draft_row(draft, n);
      Candidate x = judge<T>(logits, stride, vocab, law, row_number, tokens[n], draft, kind, site.draft_row);
      if (law.rate == 0.f) {  // greedy: the first child that is the argmax
        if (x.status != STATUS_OK || x.target_prob == 0.f) continue;
        node = child;
        descend = true;
        break;
      }
      for (int other = node + 1; other < child && !replacement; other++)
        if (parents[range.first_node + other] == node && tokens[range.first_node + other] == tokens[n]) x.status = STATUS_DRAFT_NAN;
      if (x.status != STATUS_OK) {
        site.status = x.status;
        break;  // the draft's law cannot be trusted from here on
      }
      const double target = fmax(0.0, a * x.target_prob - subtracted * x.draft_prob), scale = reciprocal(left);
      if (accept[row_number + child - node] * (double(x.draft_prob) * scale) < target) {
        node = child;
        descend = true;
        break;
      }
      const DrawSite before = site;
      site.target_scale = float(a);
      site.draft_scale = float(subtracted + scale);
      double sum = stage_masses(row, law, site, draft, tiles, masses, scratch);
      if (!(sum > 0.0)) {  // p_i equals q_i, or the draft row is no law: p_i is what is left
        site = before;
        site.status = is_nan(float(sum)) ? STATUS_DRAFT_NAN : STATUS_RESIDUAL_EMPTY;
        if (site.draft_scale != 0.f) stage_masses(row, law, site, draft, tiles, masses, scratch);
        break;
      }
      const double norm = reciprocal(sum);
      a *= norm;
      subtracted = (subtracted + scale) * norm;
      if (!replacement) left = fmax(left - x.draft_prob, 1e-9);
    }
    if (descend) {
      if (threadIdx.x == 0) path[length] = node;
      length++;
      // A leaf ends the walk with the whole law of its row.
      site = DrawSite{range.first_row + node + 1, -1, 1.f, 0.f, -1, STATUS_OK};
    }
  }
  if (site.row >= 0 && site.draft_scale == 0.f) {
    site.draft_row = -1;
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x)
      masses[tile] = laws[site.row].rate == 0.f ? 1.0 : law_masses[row_offset(site.row, tiles) + tile];
  }
  for (int i = length + threadIdx.x; i < path_stride; i += blockDim.x) path[i] = -1;
  if (threadIdx.x == 0) {
    accepted[b] = length;
    sites[b] = site;
  }
}

}  // namespace specrs

#define SPECRS_SIBLINGS(suffix, T)                                                                                        \
  SPECRS_KERNEL_FEW(256, 2, verify_siblings_##suffix)(                                                                    \
      const void* logits, long long stride, int vocab, const void* laws, const double* law_masses, int tiles,             \
      const long long* row_ptr, int rows, const long long* tokens, const int* parents, int kind, const float* dense,      \
      const long long* sparse_ids, const float* sparse_probs, int width, const long long* row_of, long long law_rows,     \
      const double* accept, int replacement, double* masses, int path_stride, int* path, int* accepted, void* sites) {    \
    __shared__ specrs::BlockScratch scratch;                                                                              \
    specrs::verify_siblings<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), law_masses, tiles,        \
                               row_ptr, rows, tokens, parents, kind,                                                      \
                               specrs::DraftLaw{dense, sparse_ids, sparse_probs, width, row_of, law_rows},                \
                               accept, replacement != 0, masses, path_stride, path, accepted,                             \
                               static_cast<specrs::DrawSite*>(sites), scratch);                                           \
  }                                                                                                                       \
  SPECRS_EXPORT(verify_siblings_##suffix, 256)
SPECRS_SIBLINGS(f32, float)
SPECRS_SIBLINGS(bf16, specrs::bf16)
SPECRS_SIBLINGS(f16, specrs::f16)
