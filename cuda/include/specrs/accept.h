// What a kernel needs to judge the draft token of one node: the target's and the draft's probability of it.
#pragma once
#include "draw.h"

namespace specrs {

enum DraftKind : int { DRAFT_ONE_HOT = 0, DRAFT_DENSE = 1, DRAFT_SPARSE = 2 };

// 1 / x for a normal float's range of x, to the last bit or two of double. The compiler's own division is a call, which
// spills registers around it.
__device__ __forceinline__ double reciprocal(double x) {
#ifdef __CUDACC__
  float start;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(start) : "f"(fmaxf(float(x), 1.17549435e-38f)));
#else
  const float start = 1.f / fmaxf(float(x), 1.17549435e-38f);
#endif
  double y = start;
#pragma unroll
  for (int step = 0; step < 3; step++) y = y * (2.0 - x * y);
  return y;
}

template <class T>
__device__ __forceinline__ float target_prob(const void* logits, long long stride, const RowLaw& law, long long row, int id) {
  return law_prob(law, id, to_float(static_cast<const T*>(logits)[row_offset(row, stride) + id]));
}

// The two probabilities of a node's token under the row of its parent, and what is wrong with them if anything.
struct Candidate {
  float target_prob, draft_prob;
  int status;
};

template <class T>
__device__ __forceinline__ Candidate judge(const void* logits, long long stride, int vocab, const RowLaw& law, long long row,
                                           long long token, const DraftLaw& draft, int kind, long long law_row) {
  Candidate c{0.f, 1.f, STATUS_OK};
  if (law.status != STATUS_OK) {
    c.status = law.status;
    return c;
  }
  if (law.rate == 0.f) {  // a greedy request asks for the argmax alone
    c.target_prob = token == law.argmax ? 1.f : 0.f;
    return c;
  }
  const bool in_vocabulary = token >= 0 && token < vocab;
  if (kind != DRAFT_ONE_HOT) c.draft_prob = token >= 0 && token < NO_ID ? draft_prob(draft, law_row, int(token)) : 0.f;
  if (!in_vocabulary && (kind == DRAFT_ONE_HOT || c.draft_prob == 0.f)) {
    c.status = STATUS_ID_OUT_OF_RANGE;
  } else if (!(c.draft_prob > 0.f && is_prob(c.draft_prob))) {
    c.status = STATUS_DRAFT_NAN;
  } else if (in_vocabulary) {
    c.target_prob = target_prob<T>(logits, stride, law, row, int(token));
  }
  return c;
}

}  // namespace specrs
