// The sanitizer backend of the emulator: each CUDA thread is an OS thread, so data races and overruns are seen.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace emu {

class Barrier {
 public:
  explicit Barrier(unsigned count) : needed_(count) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const unsigned g = generation_;
    if (++arrived_ == needed_) release();
    else changed_.wait(lock, [&] { return generation_ != g; });
  }
  void leave() {  // a thread that has exited is no longer waited for
    std::lock_guard<std::mutex> lock(mutex_);
    if (--needed_ && arrived_ == needed_) release();
  }

 private:
  void release() {
    arrived_ = 0;
    generation_++;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned needed_, arrived_ = 0, generation_ = 0;
};

inline thread_local Thread* current = nullptr;
inline std::unique_ptr<Barrier> block_barrier;
inline std::vector<std::unique_ptr<Barrier>> warp_barriers;

inline Thread& self() { return *current; }
inline unsigned warp_generation() { return self().warp_generation; }
[[noreturn]] inline void fault(const char* what) {
  fprintf(stderr, "emulator: thread %u: %s\n", self().index, what);
  abort();
}
inline void wait_block() { block_barrier->wait(); }
inline void wait_warp(const char*) {
  warp_barriers[self().index / 32]->wait();
  self().warp_generation++;
}

inline void run_block(uint3 block_idx, std::function<void()>& body) {
  const unsigned count = block_dim.x * block_dim.y * block_dim.z;
  threads.assign(count, Thread());
  warps.resize(count / 32);
  warp_barriers.clear();
  block_barrier = std::make_unique<Barrier>(count);
  for (unsigned i = 0; i < count; i += 32) warp_barriers.push_back(std::make_unique<Barrier>(32));
  std::vector<std::thread> running;
  for (unsigned i = 0; i < count; i++) {
    Thread& t = threads[i];
    t.index = i;
    t.thread_idx = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
    t.block_idx = block_idx;
    running.emplace_back([i, &body] {
      current = &threads[i];
      body();
      block_barrier->leave();
      warp_barriers[i / 32]->leave();
    });
  }
  for (std::thread& t : running) t.join();
}

}  // namespace emu
