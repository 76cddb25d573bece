// What a relaxed rule decides at each row of a chain, from the two laws alone, and the bias that it costs.
//
// Maths. p the target's law of the row, q the draft's law of the row's child; TV+ = sum (q - p)+ where p > 0 (everywhere
//   with `beyond`: total variation), q(S) the draft's mass of a set S.
//   ensemble:  emit w p + (1 - w) q, w per node (static, DIVERSED); bias (1 - w) TV+. A greedy row takes the argmax of the
//              mixture of both laws at temperature 1; bias 1 where that is not the target's own. Against the target's own,
//              the largest logit, stand only tokens that the draft prefers to it: probabilities round, logits do not.
//   lenience:  min(1, p / (l q)), residual norm((p - l q)+); bias: total variation to p of what that emits, with
//              A = sum min(q, p / l), R = sum (p - l q)+:  sum (min(q, p / l) + (1 - A) / R (p - l q)+ - p)+.
//   typical:   the set p > min(epsilon, delta exp(-H(p)));  top_k: the set of the k largest, ties included. Bias of a set S:
//              sum over S of (q - q(S) p)+.
//   cascade:   w = 0 where max q >= max p - alpha TV, else 1;  fuzzy: w = 0 where the divergence (total variation,
//              Jensen-Shannon, Kullback-Leibler of p from q, in nats) is below the threshold, else 1.
//   One-hot drafts: q is 1 at the child's token.
// Shapes. logits (R, V); laws, partials from row_law and row_partials; tokens (N,) in chain order; target_weight (N,) or
//   null; choices (R,) of 8 words. A row without a child, or with a greedy law under another rule than the ensemble, gets
//   the exact choice.
// Blocks. One per row, 256 threads: sums over a row in float64, one to three passes, an id per thread.
// Bytes. Per row with a child one to three reads of p (L2 after row_partials) and of q (V * 4, from L2 after the first);
//   top-k reads p three times more.
// Operations. Per id and pass an exponential, two conversions to float64 and up to 10 in it (a logarithm or two more under the
//   typical and the fuzzy rules): 56 nodes and two passes are 0.20 G, of which a multiprocessor of sm_80, 90 and 100 does at
//   least 16 conversions and 32 others per clock, one of sm_86, 89 and 120 two of either.
// Floor. N * V * 4 / bandwidth for q: 56 nodes of 151,936 are 34 MB, 7.1 us at 4.8 TB/s. A row takes one block, and that
//   its float64: two passes of 12 are 3.6 M, about 70 us on sm_90 and 0.7 ms on sm_86, 89 and 120, whatever N up to there.
// Budget. relaxed_choice: 128 registers, 41 KB.
#include "../include/specrs/choice.h"
#include "../include/specrs/partials.h"
#include "../include/specrs/select.h"

