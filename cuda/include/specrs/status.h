// The status word of a row or request. The numbers are part of the interface (Rust names them alike).
#pragma once

namespace specrs {

enum Status : int {
  STATUS_OK = 0,
  STATUS_RESIDUAL_EMPTY = 1,  // target and draft law agree up to rounding; the target's law was drawn from
  STATUS_TARGET_NAN = 2,      // NaN, +inf, or no finite logit at all in a target row
  STATUS_DRAFT_NAN = 3,       // NaN, infinite or negative probability in a draft row
  STATUS_ID_OUT_OF_RANGE = 4,  // a draft id outside the vocabulary; it and what follows was not accepted
  STATUS_ROWS_OUT_OF_RANGE = 5  // row_ptr runs backwards or out of the arrays; a host refuses it
};

}  // namespace specrs
