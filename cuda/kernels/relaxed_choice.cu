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
// Shapes. logits (R, V); laws, partials from row_law and row_partials; list and listed from row_leaders; tokens (N,) in
//   chain order; target_weight (N,) or null; bounds (R,) float32 or null; sums (steps, R, tiles) of 8 words; choices (R,) of
//   8 words. A row without a child, or with a greedy law under another rule than the ensemble, gets the exact choice.
// Blocks. relaxed_sums: grid R * tiles, 256 threads, one tile of 8,192 ids per block; a launch for each step, since a sum over
//   the row may need another before it: one step, two for lenience and top-k, three for typical. relaxed_bound, for top-k
//   alone: one block per row, on its leaders and on the row where these do not reach the k-th. relaxed_choice: one warp per
//   row, which adds up the tiles in float64.
// Bytes. Per row with a child and step one read of p (L2 after row_partials) and of q (V * 4, from L2 after the first).
// Operations. Per id and step an exponential, two conversions to float64 and up to 10 in it (a logarithm or two more under the
//   typical and the fuzzy rules): 56 nodes and two steps are 0.20 G, of which a multiprocessor of sm_80, 90 and 100 does at
//   least 16 conversions and 32 others per clock, one of sm_86, 89 and 120 two of either.
// Floor. N * V * 4 / bandwidth for q: 56 nodes of 151,936 are 34 MB, 7.1 us at 4.8 TB/s. Float64 over 132 multiprocessors of
//   sm_90: 34 us for two steps of 12 at that size, 4 us for one request of 7 nodes.
// Budget. relaxed_sums: 80 registers, 1 KB; relaxed_bound: 112 registers, 41 KB; relaxed_choice: 64 registers, 0 KB.
#include "../include/specrs/choice.h"
#include "../include/specrs/leaders.h"
#include "../include/specrs/partials.h"

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

// How a rule was asked for.
struct Relaxed {
  int rule;
  const float* target_weight;
  float knob, second_knob;
  bool beyond;

  __device__ bool by_set() const { return rule == RULE_TYPICAL || rule == RULE_TOP_K; }
};

// What one tile adds to the sums of a step, or what all of a row's do. A greedy row has its mixture's best, (first, id).
struct PairSums {
  double first, second, third;
  float largest;  // of the draft's probabilities
  int id;
};
static_assert(sizeof(PairSums) == 32, "the sums of a tile are 8 words, see ops");

constexpr int OWN = -1;  // the target's own argmax: below every id, so that it wins among equals

// The draft's law of one child: a row of dense or sparse probabilities, or all of it on one token.
struct ChildLaw {
  const DraftLaw& draft;
  long long row;  // negative: one-hot
  long long token;
};

__device__ __forceinline__ float child_prob(const ChildLaw& child, int id) {
  return child.row >= 0 ? draft_prob(child.draft, child.row, id) : float(id == child.token);
}

// One row of the target's, with the law of the draft's child of it.
struct RelaxedRow {
  RowLaw law;
  ChildLaw child;
  long long node;  // negative: no child
  int status;      // STATUS_DRAFT_NAN: row_of names no row

  __device__ RelaxedRow(const RowLaw* laws, const long long* row_ptr, const long long* tokens, int requests, int rows, int kind,
                        const DraftLaw& draft, long long r)
      : law(laws[r]), child{draft, -1, -1}, node(-1), status(STATUS_OK) {
    const int b = request_of_row(row_ptr, requests, r);
    const RequestRange range = request_range(row_ptr, requests, rows, b);
    if (r < range.first_row || r - range.first_row >= range.nodes) return;
    node = r - b;  // the child of a chain's row has the row's number among the nodes
    child.token = tokens[node];
    if (kind != DRAFT_ONE_HOT) child.row = draft_row(draft, node);
    if (kind != DRAFT_ONE_HOT && child.row < 0) status = STATUS_DRAFT_NAN;
  }
  __device__ bool greedy() const { return law.rate == 0.f; }
  // Whether the rule has a say here, so that sums are taken.
  __device__ bool takes(const Relaxed& how) const {
    return node >= 0 && status == STATUS_OK && law.status == STATUS_OK && (!greedy() || how.rule == RULE_ENSEMBLE);
  }
};

