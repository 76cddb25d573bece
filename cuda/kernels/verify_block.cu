// Block verification of a chain: the longest prefix that a joint test accepts (Sun et al. 2024, arXiv 2403.10444).
//
// Maths. c_0 = 1, c_i = min(1, c_(i-1) p(x_i) / q(x_i)). For i < K: s_i = sum_y (c_i p_i(y) - q_i(y))+ and
//   h_i = s_i / (s_i + 1 - c_i), 1 when that is 0 / 0; h_K = c_K. tau is the largest i with u_i < h_i, 0 if none: a failed
//   test does not stop the search. Bonus from norm((c_tau p - q)+), or from p behind the last node. u_i is the accept coin
//   of the row of x_i's parent. A fault at node i cuts the draft to its first i nodes. A greedy request accepts argmaxes.
// Shapes. As verify_chain.cu; sites (R,): one per row, idle (all ones) before the launch; masses (R, tiles) from residual_masses.
// Blocks. block_sites and accept_block: one thread per request (K steps of scalars); the sums s_i are one
//   residual_masses launch over all rows.
// Bytes. Every row of p (L2) and of q once.
// Operations. Those of residual.cu for every row, about 20 in float64 per node.
// Floor. N * V * 4 / bandwidth: 56 nodes of 151,936 are 34 MB, 7.1 us at 4.8 TB/s.
// Budget. block_sites: 64 registers, 0 KB; accept_block: 64 registers, 0 KB.
#include "../include/specrs/accept.h"

namespace specrs {

template <class T>
__device__ void block_sites(const void* logits, long long stride, int vocab, const RowLaw* laws, const long long* row_ptr,
                            const long long* tokens, int requests, int rows, int kind, const DraftLaw& draft, int path_stride,
                            DrawSite* sites) {
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= requests) return;
  const RequestRange range = request_range(row_ptr, requests, rows, b);
  double c = 1.0;
  bool ended = false;
  for (int i = 0; i <= range.nodes && !ended; i++) {
    const long long row = range.first_row + i;
    // The row behind the last node, or behind the node before a fault, draws from the target's law.
    DrawSite site{row, -1, float(c), 0.f, -1, STATUS_OK};
    ended = true;
    if (i < min(range.nodes, path_stride)) {
      const RowLaw law = laws[row];
      const Candidate x = judge<T>(logits, stride, vocab, law, row, tokens[range.first_node + i], draft, kind,
                                   draft_row(draft, range.first_node + i));
      site.status = x.status;
      if (x.status == STATUS_OK) {
        ended = law.rate == 0.f && x.target_prob == 0.f;
        if (law.rate != 0.f) {
          site.draft_row = draft_row(draft, range.first_node + i);
          site.draft_scale = 1.f;
        }
        c = fmin(1.0, c * double(x.target_prob) * reciprocal(x.draft_prob));
      }
    }
    sites[row] = site;
  }
}

}  // namespace specrs

#define SPECRS_BLOCK_SITES(suffix, T)                                                                                     \
  SPECRS_KERNEL(256, block_sites_##suffix)(const void* logits, long long stride, int vocab, const void* laws,             \
                                           const long long* row_ptr, const long long* tokens, int requests, int rows,     \
                                           int kind, const float* dense, const long long* sparse_ids,                     \
                                           const float* sparse_probs, int width, const long long* row_of,                 \
                                           long long law_rows, int path_stride, void* sites) {                            \
    specrs::block_sites<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), row_ptr, tokens, requests,    \
                           rows, kind, specrs::DraftLaw{dense, sparse_ids, sparse_probs, width, row_of, law_rows},        \
                           path_stride,                                                                                   \
                           static_cast<specrs::DrawSite*>(sites));                                                        \
  }                                                                                                                       \
  SPECRS_EXPORT(block_sites_##suffix, 256)
SPECRS_BLOCK_SITES(f32, float)
SPECRS_BLOCK_SITES(bf16, specrs::bf16)
SPECRS_BLOCK_SITES(f16, specrs::f16)

// Grid ceil(B / 256). Chooses tau, and rewrites the chosen site so that residual_draw can use it.
SPECRS_KERNEL(256, accept_block)(const long long* row_ptr, int requests, int rows, const double* masses, int tiles, const double* accept,
                                 void* sites_, int path_stride, int* path, int* accepted, int* site_of) {
  using namespace specrs;
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= requests) return;
  DrawSite* sites = static_cast<DrawSite*>(sites_);
  const RequestRange range = request_range(row_ptr, requests, rows, b);
  int tau = 0;
  for (int i = 1; i <= range.nodes; i++) {
    const long long row = range.first_row + i;
    const DrawSite site = sites[row];
    if (site.row < 0) break;
    const double c = site.target_scale;
    double h = c;  // behind the last node
    bool unsound = false;
    if (site.draft_scale != 0.f) {
      double s = 0.0;
      for (int tile = 0; tile < tiles; tile++) s += masses[row_offset(row, tiles) + tile];
      const double below = s + 1.0 - c;
      h = below > 0.0 ? s * reciprocal(below) : 1.0;
      unsound = is_nan(float(s));
      if (unsound) h = c;  // the draft row is no law: the draft ends here
    }
    if (accept[row - 1] < h) tau = i;
    if (unsound) break;
  }
  for (int i = 0; i < path_stride; i++) path[row_offset(b, path_stride) + i] = i < tau ? i : -1;
  accepted[b] = range.nodes < 0 ? 0 : tau;
  site_of[b] = range.nodes < 0 ? -1 - range.status : int(range.first_row + tau);
  if (range.nodes >= 0 && sites[range.first_row + tau].draft_scale == 0.f) sites[range.first_row + tau].target_scale = 1.f;
}
SPECRS_EXPORT(accept_block, 256)
