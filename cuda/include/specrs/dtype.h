// Element types of logits and caches: float, and 16-bit types held as their bits.
#pragma once
#include "portable.h"
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace specrs {

struct bf16 {
  static constexpr bool IS_BFLOAT = true;
  unsigned short bits;
};
struct f16 {
  static constexpr bool IS_BFLOAT = false;
  unsigned short bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ __forceinline__ float to_float(f16 x) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(x.bits));
#else
  _Float16 h;
  memcpy(&h, &x.bits, 2);
  return float(h);
#endif
}

template <class T>
__device__ __forceinline__ T from_float(float x);

template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
// Round to nearest, ties to even; NaN stays NaN.
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  const unsigned u = __float_as_uint(x);
  if (is_nan(x)) return bf16{(unsigned short)(u >> 16 | 0x40)};
  return bf16{(unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
#ifdef __CUDACC__
  return f16{__half_as_ushort(__float2half_rn(x))};
#else
  const _Float16 h = _Float16(x);
  f16 r;
  memcpy(&r.bits, &h, 2);
  return r;
#endif
}

template <class T>
struct Vec {
  static constexpr int WIDTH = 16 / int(sizeof(T));
};

// Element e of a chunk, e known at compile time after unrolling.
__device__ __forceinline__ float chunk_element(const Chunk& c, int e, float) { return __uint_as_float(c.word[e]); }
__device__ __forceinline__ float chunk_element(const Chunk& c, int e, bf16) {
  return __uint_as_float(e & 1 ? c.word[e >> 1] & 0xffff0000u : c.word[e >> 1] << 16);
}
__device__ __forceinline__ float chunk_element(const Chunk& c, int e, f16) {
  return to_float(f16{(unsigned short)(c.word[e >> 1] >> (e & 1 ? 16 : 0))});
}

}  // namespace specrs