// The sums of a row over its tiles. All lanes of the warp must call it.
__device__ __forceinline__ PairSums row_sums(const PairSums* sums, int tiles) {
  PairSums all{0.0, 0.0, 0.0, 0.f, NO_ID};
  for (int i = lane_id(); i < tiles; i += 32) {
    all.first += sums[i].first;
    all.second += sums[i].second;
    all.third += sums[i].third;
    all.largest = fmaxf(all.largest, sums[i].largest);
  }
  return PairSums{warp_sum(all.first), warp_sum(all.second), warp_sum(all.third), warp_max(all.largest), NO_ID};
}

// In products of their own, as a host rounds them: equals must be equal.
__device__ __forceinline__ double mixture(double w, double p, double q) { return multiply(w, p) + multiply(1.0 - w, q); }

// The law at temperature 1 of a greedy row, with all its ids. All lanes of the warp must call it.
__device__ __forceinline__ RowLaw at_temperature_one(RowLaw law, const RowPartial* partials, int tiles) {
  law.rate = LOG2_E;
  law.min_weight = 0.f;
  double total = 0.0;
  for (int i = lane_id(); i < tiles; i += 32) total += merged_mass(partials[i], law.max, law.rate);
  law.inverse = float(1.0 / warp_sum(total));
  return law;
}

// The set's smallest probability under the typical rule: what is above min(epsilon, delta exp(-H)).
__device__ __forceinline__ float typical_bound(double entropy, const Relaxed& how) {
  const float bound = fminf(float(double(how.second_knob) * exp(-entropy)), how.knob);
  return __uint_as_float(__float_as_uint(bound) + 1u);  // the next float: the rule says more than the bound
}

// What the residual's law is scaled by under lenience, of its sums A and R.
__device__ __forceinline__ double lenience_factor(const PairSums& s) {
  return s.second > 0.0 ? fmax(1.0 - s.first, 0.0) / s.second : 0.0;
}

// The draft's largest probability in this tile's share of its row, and the mass there of ids from `vocab` on; a sparse law is
// the first tile's. All threads of the block must call it.
__device__ inline void draft_facts(const ChildLaw& child, int vocab, int tile, int tiles, BlockScratch& scratch, PairSums& sums) {
  const DraftLaw& draft = child.draft;
  const int begin = draft.dense ? tile * TILE : 0;
  const int end = draft.dense ? (tile == tiles - 1 ? draft.width : min(draft.width, begin + TILE)) : tile ? 0 : draft.width;
  float most = child.row < 0 ? 1.f : 0.f;
  double beyond = 0.0;
  for (int i = begin + int(threadIdx.x); child.row >= 0 && i < end; i += blockDim.x) {
    const long long row = row_offset(child.row, draft.width), at = row + i;
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
    if (outside && prob > 0.f) beyond += prob;
  }
  sums.largest = block_max(most, scratch);
  sums.third += 0.5 * double(LN_2) * block_sum(beyond, scratch);  // Jensen-Shannon: ids that the target does not have
}

