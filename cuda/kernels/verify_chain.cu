// Acceptance along a chain: rejection sampling, its ensemble and lenient forms, typical and top-k acceptance.
//
// Maths. Node i's token x under target law p and draft law q, with accept coin u of its parent's row:
//   ratio:    u l q(x) < w p(x) + (1 - w) q(x);   w = 1, l = 1 is exact (Leviathan et al., Chen et al.); w is the weight of
//             the target per node (static ensemble, DIVERSED); l < 1 is lenience. On the first rejection the bonus is drawn
//             from norm((p - l q)+), which does not depend on w; behind the last node from p. What the target's law excludes
//             never stands.
//   typical:  p(x) > min(epsilon, delta exp(-H(p)));   top_k: fewer than k ids are more probable than x. Bonus from p.
//   A greedy request accepts its argmax and nothing else, whatever the rule.
// Shapes. logits (R, V); tokens (N,), nodes of a request in chain order; draft rows by node: dense (N, width) or sparse
//   ids, probs (N, width); accept (R,) float64; target_weight, rank (N,) or null; entropy (R,) or null.
// Blocks. One warp per request, one node per lane: the walk needs K gathered scalars, not rows.
// Bytes. ~100 B per node. Floor. One launch.
// Budget. 64 registers, no shared memory.
#include "../include/specrs/accept.h"

namespace specrs {

enum ChainRule : int { RULE_RATIO = 0, RULE_TYPICAL = 1, RULE_TOP_K = 2 };

template <class T>
__device__ void accept_chain(const void* logits, long long stride, int vocab, const RowLaw* laws, const long long* row_ptr,
                             const long long* tokens, int requests, int kind, const DraftLaw& draft, const double* accept,
                             int rule, const float* target_weight, float lenience, float epsilon, float delta,
                             const float* entropy, const int* rank, int k, int path_stride, int* path, int* accepted,
                             DrawSite* sites) {
  const int b = blockIdx.x * warp_count() + warp_id();
  if (b >= requests) return;
  const RequestRange range = request_range(row_ptr, b);
  path += row_offset(b, path_stride);
  int length = 0, status = STATUS_OK;
  bool rejected = false;
  const int limit = min(range.nodes, path_stride);
  for (int base = 0; base < limit && !rejected; base += 32) {
    const int node = base + lane_id();
    bool stop = node >= limit;
    int fault = STATUS_OK;
    if (!stop) {
      const long long row = range.first_row + node, n = range.first_node + node;
      const RowLaw law = laws[row];
      const Candidate c = judge<T>(logits, stride, vocab, law, row, tokens[n], draft, kind, draft_row(draft, n));
      bool take;
      if (law.rate == 0.f) {
        take = c.target_prob > 0.f;
      } else if (rule == RULE_TYPICAL) {
        take = c.target_prob > fminf(epsilon, delta * expf(-entropy[row]));
      } else if (rule == RULE_TOP_K) {
        take = c.target_prob > 0.f && rank[n] < k;
      } else {
        const double q = c.draft_prob, w = target_weight ? double(target_weight[n]) : 1.0;
        const double mix = w == 1.0 ? double(c.target_prob) : w * c.target_prob + (1.0 - w) * q;
        take = c.target_prob > 0.f && accept[row] * lenience * q < mix;
      }
      fault = c.status;
      stop = fault != STATUS_OK || !take;
    }
    const unsigned stops = __ballot_sync(FULL_WARP, stop);
    const int first = stops ? __ffs(int(stops)) - 1 : 32;
    if (lane_id() < first) path[node] = node;
    length = base + first;
    rejected = first < 32 && length < limit;
    status = __shfl_sync(FULL_WARP, fault, first & 31);
    if (!rejected) status = STATUS_OK;
  }
  for (int i = length + lane_id(); i < path_stride; i += 32) path[i] = -1;
  if (lane_id() != 0) return;
  accepted[b] = length;
  DrawSite site{range.nodes < 0 ? -1 : range.first_row + length, -1, 1.f, 0.f, -1, status};
  // A fault ends the draft before its node: the bonus comes from the target's law.
  if (rejected && status == STATUS_OK && rule == RULE_RATIO && laws[site.row].rate != 0.f) {
    if (kind == DRAFT_ONE_HOT) {
      site.exclude = int(tokens[range.first_node + length]);
    } else {
      site.draft_row = draft_row(draft, range.first_node + length);
      site.draft_scale = lenience;
    }
  }
  sites[b] = site;
}

// Rank of a node's token in its parent's row: how many ids have a larger logit.
template <class T>
__device__ void token_rank(const void* logits, long long stride, int vocab, const long long* row_ptr, int requests,
                           const long long* tokens, const int* parents, int* rank, BlockScratch& scratch) {
  // Node n of request b has row n + b + 1; the search runs over rows, so skip each anchor's.
  const long long r = blockIdx.x;
  const int b = request_of_row(row_ptr, requests, r);
  const long long node = r - row_ptr[b] - 1, n = r - b - 1;
  if (node < 0) return;
  const long long parent_row = row_ptr[b] + 1 + parents[n];
  const long long token = tokens[n];
  if (token < 0 || token >= vocab) {
    if (threadIdx.x == 0) rank[n] = vocab;
    return;
  }
  const Tile<T> row(static_cast<const T*>(logits) + row_offset(parent_row, stride), vocab);
  const float mine = to_float(row.row[token]);
  double better_ids = 0.0;
  for (int tile = 0; tile < tile_count(vocab); tile++)
#pragma unroll 1
    for (int j = 0; j < Tile<T>::CHUNKS; j++) {
      float l[Tile<T>::WIDTH];
      row.load(tile, j, l);
      const int first = row.first_id(tile, j);
#pragma unroll
      for (int e = 0; e < Tile<T>::WIDTH; e++) {
        const int id = first + e;
        better_ids += id >= 0 && id < vocab && l[e] > mine;
      }
    }
  better_ids = block_sum(better_ids, scratch);
  if (threadIdx.x == 0) rank[n] = int(better_ids);
}

}  // namespace specrs

