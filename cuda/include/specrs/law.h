// The law of one target row: what a kernel needs to turn a logit into a probability without a vector of probabilities.
//
//   weight(l) = exp((l - max) / temperature)   for kept ids, 0 for the others;   prob(l) = weight(l) / total
// Kept is what temperature, top-k, top-p and min-p leave, in this order: logits above `cut`, those equal to it from id
// `from` on (the reverse of a stable ascending sort, as transformers does it), and weights of at least `min_weight`.
// A row at temperature 0 is one-hot at its argmax, the lowest id among equals.
#pragma once
#include "dtype.h"
#include "requests.h"

namespace specrs {

struct RowLaw {
  float max;         // largest logit
  float rate;        // log2(e) / temperature; 0 marks a greedy row
  float inverse;     // 1 / total
  float cut;         // smallest kept logit
  int from;          // among ids whose logit equals the cut, the smallest kept one
  float min_weight;  // min-p
  int argmax;
  int status;
};
static_assert(sizeof(RowLaw) == 32, "one law is 8 words, see ops");

// What is left out of a row's law beside what its temperature does.
struct Truncation {
  float temperature;
  int top_k;
  float top_p, min_p;
  int vocab;

  __device__ bool by_count() const { return top_k > 0 && top_k < vocab; }
  __device__ bool by_mass() const { return top_p < 1.f; }
  __device__ bool any() const { return temperature > 0.f && (by_count() || by_mass() || min_p > 0.f); }
};

// What one tile of a row contributes; merged in tile order by one block.
struct RowPartial {
  float max;
  float sum;       // of exp((l - max) * rate); NaN when the tile holds NaN or +inf
  float weighted;  // of exp(d) * d with d = (l - max) / temperature, for the entropy
  int argmax;
};
static_assert(sizeof(RowPartial) == 16, "one partial is 4 words, see ops");

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

__device__ __forceinline__ float rate_of(float temperature) {
  return temperature > 0.f ? fminf(LOG2_E / temperature, 3.402823466e38f) : 0.f;
}

// 2^x, about 2 units in the last place.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// 2^x for x <= 0; 0 below 2^-100, so that weight / total is never subnormal, and 0 for NaN.
__device__ __forceinline__ float exp2_nonpositive(float x) { return x >= -100.f ? exp2_fast(x) : 0.f; }

// The same, but NaN stays NaN.
__device__ __forceinline__ float exp2_or_nan(float x) { return x < -100.f ? 0.f : exp2_fast(x); }

__device__ __forceinline__ float law_weight(const RowLaw& law, int id, float logit) {
  if (law.rate == 0.f) return id == law.argmax ? 1.f : 0.f;
  const bool kept = logit > law.cut || (logit == law.cut && id >= law.from);
  const float weight = exp2_nonpositive((logit - law.max) * law.rate);
  return kept && weight >= law.min_weight ? weight : 0.f;
}

__device__ __forceinline__ float law_prob(const RowLaw& law, int id, float logit) {
  return law_weight(law, id, logit) * law.inverse;
}

}  // namespace specrs