namespace specrs {

enum RelaxedRule : int {
  RULE_ENSEMBLE = 0,
  RULE_LENIENCE = 1,
  RULE_TYPICAL = 2,
  RULE_TOP_K = 3,
  RULE_CASCADE = 4,
  RULE_FUZZY_TOTAL_VARIATION = 5,
  RULE_FUZZY_JENSEN_SHANNON = 6,
  RULE_FUZZY_KULLBACK_LEIBLER = 7
};

// The draft's law of one child: a row of dense or sparse probabilities, or all of it on one token.
struct ChildLaw {
  const DraftLaw& draft;
  long long row;  // negative: one-hot
  long long token;
};

__device__ __forceinline__ float child_prob(const ChildLaw& child, int id) {
  return child.row >= 0 ? draft_prob(child.draft, child.row, id) : float(id == child.token);
}

// Calls visit(id, p, q) for this thread's share of the row's ids, ascending. Neighbouring threads read neighbouring ids.
template <class T, class Visit>
__device__ __forceinline__ void each_pair(const Tile<T>& row, const RowLaw& law, const ChildLaw& child, Visit&& visit) {
#pragma unroll 1
  for (int id = threadIdx.x; id < row.vocab; id += blockDim.x)
    visit(id, law_prob(law, id, to_float(row.row[id])), child_prob(child, id));
}

// Two sums over the row, in every thread. `terms(p, q, a, b)` adds to them; NaN where the draft's row is no law.
template <class T, class Terms>
__device__ __forceinline__ void sum_pairs(const Tile<T>& row, const RowLaw& law, const ChildLaw& child, BlockScratch& scratch,
                                          double& a, double& b, Terms&& terms) {
  double own_a = 0.0, own_b = 0.0;
  bool sound = true;
  each_pair(row, law, child, [&](int, float p, float q) {
    sound &= is_prob(q);
    terms(double(p), double(q), own_a, own_b);
  });
  a = block_sum(own_a, scratch);
  b = block_sum(own_b, scratch);
  if (block_any(!sound, scratch)) a = b = double(__uint_as_float(0x7fc00000u));
}

// Largest probability of the draft's row, and the mass of its ids from `vocab` on. All threads of the block must call it.
__device__ inline void draft_facts(const ChildLaw& child, int vocab, BlockScratch& scratch, float& largest, double& beyond) {
  float most = child.row < 0 ? 1.f : 0.f;
  double sum = 0.0;
  const DraftLaw& draft = child.draft;
  for (int i = threadIdx.x; child.row >= 0 && i < draft.width; i += blockDim.x) {
    const long long at = row_offset(child.row, draft.width) + i;
    float prob = 0.f;
    bool outside = i >= vocab;
    if (draft.dense) {
      prob = draft.dense[at];
    } else {
      const long long id = draft.sparse_ids[at];
      bool first = id >= 0;  // the first entry that names an id counts
      for (int k = 1; k <= i && first; k++) first = draft.sparse_ids[at - k] != id;
      prob = first ? draft.sparse_probs[at] : 0.f;
      outside = id >= vocab;
    }
    most = fmaxf(most, prob);
    if (outside && prob > 0.f) sum += prob;
  }
  largest = block_max(most, scratch);
  beyond = block_sum(sum, scratch);
}

// The most probable id of w p + (1 - w) q: the target's own, unless one that the draft prefers to it is more probable, the
// lowest of those among equals. All threads of the block must call it.
template <class T>
__device__ __forceinline__ int mixture_argmax(const Tile<T>& row, const RowLaw& law, const ChildLaw& child, double w,
                                              BlockScratch& scratch) {
  const float own_draft_prob = child_prob(child, law.argmax);
  constexpr int OWN = -1;  // below every id, so that it wins among equals
  BestOf<double> best{w * double(law.inverse) + (1.0 - w) * double(own_draft_prob), OWN};
  each_pair(row, law, child, [&](int id, float p, float q) {
    if (q > own_draft_prob) best = better(best, BestOf<double>{w * double(p) + (1.0 - w) * double(q), id});
  });
  const int id = block_best(best, scratch.number, scratch).id;
  return id == OWN ? law.argmax : id;
}

// The divergence of p from q that a fuzzy rule asks for. All threads of the block must call it.
template <class T>
__device__ __forceinline__ double divergence(const Tile<T>& row, const RowLaw& law, const ChildLaw& child, int rule, double beyond,
                                             BlockScratch& scratch) {
  double total, unused;
  if (rule == RULE_FUZZY_KULLBACK_LEIBLER)
    sum_pairs(row, law, child, scratch, total, unused, [](double p, double q, double& a, double&) {
      if (p > 0.0) a += q > 0.0 ? p * log(p / q) : double(-negative_infinity());
    });
  else
    sum_pairs(row, law, child, scratch, total, unused, [](double p, double q, double& a, double&) {
      const double middle = 0.5 * (p + q);
      if (p > 0.0) a += 0.5 * p * log(p / middle);
      if (q > 0.0) a += 0.5 * q * log(q / middle);
    });
  if (rule == RULE_FUZZY_JENSEN_SHANNON) total += 0.5 * double(LN_2) * beyond;  // ids that the target does not have
  return total > 0.0 || is_nan(float(total)) ? total : 0.0;
}

// The set's smallest probability under the typical rule: what is above min(epsilon, delta exp(-H)).
template <class T>
__device__ __forceinline__ float typical_bound(const Tile<T>& row, const RowLaw& law, const ChildLaw& child, float epsilon, float delta,
                                               BlockScratch& scratch) {
  double entropy = 0.0;
  each_pair(row, law, child, [&](int, float p, float) {
    if (p > 0.f) entropy -= double(p) * log(double(p));
  });
  entropy = block_sum(entropy, scratch);
  const float bound = fminf(float(double(delta) * exp(-entropy)), epsilon);
  return __uint_as_float(__float_as_uint(bound) + 1u);  // the next float: the rule says more than the bound
}

// The probability of the k-th largest logit; 0 where there are fewer.
template <class T>
__device__ __forceinline__ float top_k_bound(const Tile<T>& row, const RowLaw& law, float k, SelectScratch& select, BlockScratch& scratch) {
  if (k >= float(row.vocab)) return 0.f;
  const Selected s = select_from_top(row, law, order_key(negative_infinity()), -1, false, (unsigned long long)(k), 0.0, select, scratch);
  return exp2_nonpositive((key_value(s.key) - law.max) * law.rate) * law.inverse;
}

template <class T>
__device__ void relaxed_choice(const void* logits, long long stride, int vocab, const RowLaw* laws, const RowPartial* partials,
                               int tiles, const long long* row_ptr, const long long* tokens, int requests, int kind,
                               const DraftLaw& draft, int rule, const float* target_weight, float knob, float second_knob,
                               bool beyond, Choice* choices, SelectScratch& select, BlockScratch& scratch) {
  const long long r = blockIdx.x;
  const int b = request_of_row(row_ptr, requests, r);
  const RequestRange range = request_range(row_ptr, requests, gridDim.x, b);
  const bool has_child = r >= range.first_row && r - range.first_row < range.nodes;
  const long long n = r - b;  // the child of a chain's row has the row's number among the nodes
  RowLaw law = laws[r];
  Choice choice = exact_choice();
  const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);
  const ChildLaw child{draft, has_child && kind != DRAFT_ONE_HOT ? draft_row(draft, n) : -1, has_child ? tokens[n] : -1};
  if (law.status == STATUS_OK && law.rate == 0.f && rule == RULE_ENSEMBLE) {
    choice.kind = CHOICE_TOKENS;
    choice.plain = choice.mixed = law.argmax;
    if (has_child) {
      law.rate = LOG2_E;
      law.min_weight = 0.f;
      double total = 0.0;
      partials += row_offset(r, tiles);
      for (int i = threadIdx.x; i < tiles; i += blockDim.x) total += merged_mass(partials[i], law.max, law.rate);
      law.inverse = float(1.0 / block_sum(total, scratch));
      choice.mixed = mixture_argmax(row, law, child, double(target_weight[n]), scratch);
    }
    choice.bias = choice.mixed != choice.plain ? 1.0 : 0.0;
  } else if (law.status == STATUS_OK && law.rate != 0.f && has_child) {
    double first, second;
    if (rule == RULE_TYPICAL || rule == RULE_TOP_K) {
      choice.kind = CHOICE_SET;
      choice.value = rule == RULE_TYPICAL ? typical_bound(row, law, child, knob, second_knob, scratch)
                                          : top_k_bound(row, law, knob, select, scratch);
      const double bound = choice.value;
      sum_pairs(row, law, child, scratch, first, second, [=](double p, double q, double& a, double&) {
        if (p > 0.0 && p >= bound) a += q;
      });
      const double accepted = first;
      sum_pairs(row, law, child, scratch, first, second, [=](double p, double q, double& a, double&) {
        if (p > 0.0 && p >= bound) a += fmax(q - accepted * p, 0.0);
      });
      choice.bias = first;
    } else if (rule == RULE_LENIENCE) {
      choice.kind = CHOICE_LENIENCE;
      choice.value = knob;
      const double l = knob;
      sum_pairs(row, law, child, scratch, first, second, [=](double p, double q, double& a, double& s) {
        a += fmin(q, p / l);
        s += fmax(p - l * q, 0.0);
      });
      const double factor = second > 0.0 ? fmax(1.0 - first, 0.0) / second : 0.0;
      sum_pairs(row, law, child, scratch, first, second, [=](double p, double q, double& a, double&) {
        a += fmax(fmin(q, p / l) + factor * fmax(p - l * q, 0.0) - p, 0.0);
      });
      choice.bias = first;
    } else {
      sum_pairs(row, law, child, scratch, first, second, [](double p, double q, double& a, double& s) {
        a += fmax(p - q, 0.0);
        if (p > 0.0) s += fmax(q - p, 0.0);
      });
      const double distance = first, excess = second;
      choice.kind = beyond ? CHOICE_MIXTURE_BEYOND : CHOICE_MIXTURE;
      if (rule == RULE_ENSEMBLE) {
        choice.value = target_weight[n];
      } else {
        float largest;
        double outside;
        draft_facts(child, vocab, scratch, largest, outside);
        const bool defer = rule == RULE_CASCADE ? double(largest) >= double(law.inverse) - double(knob) * distance
                           : (rule == RULE_FUZZY_TOTAL_VARIATION ? distance : divergence(row, law, child, rule, outside, scratch)) < double(knob);
        choice.value = defer ? 0.f : 1.f;
      }
      choice.bias = (1.0 - double(choice.value)) * (beyond ? distance : excess);
      if (is_nan(float(distance))) choice.bias = distance;
    }
    if (is_nan(float(choice.bias))) choice.status = STATUS_DRAFT_NAN;
  }
  if (has_child && kind != DRAFT_ONE_HOT && child.row < 0) choice.status = STATUS_DRAFT_NAN;  // row_of names no row
  if (threadIdx.x == 0) choices[r] = choice;
}

}  // namespace specrs