#define SPECRS_ACCEPT_CHAIN(suffix, T)                                                                                    \
  SPECRS_KERNEL(256, accept_chain_##suffix)(                                                                              \
      const void* logits, long long stride, int vocab, const void* laws, const long long* row_ptr, const long long* tokens, \
      int requests, int kind, const float* dense, const long long* sparse_ids, const float* sparse_probs, int width,      \
      const long long* row_of, const double* accept, int rule, const float* target_weight, float lenience, float epsilon, float delta,             \
      const float* entropy, const int* rank, int k, int path_stride, int* path, int* accepted, void* sites) {             \
    specrs::accept_chain<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), row_ptr, tokens, requests,   \
                            kind, specrs::DraftLaw{dense, sparse_ids, sparse_probs, width, row_of}, accept, rule, target_weight,  \
                            lenience, epsilon, delta, entropy, rank, k, path_stride, path, accepted,                      \
                            static_cast<specrs::DrawSite*>(sites));                                                       \
  }                                                                                                                       \
  SPECRS_EXPORT(accept_chain_##suffix, 256)                                                                               \
  /* Grid R: one block per row, anchors idle. */                                                                          \
  SPECRS_KERNEL(256, token_rank_##suffix)(const void* logits, long long stride, int vocab, const long long* row_ptr,      \
                                          int requests, const long long* tokens, const int* parents, int* rank) {         \
    __shared__ specrs::BlockScratch scratch;                                                                              \
    specrs::token_rank<T>(logits, stride, vocab, row_ptr, requests, tokens, parents, rank, scratch);                      \
  }                                                                                                                       \
  SPECRS_EXPORT(token_rank_##suffix, 256)
SPECRS_ACCEPT_CHAIN(f32, float)
SPECRS_ACCEPT_CHAIN(bf16, specrs::bf16)
SPECRS_ACCEPT_CHAIN(f16, specrs::f16)
