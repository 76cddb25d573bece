// The deterministic backend of the emulator: the threads of a block are fibers on one OS thread.
#pragma once
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emu {

inline Thread* current = nullptr;
inline unsigned alive, block_arrived, block_generation;
inline std::function<void()>* block_body = nullptr;
inline std::string fault_text;

inline Thread& self() { return *current; }
inline unsigned warp_generation() { return warps[self().index / 32].generation; }

inline void fiber_entry();

#ifdef __x86_64__
inline void* scheduler_sp = nullptr;
extern "C" void specrs_emu_switch(void** save, void* to);
asm(".text\n.weak specrs_emu_switch\n.type specrs_emu_switch,@function\nspecrs_emu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size specrs_emu_switch,.-specrs_emu_switch\n");
inline void prepare(Thread& t, char* stack, size_t bytes) {
  void** p = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t(15));
  *--p = nullptr;  // a return address that is never used keeps the stack aligned at entry
  *--p = reinterpret_cast<void*>(&fiber_entry);
  for (int i = 0; i < 6; i++) *--p = nullptr;
  t.stack_pointer = p;
}
inline void yield() { specrs_emu_switch(&current->stack_pointer, scheduler_sp); }
inline void resume(Thread& t) { specrs_emu_switch(&scheduler_sp, t.stack_pointer); }
#else  // other processors: the C library's contexts, about 20 times slower per switch
inline ucontext_t scheduler_context;
inline std::vector<ucontext_t> contexts;
inline void prepare(Thread& t, char* stack, size_t bytes) {
  if (contexts.size() <= t.index) contexts.resize(t.index + 1);
  ucontext_t& c = contexts[t.index];
  getcontext(&c);
  c.uc_stack.ss_sp = stack;
  c.uc_stack.ss_size = bytes;
  c.uc_link = nullptr;
  makecontext(&c, reinterpret_cast<void (*)()>(&fiber_entry), 0);
}
inline void yield() { swapcontext(&contexts[current->index], &scheduler_context); }
inline void resume(Thread& t) { swapcontext(&scheduler_context, &contexts[t.index]); }
#endif

// A fault of the kernel under test. The fiber stops here for good; the scheduler raises the text.
[[noreturn]] inline void fault(const char* what) {
  fault_text = "thread " + std::to_string(self().index) + ": " + what;
  for (;;) yield();
}

inline void fiber_entry() {
  (*block_body)();
  current->state = Thread::EXITED;
  alive--;
  for (;;) yield();
}

inline void wait_block() {
  Thread& t = self();
  t.state = Thread::AT_BLOCK_BARRIER;
  t.where = "__syncthreads";
  const unsigned g = block_generation;
  block_arrived++;
  while (block_generation == g) yield();
  t.state = Thread::RUNNING;
}

inline void wait_warp(const char* operation) {
  Thread& t = self();
  Warp& w = warps[t.index / 32];
  if (w.arrived == 0) w.operation = operation;
  else if (strcmp(w.operation, operation)) fault("lanes of one warp meet at different operations");
  t.state = Thread::AT_WARP_BARRIER;
  t.where = operation;
  w.arrived |= 1u << (t.index % 32);
  if (w.arrived == 0xffffffffu) {
    w.arrived = 0;
    w.generation++;
  } else {
    const unsigned g = w.generation;
    while (w.generation == g) yield();
  }
  t.state = Thread::RUNNING;
}

[[noreturn]] inline void report_divergence() {
  std::string text = "deadlock: divergent __syncthreads or an incomplete warp;";
  int listed = 0;
  for (const Thread& t : threads)
    if (t.state != Thread::EXITED && listed++ < 8) text += " thread " + std::to_string(t.index) + " waits at " + t.where + ";";
  throw std::runtime_error(text);
}

inline void run_block(uint3 block_idx, std::function<void()>& body) {
  constexpr size_t STACK_BYTES = 64 * 1024;
  static std::vector<char> stacks;
  const unsigned count = block_dim.x * block_dim.y * block_dim.z;
  if (stacks.size() < count * STACK_BYTES) stacks.resize(count * STACK_BYTES);
  threads.assign(count, Thread());
  warps.resize(count / 32);
  for (Warp& w : warps) w.arrived = w.generation = 0;
  alive = count;
  block_arrived = block_generation = 0;
  block_body = &body;
  fault_text.clear();
  for (unsigned i = 0; i < count; i++) {
    Thread& t = threads[i];
    t.index = i;
    t.thread_idx = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
    t.block_idx = block_idx;
    prepare(t, &stacks[i * STACK_BYTES], STACK_BYTES);
  }
  std::vector<unsigned> order(count);
  arrange(order, config.threads);
  while (alive) {
    if (config.threads == SHUFFLE) arrange(order, SHUFFLE);
    bool progress = false;
    for (unsigned i : order) {
      Thread& t = threads[i];
      if (t.state == Thread::EXITED) continue;
      if (t.state == Thread::AT_BLOCK_BARRIER && t.block_generation == block_generation) continue;
      if (t.state == Thread::AT_WARP_BARRIER && t.warp_generation == warps[i / 32].generation) continue;
      current = &t;
      t.block_generation = block_generation;
      t.warp_generation = warps[i / 32].generation;
      resume(t);
      progress = true;
      t.block_generation = block_generation;
      t.warp_generation = warps[i / 32].generation;
      if (!fault_text.empty()) throw std::runtime_error(fault_text);
    }
    if (alive && block_arrived == alive) {
      block_arrived = 0;
      block_generation++;
      progress = true;
    }
    if (!progress && alive) report_divergence();
  }
}

}  // namespace emu
