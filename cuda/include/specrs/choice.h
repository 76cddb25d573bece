// What a relaxed rule comes down to at one row: which of three tests its child takes, and what that costs in bias.
#pragma once
#include "accept.h"

namespace specrs {

enum ChoiceKind : int {
  CHOICE_MIXTURE = 0,         // emits value * p + (1 - value) * q, on p's support
  CHOICE_MIXTURE_BEYOND = 1,  // the same on both supports
  CHOICE_LENIENCE = 2,        // min(1, p / (value * q)), else norm((p - value * q)+)
  CHOICE_SET = 3,             // what has at least this probability stands, else p
  CHOICE_TOKENS = 4           // greedy: one token is right, the mixture's or the target's own
};

struct Choice {
  double bias;   // total variation between what the choice emits and p
  float value;
  int kind;
  int mixed, plain;  // CHOICE_TOKENS
  int status;        // STATUS_DRAFT_NAN: the draft row is no law
  int unused;
};
static_assert(sizeof(Choice) == 32, "one choice is 8 words, see ops");

// Rejection sampling: what a position without a choice, or without the budget for one, is verified by.
__device__ __forceinline__ Choice exact_choice() { return Choice{0.0, 1.f, CHOICE_MIXTURE, -1, -1, STATUS_OK, 0}; }

// Whether the token stands. `coin` is the accept coin of the row.
__device__ __forceinline__ bool stands(const Choice& choice, const Candidate& c, double coin) {
  const double p = c.target_prob, q = c.draft_prob, v = choice.value;
  if (choice.kind == CHOICE_SET) return c.target_prob > 0.f && c.target_prob >= choice.value;
  if (choice.kind == CHOICE_LENIENCE) return coin * v * q < p;
  const bool supported = choice.kind == CHOICE_MIXTURE_BEYOND || c.target_prob > 0.f;
  return supported && coin * q < (v == 1.0 ? p : (1.0 - v) * q + v * p);
}

// Where the bonus behind a rejected token comes from.
__device__ __forceinline__ void leave_residual(const Choice& choice, const DraftLaw& draft, int kind, long long node, int token,
                                               DrawSite& site) {
  if (choice.kind == CHOICE_SET) return;  // the target's own law
  if (kind == DRAFT_ONE_HOT) {
    site.exclude = token;
    return;
  }
  site.draft_row = draft_row(draft, node);
  site.draft_scale = choice.kind == CHOICE_LENIENCE ? choice.value : 1.f;
}

}  // namespace specrs