// What a tile adds in one step of a rule, `before` being the row's sums of the step before it. Of a `greedy` row, whose law is
// the one at temperature 1 here, the tile's best.
template <class T>
__device__ PairSums tile_sums(const T* logits, int vocab, int tile, int tiles, const RelaxedRow& row, bool greedy, const Relaxed& how,
                              int step, const PairSums& before, float bound, BlockScratch& scratch) {
  const RowLaw& law = row.law;
  const ChildLaw& child = row.child;
  const int begin = tile * TILE, end = min(vocab, begin + TILE);
  // Calls visit(id, p, q) for this thread's ids of the tile, ascending. Neighbouring threads read neighbouring ids.
  const auto each_pair = [&](auto&& visit) {
#pragma unroll 1
    for (int id = begin + int(threadIdx.x); id < end; id += blockDim.x)
      visit(id, law_prob(law, id, to_float(logits[id])), child_prob(child, id));
  };
  PairSums own{0.0, 0.0, 0.0, 0.f, NO_ID};
  if (greedy) {
    const float own_draft_prob = child_prob(child, law.argmax);
    const double w = how.target_weight[row.node];
    BestOf<double> best{double(negative_infinity()), NO_ID};
    each_pair([&](int id, float p, float q) {
      if (q > own_draft_prob) best = better(best, BestOf<double>{mixture(w, p, q), id});
    });
    best = block_best(best, scratch.number, scratch);
    own.first = best.value;
    own.id = best.id;
    return own;
  }
  bool sound = true;
  const auto sum_pairs = [&](auto&& terms) {
    each_pair([&](int, float p, float q) {
      sound &= is_prob(q);
      terms(double(p), double(q));
    });
  };
  if (how.rule == RULE_TYPICAL && step == 0) {
    each_pair([&](int, float p, float) {
      if (p > 0.f) own.first -= double(p) * log(double(p));
    });
  } else if (how.by_set()) {
    const bool metering = step == (how.rule == RULE_TYPICAL ? 2 : 1);
    const double accepted = metering ? before.first : 0.0;
    sum_pairs([&](double p, double q) {
      if (p > 0.0 && p >= double(bound)) own.first += fmax(q - accepted * p, 0.0);
    });
  } else if (how.rule == RULE_LENIENCE && step == 0) {
    const double l = how.knob;
    sum_pairs([&](double p, double q) {
      own.first += fmin(q, p / l);
      own.second += fmax(p - l * q, 0.0);
    });
  } else if (how.rule == RULE_LENIENCE) {
    const double l = how.knob, factor = lenience_factor(before);
    sum_pairs([&](double p, double q) { own.first += fmax(fmin(q, p / l) + factor * fmax(p - l * q, 0.0) - p, 0.0); });
  } else {
    sum_pairs([&](double p, double q) {
      own.first += fmax(p - q, 0.0);
      if (p > 0.0) own.second += fmax(q - p, 0.0);
      if (how.rule == RULE_FUZZY_KULLBACK_LEIBLER) {
        if (p > 0.0) own.third += q > 0.0 ? p * log(p / q) : double(-negative_infinity());
      } else if (how.rule == RULE_FUZZY_JENSEN_SHANNON) {
        const double middle = 0.5 * (p + q);
        if (p > 0.0) own.third += 0.5 * p * log(p / middle);
        if (q > 0.0) own.third += 0.5 * q * log(q / middle);
      }
    });
  }
  PairSums sums{block_sum(own.first, scratch), block_sum(own.second, scratch), block_sum(own.third, scratch), 0.f, NO_ID};
  if (how.rule == RULE_CASCADE || how.rule == RULE_FUZZY_JENSEN_SHANNON) draft_facts(child, vocab, tile, tiles, scratch, sums);
  if (block_any(!sound, scratch)) sums.first = sums.second = double(__uint_as_float(0x7fc00000u));
  return sums;
}

