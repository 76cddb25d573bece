// Runs the source of a CUDA kernel on the CPU, for tests: settings, faults, launch. nvcc never sees this file.
//
// A kernel is compiled by g++ with the names of CUDA mapped to this header. Threads of one block run as fibers on one
// OS thread (fibers.h), in an order the test chooses, so a missing barrier shows as a wrong result in at least one
// order and every run repeats exactly. With -DEMU_OS_THREADS each CUDA thread is an OS thread (os_threads.h), so that
// the thread and address sanitizers see the accesses.
//
// What is checked: all threads of a block meet at the same barrier; the lanes of a warp agree on mask and operation;
// shared memory starts poisoned (0xFF: NaN, -1) in every block; blocks run in forward, reverse or shuffled order; loads,
// stores and asynchronous copies of 16 bytes are aligned in global memory.
// What is not: the weak memory model, blocks running at once, bank conflicts, registers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};

// Shared variables live in one linker section, so that a block starts with all of them poisoned. g++ drops the section
// of a static in a template or an inline function: kernels declare shared memory in their extern "C" entry alone.
extern "C" {
extern char __start_cuda_shared[] __attribute__((weak));
extern char __stop_cuda_shared[] __attribute__((weak));
}

namespace emu {

enum Order { FORWARD, REVERSE, SHUFFLE };

struct Config {
  Order threads = FORWARD;
  Order blocks = FORWARD;
  uint64_t seed = 1;
  bool poison = true;
};

inline Config config;
inline dim3 grid_dim, block_dim;
inline char* dynamic_shared = nullptr;

inline uint64_t next_random() {  // xorshift64
  uint64_t& s = config.seed;
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return s;
}

inline void arrange(std::vector<unsigned>& order, Order how) {
  for (unsigned i = 0; i < order.size(); i++) order[i] = how == REVERSE ? unsigned(order.size()) - 1 - i : i;
  if (how == SHUFFLE)
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[next_random() % i]);
}

// The largest value that one lane hands to the others in one exchange.
constexpr size_t SLOT_BYTES = 64;

struct Warp {
  alignas(16) unsigned char slot[2][32][SLOT_BYTES];  // two generations: a fast lane may already write the next one
  unsigned arrived = 0, mask = 0, generation = 0;
  const char* operation = nullptr;
};

struct AsyncCopy {
  void* shared;
  const void* global;
};

struct Thread {
  unsigned index = 0;
  uint3 thread_idx{}, block_idx{};
  enum { RUNNING, AT_BLOCK_BARRIER, AT_WARP_BARRIER, EXITED } state = RUNNING;
  unsigned warp_generation = 0, block_generation = 0;
  const char* where = "";
  void* stack_pointer = nullptr;
  std::vector<AsyncCopy> copies;  // of cp.async, not yet done
  std::vector<size_t> groups;     // ends of the closed groups among them
};

inline std::vector<Thread> threads;
inline std::vector<Warp> warps;

}  // namespace emu

#ifdef EMU_OS_THREADS
#include "os_threads.h"
#else
#include "fibers.h"
#endif

namespace emu {

// Every lane hands over `value`; `all` receives the 32 values of the warp. Full warps only: our kernels use no others.
template <class T>
void gather(const T& value, T (&all)[32], const char* operation) {
  static_assert(sizeof(T) <= SLOT_BYTES && std::is_trivially_copyable_v<T>, "a lane hands over at most 64 bytes");
  Thread& t = self();
  Warp& w = warps[t.index / 32];
  const unsigned generation = warp_generation() & 1;
  memcpy(w.slot[generation][t.index % 32], &value, sizeof(T));
  wait_warp(operation);
  for (unsigned lane = 0; lane < 32; lane++) memcpy(&all[lane], w.slot[generation][lane], sizeof(T));
}

template <class T>
T exchange(unsigned mask, T value, unsigned source, bool in_range, const char* operation) {
  static_assert(sizeof(T) <= SLOT_BYTES && std::is_trivially_copyable_v<T>, "a lane hands over at most 64 bytes");
  if (mask != 0xffffffffu) fault("only full warp masks are modelled");
  Thread& t = self();
  Warp& w = warps[t.index / 32];
  const unsigned generation = warp_generation() & 1;
  memcpy(w.slot[generation][t.index % 32], &value, sizeof(T));
  wait_warp(operation);
  if (in_range) memcpy(&value, w.slot[generation][source & 31], sizeof(T));
  return value;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** parameters, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(parameters[I])...);
}

// Launches with the parameter convention of cuLaunchKernel: an array of pointers to the arguments.
template <class... A>
void launch(void (*kernel)(A...), dim3 grid, dim3 block, size_t shared_bytes, void** parameters) {
  grid_dim = grid;
  block_dim = block;
  if ((block.x * block.y * block.z) % 32) throw std::runtime_error("the block is not a multiple of 32 threads");
  std::vector<uint64_t> shared((shared_bytes + 7) / 8);  // exactly as large as asked, so that ASan sees an overrun
  dynamic_shared = reinterpret_cast<char*>(shared.data());
  std::function<void()> body = [&] { call(kernel, parameters, std::index_sequence_for<A...>()); };
  std::vector<unsigned> order(size_t(grid.x) * grid.y * grid.z);
  arrange(order, config.blocks);
  for (unsigned i : order) {
    if (config.poison) {
      memset(dynamic_shared, 0xFF, shared.size() * 8);
      if (__start_cuda_shared) memset(__start_cuda_shared, 0xFF, size_t(__stop_cuda_shared - __start_cuda_shared));
    }
    run_block(uint3{i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)}, body);
  }
}

// One letter per parameter: P pointer, i int32, l int64, f float. Compared with the launcher's own table in a test.
template <class T>
constexpr char letter() {
  if constexpr (std::is_pointer_v<T>) return 'P';
  else if constexpr (std::is_same_v<T, int>) return 'i';
  else if constexpr (std::is_same_v<T, long long>) return 'l';
  else if constexpr (std::is_same_v<T, float>) return 'f';
  else return '?';
}

struct Entry {
  const char* name;
  unsigned max_threads;
  std::string signature;
  void (*launch)(dim3, dim3, size_t, void**);
};

inline std::vector<Entry>& kernels() {
  static std::vector<Entry> table;
  return table;
}

template <class... A>
std::string signature(void (*)(A...)) {
  return std::string{letter<A>()...};
}

struct Register {
  Register(Entry e) { kernels().push_back(std::move(e)); }
};

inline const Entry* find(const char* name) {
  for (const Entry& e : kernels())
    if (!strcmp(e.name, name)) return &e;
  return nullptr;
}

}  // namespace emu

#include "intrinsics.h"