#define SPECRS_RELAXED_CHOICE(suffix, T)                                                                                  \
  SPECRS_KERNEL_FEW(256, 2, relaxed_choice_##suffix)(                                                                     \
      const void* logits, long long stride, int vocab, const void* laws, const void* partials, int tiles,                 \
      const long long* row_ptr, const long long* tokens, int requests, int kind, const float* dense,                      \
      const long long* sparse_ids, const float* sparse_probs, int width, const long long* row_of, long long law_rows,     \
      int rule,                                                                                                           \
      const float* target_weight, float knob, float second_knob, int beyond, void* choices) {                             \
    __shared__ specrs::SelectScratch select;                                                                              \
    __shared__ specrs::BlockScratch scratch;                                                                              \
    specrs::relaxed_choice<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws),                            \
                              static_cast<const specrs::RowPartial*>(partials), tiles, row_ptr, tokens, requests, kind,   \
                              specrs::DraftLaw{dense, sparse_ids, sparse_probs, width, row_of, law_rows}, rule,           \
                              target_weight, knob, second_knob, beyond != 0, static_cast<specrs::Choice*>(choices), select, scratch); \
  }                                                                                                                       \
  SPECRS_EXPORT(relaxed_choice_##suffix, 256)
SPECRS_RELAXED_CHOICE(f32, float)
SPECRS_RELAXED_CHOICE(bf16, specrs::bf16)
SPECRS_RELAXED_CHOICE(f16, specrs::f16)