// What a row's sums come to. All lanes of the warp must call it.
__device__ __forceinline__ Choice choice_of(const RelaxedRow& row, const RowPartial* partials, int tiles, const Relaxed& how, float bound,
                                            const PairSums* sums, long long step_words) {
  Choice choice = exact_choice();
  choice.status = row.status;
  if (row.law.status == STATUS_OK && row.greedy() && how.rule == RULE_ENSEMBLE) {
    choice.kind = CHOICE_TOKENS;
    choice.plain = choice.mixed = row.law.argmax;
  }
  if (!row.takes(how)) return choice;
  if (row.greedy()) {
    const float p = at_temperature_one(row.law, partials, tiles).inverse, q = child_prob(row.child, row.law.argmax);
    BestOf<double> best{mixture(how.target_weight[row.node], p, q), OWN};
    for (int i = lane_id(); i < tiles; i += 32) best = better(best, BestOf<double>{sums[i].first, sums[i].id});
    best = warp_best(best);
    if (best.id != OWN) choice.mixed = best.id;
    choice.bias = choice.mixed != choice.plain ? 1.0 : 0.0;
    return choice;
  }
  const PairSums s = row_sums(sums, tiles);
  if (how.by_set()) {
    choice.kind = CHOICE_SET;
    choice.value = how.rule == RULE_TYPICAL ? typical_bound(s.first, how) : bound;
    choice.bias = row_sums(sums + (how.rule == RULE_TYPICAL ? 2 : 1) * step_words, tiles).first;
  } else if (how.rule == RULE_LENIENCE) {
    choice.kind = CHOICE_LENIENCE;
    choice.value = how.knob;
    choice.bias = row_sums(sums + step_words, tiles).first;
  } else {
    const double distance = s.first, excess = s.second;
    choice.kind = how.beyond ? CHOICE_MIXTURE_BEYOND : CHOICE_MIXTURE;
    if (how.rule == RULE_ENSEMBLE) {
      choice.value = how.target_weight[row.node];
    } else {
      const double divergence = s.third < 0.0 ? 0.0 : s.third;  // rounding may leave a little below 0
      const double far = how.rule == RULE_FUZZY_TOTAL_VARIATION ? distance : divergence;
      const bool defer = how.rule == RULE_CASCADE ? double(s.largest) >= double(row.law.inverse) - double(how.knob) * distance
                                                  : far < double(how.knob);
      choice.value = defer ? 0.f : 1.f;
    }
    choice.bias = is_nan(float(distance)) ? distance : (1.0 - double(choice.value)) * (how.beyond ? distance : excess);
  }
  if (is_nan(float(choice.bias))) choice.status = STATUS_DRAFT_NAN;
  return choice;
}

template <class T>
__device__ void relaxed_sums(const void* logits, long long stride, int vocab, const RowLaw* laws, const RowPartial* partials, int tiles,
                             const long long* row_ptr, const long long* tokens, int requests, int kind, const DraftLaw& draft,
                             const Relaxed& how, const float* bounds, int step, PairSums* sums, BlockScratch& scratch) {
  const long long r = blockIdx.x / unsigned(tiles);
  const int tile = int(blockIdx.x % unsigned(tiles)), rows = int(gridDim.x / unsigned(tiles));
  RelaxedRow row(laws, row_ptr, tokens, requests, rows, kind, draft, r);
  if (!row.takes(how)) return;
  const long long step_words = row_offset(rows, tiles);
  sums += row_offset(r, tiles);
  const bool greedy = row.greedy();
  if (greedy) row.law = at_temperature_one(row.law, partials + row_offset(r, tiles), tiles);
  PairSums before{0.0, 0.0, 0.0, 0.f, NO_ID};
  float bound = bounds ? bounds[r] : 0.f;
  if (step) before = row_sums(sums + (step - 1) * step_words, tiles);
  if (step && how.rule == RULE_TYPICAL) bound = typical_bound(row_sums(sums, tiles).first, how);
  const T* own = static_cast<const T*>(logits) + row_offset(r, stride);
  const PairSums made = tile_sums(own, vocab, tile, tiles, row, greedy, how, step, before, bound, scratch);
  if (threadIdx.x == 0) sums[step * step_words + tile] = made;
}

// The probability of the k-th largest logit; 0 where there are fewer.
template <class T>
__device__ float relaxed_bound(const Tile<T>& row, const Leaders& leaders, const RowLaw& law, float k, SelectScratch& select,
                               BlockScratch& scratch) {
  if (law.status != STATUS_OK || law.rate == 0.f || k >= float(row.vocab)) return 0.f;
  const unsigned floor = leaders.floor(scratch), least = order_key(negative_infinity());
  const auto goal = (unsigned long long)(k);
  Selected s = select_from_top(leaders, law, least, -1, false, goal, 0.0, select, scratch);
  if (!s.reached || s.key <= floor) s = select_from_top(row, law, least, -1, false, goal, 0.0, select, scratch);
  return exp2_nonpositive((key_value(s.key) - law.max) * law.rate) * law.inverse;
}

}  // namespace specrs

