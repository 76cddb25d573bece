// Tensor-core products and asynchronous copies (sm_80 and newer), with the emulator's model of the same instructions.
#pragma once
#include "dtype.h"
#include "warp.h"

namespace specrs {

// The layouts are those of mma.sync.m16n8k16: lane t holds, with g = t / 4 and c = 2 * (t % 4),
//   A: {(g, c..c+1), (g + 8, c..), (g, c + 8..), (g + 8, c + 8..)};  B: {(c..c+1, g), (c + 8.., g)};
//   C: (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1).
struct FragmentA {
  unsigned reg[4];
};
struct FragmentB {
  unsigned reg[2];
};

// c += a * b for 16 x 16 and 16 x 8 matrices of T, float32 sums. All lanes must call it.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const FragmentA& a, const FragmentB& b);

#ifdef __CUDACC__
#define SPECRS_MMA(T, name)                                                                                          \
  template <>                                                                                                        \
  __device__ __forceinline__ void multiply_add<T>(float (&c)[4], const FragmentA& a, const FragmentB& b) {           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
                 "{%0,%1,%2,%3};"                                                                                    \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                    \
                 : "r"(a.reg[0]), "r"(a.reg[1]), "r"(a.reg[2]), "r"(a.reg[3]), "r"(b.reg[0]), "r"(b.reg[1]));        \
  }
SPECRS_MMA(bf16, "bf16")
SPECRS_MMA(f16, "f16")
#undef SPECRS_MMA
#else
template <class T>
void multiply_add(float (&c)[4], const FragmentA& a, const FragmentB& b) {
  struct Both {
    FragmentA a;
    FragmentB b;
  };
  Both all[32];
  emu::gather(Both{a, b}, all, "mma");
  const auto half = [](unsigned word, int which) { return to_float(T{(unsigned short)(word >> (which ? 16 : 0))}); };
  const int group = lane_id() / 4, column = 2 * (lane_id() % 4);
  for (int i = 0; i < 4; i++) {
    const int row = group + (i >= 2 ? 8 : 0), col = column + (i & 1);
    for (int k = 0; k < 16; k++) {
      const FragmentA& from_a = all[row % 8 * 4 + k % 8 / 2].a;
      const FragmentB& from_b = all[col * 4 + k % 8 / 2].b;
      c[i] += half(from_a.reg[(row >= 8) + 2 * (k >= 8)], k & 1) * half(from_b.reg[k >= 8], k & 1);
    }
  }
}
#endif

// Four 8 x 8 matrices of 16-bit elements, transposed: lane t gives the address of row t % 8 of matrix t / 8 and receives
// elements (2 * (t % 4), t / 4) and (2 * (t % 4) + 1, t / 4) of each. All lanes must call it.
__device__ __forceinline__ void load_transposed(unsigned (&out)[4], const void* row) {
#ifdef __CUDACC__
  const unsigned address = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
#else
  const void* rows[32];
  emu::gather(row, rows, "ldmatrix");
  for (int m = 0; m < 4; m++) {
    const int first = m * 8 + 2 * (lane_id() % 4), column = lane_id() / 4;
    const unsigned low = static_cast<const unsigned short*>(rows[first])[column];
    const unsigned high = static_cast<const unsigned short*>(rows[first + 1])[column];
    out[m] = low | high << 16;
  }
  emu::wait_warp("ldmatrix end");  // the rows are read before any lane goes on
#endif
}

// Two floats as one word of T, the first in the low half; rounds to nearest even.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
#ifdef __CUDACC__
  unsigned both;
  if constexpr (sizeof(T) == 2 && T::IS_BFLOAT) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return unsigned(from_float<T>(low).bits) | unsigned(from_float<T>(high).bits) << 16;
#endif
}

// Copies 16 bytes to shared memory without waiting. Visible to this thread after wait_copies, to others after a barrier.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
#else
  if (reinterpret_cast<uintptr_t>(global) % 16) emu::fault("asynchronous copy from an address that is not aligned");
  emu::self().copies.push_back({shared, global});
#endif
}

// Closes a group of copies.
__device__ __forceinline__ void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emu::self().groups.push_back(emu::self().copies.size());
#endif
}

// Waits until at most `PENDING` of this thread's groups are under way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#else
  emu::Thread& t = emu::self();
  while (t.groups.size() > PENDING) {  // the emulator copies as late as the device may
    const size_t count = t.groups.front();
    t.groups.erase(t.groups.begin());
    for (size_t i = 0; i < count; i++) memcpy(t.copies[i].shared, t.copies[i].global, 16);
    t.copies.erase(t.copies.begin(), t.copies.begin() + std::ptrdiff_t(count));
    for (size_t& group : t.groups) group -= count;
  }
#endif
}

}  // namespace specrs
