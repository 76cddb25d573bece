// One source, two compilers: nvcc for the device, g++ with cuda/emulator for tests.
//
// Rules that keep a kernel testable on the CPU: blocks have a multiple of 32 threads; warp operations take full masks;
// shared memory is declared in the extern "C" entry and handed down; what needs inline PTX sits behind a function of
// this folder that the emulator models too.
#pragma once

#ifdef __CUDACC__
#include <cstdint>
#define SPECRS_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define SPECRS_EXPORT(name, threads)
#else
#include "../../emulator/emulator.h"
#define SPECRS_DYNAMIC_SHARED(name) unsigned char* name = reinterpret_cast<unsigned char*>(emu::dynamic_shared)
#define SPECRS_EXPORT(name, threads)                                                                  \
  static const emu::Register registered_##name(emu::Entry{                                            \
      #name, threads, emu::signature(name),                                                           \
      [](dim3 g, dim3 b, size_t s, void** p) { emu::launch(name, g, b, s, p); }});
#endif

// Entry of a kernel whose blocks have at most `threads` threads.
#define SPECRS_KERNEL(threads, name) extern "C" __global__ void __launch_bounds__(threads) name
// The same, for a kernel that runs few blocks at once: its threads may use as many registers as `blocks` blocks allow.
#define SPECRS_KERNEL_FEW(threads, blocks, name) extern "C" __global__ void __launch_bounds__(threads, blocks) name

namespace specrs {

constexpr unsigned FULL_WARP = 0xffffffffu;

// The only place where a row number meets a row length: the product passes 2^31 at 14,134 rows of 151,936.
__device__ __forceinline__ long long row_offset(long long row, long long stride) { return row * stride; }

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0xff800000u); }
__device__ __forceinline__ bool is_nan(float x) { return x != x; }

// A product that is rounded by itself: never fused into the sum that follows, so that host and device agree to the bit.
__device__ __forceinline__ double multiply(double a, double b) {
#ifdef __CUDACC__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// 16 bytes, the widest access of one thread.
struct __attribute__((aligned(16))) Chunk {
  unsigned word[4];
};

__device__ __forceinline__ Chunk load_chunk(const void* address) {
#ifdef __CUDACC__
  const uint4 v = *reinterpret_cast<const uint4*>(address);
  return Chunk{{v.x, v.y, v.z, v.w}};
#else
  if (reinterpret_cast<uintptr_t>(address) % 16) emu::fault("16-byte load from an address that is not aligned");
  Chunk c;
  memcpy(&c, address, 16);
  return c;
#endif
}

__device__ __forceinline__ void store_chunk(void* address, const Chunk& c) {
#ifdef __CUDACC__
  *reinterpret_cast<uint4*>(address) = make_uint4(c.word[0], c.word[1], c.word[2], c.word[3]);
#else
  if (reinterpret_cast<uintptr_t>(address) % 16) emu::fault("16-byte store to an address that is not aligned");
  memcpy(address, &c, 16);
#endif
}

}  // namespace specrs