#define SPECRS_RELAXED_SUMS(suffix, T)                                                                                    \
  SPECRS_KERNEL_FEW(256, 3, relaxed_sums_##suffix)(                                                                       \
      const void* logits, long long stride, int vocab, const void* laws, const void* partials, int tiles,                 \
      const long long* row_ptr, const long long* tokens, int requests, int kind, const float* dense,                      \
      const long long* sparse_ids, const float* sparse_probs, int width, const long long* row_of, long long law_rows,     \
      int rule, const float* target_weight, float knob, float second_knob, const float* bounds, int step, void* sums) {   \
    using namespace specrs;                                                                                               \
    __shared__ BlockScratch scratch;                                                                                      \
    relaxed_sums<T>(logits, stride, vocab, static_cast<const RowLaw*>(laws), static_cast<const RowPartial*>(partials),    \
                    tiles, row_ptr, tokens, requests, kind,                                                               \
                    DraftLaw{dense, sparse_ids, sparse_probs, width, row_of, law_rows},                                   \
                    Relaxed{rule, target_weight, knob, second_knob, false}, bounds, step, static_cast<PairSums*>(sums), scratch); \
  }                                                                                                                       \
  SPECRS_EXPORT(relaxed_sums_##suffix, 256)                                                                               \
  SPECRS_KERNEL_FEW(256, 2, relaxed_bound_##suffix)(const void* logits, long long stride, int vocab, const void* laws,    \
                                                    const void* list, const void* listed, float k, float* bounds) {       \
    using namespace specrs;                                                                                               \
    __shared__ SelectScratch select;                                                                                      \
    __shared__ BlockScratch scratch;                                                                                      \
    const long long r = blockIdx.x;                                                                                       \
    const Tile<T> row(static_cast<const T*>(logits) + row_offset(r, stride), vocab);                                      \
    const Leaders leaders(static_cast<const Leader*>(list), static_cast<const ListedTile*>(listed), r, vocab);            \
    const float bound = relaxed_bound(row, leaders, static_cast<const RowLaw*>(laws)[r], k, select, scratch);             \
    if (threadIdx.x == 0) bounds[r] = bound;                                                                              \
  }                                                                                                                       \
  SPECRS_EXPORT(relaxed_bound_##suffix, 256)
SPECRS_RELAXED_SUMS(f32, float)
SPECRS_RELAXED_SUMS(bf16, specrs::bf16)
SPECRS_RELAXED_SUMS(f16, specrs::f16)

// Grid ceil(R / 8), 256 threads: one warp per row.
SPECRS_KERNEL_FEW(256, 4, relaxed_choice)(const void* laws, const void* partials, int tiles, int rows, const long long* row_ptr,
                                          const long long* tokens, int requests, int kind, const float* dense,
                                          const long long* sparse_ids, const float* sparse_probs, int width,
                                          const long long* row_of, long long law_rows, int rule, const float* target_weight,
                                          float knob, float second_knob, int beyond, const float* bounds, const void* sums,
                                          void* choices) {
  using namespace specrs;
  const long long r = (long long)(blockIdx.x) * warp_count() + warp_id();
  if (r >= rows) return;
  const DraftLaw draft{dense, sparse_ids, sparse_probs, width, row_of, law_rows};
  const RelaxedRow row(static_cast<const RowLaw*>(laws), row_ptr, tokens, requests, rows, kind, draft, r);
  const Choice choice = choice_of(row, static_cast<const RowPartial*>(partials) + row_offset(r, tiles), tiles,
                                  Relaxed{rule, target_weight, knob, second_knob, beyond != 0}, bounds ? bounds[r] : 0.f,
                                  static_cast<const PairSums*>(sums) + row_offset(r, tiles), row_offset(rows, tiles));
  if (lane_id() == 0) static_cast<Choice*>(choices)[r] = choice;
}
SPECRS_EXPORT(relaxed_choice, 256)
