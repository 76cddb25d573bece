// The names of CUDA C++ that our kernels use, mapped to the emulator.
#pragma once

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __shared__ static __attribute__((section("cuda_shared")))
#define threadIdx (emu::self().thread_idx)
#define blockIdx (emu::self().block_idx)
#define blockDim (emu::block_dim)
#define gridDim (emu::grid_dim)

inline void __syncthreads() { emu::wait_block(); }
inline void __syncwarp() { emu::wait_warp("__syncwarp"); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  return emu::exchange(mask, value, unsigned(source) & 31, true, "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return emu::exchange(mask, value, (emu::self().index % 32) ^ unsigned(lanes), true, "__shfl_xor_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = emu::self().index % 32;
  return emu::exchange(mask, value, lane - delta, lane >= delta, "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = emu::self().index % 32;
  return emu::exchange(mask, value, lane + delta, lane + delta < 32, "__shfl_down_sync");
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  if (mask != 0xffffffffu) emu::fault("only full warp masks are modelled");
  int all[32];
  emu::gather(predicate, all, "__ballot_sync");
  unsigned bits = 0;
  for (int lane = 0; lane < 32; lane++) bits |= unsigned(all[lane] != 0) << lane;
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline float __expf(float x) { return expf(x); }
inline float exp2f_approx(float x) { return exp2f(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline unsigned __float_as_uint(float x) {
  unsigned u;
  memcpy(&u, &x, 4);
  return u;
}
inline float __uint_as_float(unsigned u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

// Integers alone: a float atomic would make the result depend on the order of the threads.
template <class T>
T atomicAdd(T* p, T value) {
  static_assert(std::is_integral_v<T>, "no float atomics");
  return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMin(T* p, T value) {
  static_assert(std::is_integral_v<T>, "no float atomics");
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old > value && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}
template <class T>
T atomicMax(T* p, T value) {
  static_assert(std::is_integral_v<T>, "no float atomics");
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}
template <class T>
T atomicOr(T* p, T value) {
  static_assert(std::is_integral_v<T>, "no float atomics");
  return __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}

using std::max;
using std::min;
