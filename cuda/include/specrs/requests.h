// Which rows and nodes of the ragged arrays are whose.
//
// row_ptr lies on the device and nobody has looked at its values. What follows from them is held against the arrays'
// lengths before it becomes an address: a request whose range does not lie within them is not entered and has a status.
#pragma once
#include "portable.h"
#include "status.h"

namespace specrs {

// The request that owns a row: the last b with row_ptr[b] <= row. Requests without rows are skipped by construction.
// Whatever row_ptr holds, the answer is a request.
__device__ __forceinline__ int request_of_row(const long long* row_ptr, int requests, long long row) {
  int low = 0, high = requests;  // row_ptr[low] <= row < row_ptr[high]
  while (high - low > 1) {
    const int middle = (low + high) >> 1;
    if (row_ptr[middle] <= row) low = middle;
    else high = middle;
  }
  return low;
}

// Whether request b has rows, all of them among `rows`.
__device__ __forceinline__ bool has_rows(const long long* row_ptr, long long rows, int b) {
  const long long first = row_ptr[b], end = row_ptr[b + 1];
  return first >= 0 && end > first && end <= rows;
}

// Whether `row` is one of request b's.
__device__ __forceinline__ bool is_among(const long long* row_ptr, long long rows, int b, long long row) {
  return has_rows(row_ptr, rows, b) && row >= row_ptr[b] && row < row_ptr[b + 1];
}

// One request's rows and nodes.
struct RequestRange {
  long long first_row, first_node;
  int nodes;   // -1 for a request that is not entered
  int status;  // of one that is not entered: OK without rows (padding of a captured graph), else STATUS_ROWS_OUT_OF_RANGE
};

// `rows` rows are `requests` anchors and the nodes between them.
__device__ __forceinline__ RequestRange request_range(const long long* row_ptr, int requests, long long rows, int b) {
  const long long first = row_ptr[b], end = row_ptr[b + 1];
  if (end == first) return RequestRange{first, 0, -1, STATUS_OK};
  const bool inside = has_rows(row_ptr, rows, b) && first >= b && end - b - 1 <= rows - requests;
  return RequestRange{first, first - b, inside ? int(end - first) - 1 : -1, inside ? STATUS_OK : STATUS_ROWS_OUT_OF_RANGE};
}

}  // namespace specrs
