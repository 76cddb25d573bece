// Collectives of a warp. All 32 lanes must call them.
#pragma once
#include "portable.h"

namespace specrs {

__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ int warp_id() { return threadIdx.x >> 5; }

// The best (value, id): larger value first, then the smaller id. Starts at (-inf, NO_ID).
constexpr int NO_ID = 0x7fffffff;
template <class V>
struct BestOf {
  V value;
  int id;
};
using Best = BestOf<float>;
template <class V>
__device__ __forceinline__ BestOf<V> better(BestOf<V> a, BestOf<V> b) {
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

// The butterfly order is fixed, so a sum is bitwise the same in every run and in every lane.
template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, o));
  return v;
}
__device__ __forceinline__ int warp_min(int v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = min(v, __shfl_xor_sync(FULL_WARP, v, o));
  return v;
}
template <class V>
__device__ __forceinline__ BestOf<V> warp_best(BestOf<V> v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const BestOf<V> other{__shfl_xor_sync(FULL_WARP, v.value, o), __shfl_xor_sync(FULL_WARP, v.id, o)};
    v = better(v, other);
  }
  return v;
}
// Inclusive prefix sum over the lanes.
template <class T>
__device__ __forceinline__ T warp_scan(T v) {
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const T below = __shfl_up_sync(FULL_WARP, v, o);
    if (lane_id() >= o) v += below;
  }
  return v;
}

}  // namespace specrs
