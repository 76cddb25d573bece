// Acceptance along a chain: rejection sampling, exact or by the choices of a relaxed rule within a budget of bias.
//
// Maths. Node i's token x under target law p and draft law q, with accept coin u of its parent's row:
//   exact:    u q(x) < p(x) (Leviathan et al., Chen et al.); on the first rejection the bonus is drawn from norm((p - q)+),
//             behind the last node from p. What the target's law excludes never stands.
//   relaxed:  the row's choice (relaxed_choice.cu, choice.h): a mixture, lenience, or a set. A choice costs its bias; where
//             the request's bias so far plus this one passes its budget, the position is verified exactly instead. bias is
//             the sum of what was spent, up to the node that ended the walk.
//   A greedy request accepts its argmax and nothing else; under an ensemble the mixture's, or its own beyond the budget.
// Shapes. logits (R, V); tokens (N,), nodes of a request in chain order; draft rows by node: dense (N, width) or sparse
//   ids, probs (N, width); accept (R,) float64; choices (R,) of 8 words, or null for the exact rule; budget (B,) float64 or
//   null; bias (B,) float64, or null with the exact rule.
// Blocks. One warp per request, one node per lane: the walk needs K gathered scalars, not rows.
// Bytes. ~100 B per node.
// Operations. About 30 per node.
// Floor. One launch.
// Budget. accept_chain: 80 registers, 0 KB.
#include "../include/specrs/choice.h"

namespace specrs {

template <class T>
__device__ void accept_chain(const void* logits, long long stride, int vocab, const RowLaw* laws, const long long* row_ptr,
                             const long long* tokens, int requests, int rows, int kind, const DraftLaw& draft, const double* accept,
                             const Choice* choices, const double* budget, double* bias, int path_stride, int* path,
                             int* accepted, DrawSite* sites) {
  const int b = blockIdx.x * warp_count() + warp_id();
  if (b >= requests) return;
  const RequestRange range = request_range(row_ptr, requests, rows, b);
  path += row_offset(b, path_stride);
  int length = 0, status = range.status;
  bool rejected = false, affordable = true;
  double spent = 0.0;
  const int limit = min(range.nodes, path_stride);
  for (int base = 0; base < limit && !rejected; base += 32) {
    const int node = base + lane_id();
    const long long row = range.first_row + node, n = range.first_node + node;
    bool stop = node >= limit, spends = true;
    int fault = STATUS_OK;
    Choice choice = exact_choice();
    if (choices && !stop) choice = choices[row];
    // Lane by lane: what a position may spend depends on what those before it spent.
    double before = spent;
#pragma unroll 1
    for (int lane = 0; choices && lane < 32; lane++) {
      const double cost = __shfl_sync(FULL_WARP, choice.bias, lane);
      const bool within = !budget || spent + cost <= budget[b];
      if (lane == lane_id()) {
        before = spent;
        spends = within;
      }
      if (within) spent += cost;
    }
    if (!spends) {  // verified exactly
      choice.kind = choice.kind == CHOICE_TOKENS ? CHOICE_TOKENS : CHOICE_MIXTURE;
      choice.mixed = choice.plain;
      choice.value = 1.f;
    }
    if (!stop) {
      const RowLaw law = laws[row];
      const Candidate c = judge<T>(logits, stride, vocab, law, row, tokens[n], draft, kind, draft_row(draft, n));
      fault = c.status != STATUS_OK ? c.status : choice.status;
      const bool right = choice.kind == CHOICE_TOKENS ? tokens[n] == choice.mixed
                         : law.rate == 0.f            ? c.target_prob > 0.f
                                                      : stands(choice, c, accept[row]);
      stop = fault != STATUS_OK || !right;
    }
    const unsigned stops = __ballot_sync(FULL_WARP, stop);
    const int first = stops ? __ffs(int(stops)) - 1 : 32;
    if (lane_id() < first) path[node] = node;
    length = base + first;
    rejected = first < 32 && length < limit;
    status = __shfl_sync(FULL_WARP, fault, first & 31);
    affordable = __shfl_sync(FULL_WARP, int(spends), first & 31) != 0;
    const double paid = fault == STATUS_OK && spends && node < limit ? choice.bias : 0.0;
    const double upto = __shfl_sync(FULL_WARP, before + paid, first & 31);
    if (first < 32) spent = upto;
    if (!rejected) status = STATUS_OK;
  }
  for (int i = length + lane_id(); i < path_stride; i += 32) path[i] = -1;
  if (lane_id() != 0) return;
  accepted[b] = length;
  if (bias) bias[b] = spent;
  // A fault ends the draft before its node: the bonus comes from the target's law.
  DrawSite site = whole_law(range.nodes < 0 ? -1 : range.first_row + length, status);
  if (site.row >= 0 && status == STATUS_OK && laws[site.row].status == STATUS_OK) {
    Choice choice = choices ? choices[site.row] : exact_choice();
    if (choice.kind == CHOICE_TOKENS) {
      site = taken(site.row, rejected && affordable ? choice.mixed : choice.plain);
    } else if (rejected && laws[site.row].rate != 0.f) {
      if (!affordable) choice.kind = CHOICE_MIXTURE;
      leave_residual(choice, draft, kind, range.first_node + length, int(tokens[range.first_node + length]), site);
    }
  }
  sites[b] = site;
}

}  // namespace specrs

#define SPECRS_ACCEPT_CHAIN(suffix, T)                                                                                    \
  SPECRS_KERNEL_FEW(256, 2, accept_chain_##suffix)(                                                                       \
      const void* logits, long long stride, int vocab, const void* laws, const long long* row_ptr, const long long* tokens, \
      int requests, int rows, int kind, const float* dense, const long long* sparse_ids, const float* sparse_probs,       \
      int width, const long long* row_of, long long law_rows, const double* accept, const void* choices,                  \
      const double* budget, double* bias, int path_stride, int* path, int* accepted, void* sites) {                       \
    specrs::accept_chain<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), row_ptr, tokens, requests,   \
                            rows, kind, specrs::DraftLaw{dense, sparse_ids, sparse_probs, width, row_of, law_rows}, accept, \
                            static_cast<const specrs::Choice*>(choices), budget, bias, path_stride, path, accepted,       \
                            static_cast<specrs::DrawSite*>(sites));                                                       \
  }                                                                                                                       \
  SPECRS_EXPORT(accept_chain_##suffix, 256)
SPECRS_ACCEPT_CHAIN(f32, float)
SPECRS_ACCEPT_CHAIN(bf16, specrs::bf16)
SPECRS_ACCEPT_CHAIN(f16, specrs::f16)
