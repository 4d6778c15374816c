// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs a CUDA kernel's own source on the CPU: every thread of a block is a coroutine, and the threads of a warp
// meet at each warp-wide instruction, those of a block at each barrier. Threads that do not meet, and reads
// outside the operands that the launch names, end the launch with an error.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};

inline uint3 threadIdx, blockIdx, blockDim, gridDim;

inline int min(int a, int b) { return a < b ? a : b; }

namespace simt {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

enum class Wait { none, warp, block, done };

struct Range {
  uintptr_t begin, end;
};

// One warp-wide instruction: what each lane brings and what it takes away.
struct Meeting {
  uint32_t in[kWarp][10];
  uint32_t out[kWarp][4];
  void (*compute)(Meeting&) = nullptr;
};

struct Thread {
  ucontext_t context;
  Wait wait = Wait::none;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Meeting> warps;
  std::vector<char> stacks;
  std::vector<Range> readable;
  ucontext_t scheduler;
  unsigned current = 0;
  std::string error;
  void (*body)(void*) = nullptr;
  void* arguments = nullptr;
};

inline Block block;

inline void yield_as(Wait wait) {
  Thread& self = block.threads[block.current];
  self.wait = wait;
  swapcontext(&self.context, &block.scheduler);
}

[[noreturn]] inline void fail(const std::string& what) {
  if (block.error.empty()) {
    block.error = what + " in thread " + std::to_string(block.current) + " of block " + std::to_string(blockIdx.x);
  }
  for (;;) yield_as(Wait::done);
}

inline const void* readable(const void* at, size_t bytes, size_t aligned) {
  const uintptr_t p = reinterpret_cast<uintptr_t>(at);
  if (p % aligned) fail("a misaligned read");
  for (const Range& range : block.readable) {
    if (p >= range.begin && p + bytes <= range.end) return at;
  }
  fail("a read outside the operands");
}

// The warp's lanes bring `in`, all meet, `compute` fills every lane's `out`.
inline const uint32_t* meet(const uint32_t* in, unsigned words, void (*compute)(Meeting&)) {
  const unsigned warp = block.current / kWarp, lane = block.current % kWarp;
  Meeting& meeting = block.warps[warp];
  if (meeting.compute && meeting.compute != compute) fail("lanes that are at different instructions");
  meeting.compute = compute;
  memcpy(meeting.in[lane], in, words * sizeof *in);
  yield_as(Wait::warp);
  return meeting.out[lane];
}

inline void start_thread() {
  block.body(block.arguments);
  yield_as(Wait::done);
}

inline void resume(unsigned index) {
  block.current = index;
  threadIdx = {index, 0, 0};
  swapcontext(&block.scheduler, &block.threads[index].context);
}

// Lets every meeting that is complete take place; false when nobody can go on.
inline bool release() {
  bool moved = false;
  const unsigned count = block.threads.size();
  unsigned at_barrier = 0, done = 0;
  for (unsigned warp = 0; warp * kWarp < count; ++warp) {
    unsigned met = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const Wait wait = block.threads[warp * kWarp + lane].wait;
      met += wait == Wait::warp;
      at_barrier += wait == Wait::block;
      done += wait == Wait::done;
    }
    if (met != kWarp) continue;
    block.warps[warp].compute(block.warps[warp]);
    block.warps[warp].compute = nullptr;
    for (unsigned lane = 0; lane < kWarp; ++lane) block.threads[warp * kWarp + lane].wait = Wait::none;
    moved = true;
  }
  if (at_barrier && at_barrier + done == count) {
    for (Thread& thread : block.threads) {
      if (thread.wait == Wait::block) thread.wait = Wait::none;
    }
    moved = true;
  }
  return moved;
}

inline bool run_block() {
  for (unsigned i = 0; i < block.threads.size(); ++i) {
    Thread& thread = block.threads[i];
    thread.wait = Wait::none;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = block.stacks.data() + i * kStackBytes;
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, start_thread, 0);
  }
  for (;;) {
    bool done = true;
    for (unsigned i = 0; i < block.threads.size(); ++i) {
      if (block.threads[i].wait == Wait::none) resume(i);
      if (!block.error.empty()) return false;
      done &= block.threads[i].wait == Wait::done;
    }
    if (done) return true;
    if (!release()) {
      block.error = "threads that wait for each other in block " + std::to_string(blockIdx.x);
      return false;
    }
  }
}

struct Launch {
  uint32_t grid, threads, shared_bytes, ranges;
  const uint64_t* range;      // begin, bytes of each operand that may be read
  const uint64_t* arguments;  // as the kernel declares them, one word each
};

template <class T>
T argument(uint64_t word) {
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), const uint64_t* words, std::index_sequence<I...>) {
  kernel(argument<A>(words[I])...);
}

// Every block of the grid in turn. `shared` is refilled with NaN before each; what lies behind shared_bytes must
// stay as it was.
template <class... A>
const char* launch(void (*kernel)(A...), const Launch& how, float* shared, size_t shared_words) {
  struct Bound {
    void (*kernel)(A...);
    const uint64_t* words;
  } bound{kernel, how.arguments};
  block.error.clear();
  block.threads.assign(how.threads, Thread());
  block.warps.assign((how.threads + kWarp - 1) / kWarp, Meeting());
  block.stacks.resize(how.threads * kStackBytes);
  block.readable.clear();
  for (uint32_t i = 0; i < how.ranges; ++i) {
    block.readable.push_back({uintptr_t(how.range[2 * i]), uintptr_t(how.range[2 * i] + how.range[2 * i + 1])});
  }
  block.arguments = &bound;
  block.body = [](void* at) {
    const Bound* b = static_cast<const Bound*>(at);
    call(b->kernel, b->words, std::index_sequence_for<A...>{});
  };
  if (how.threads % kWarp) return "a block that is no whole number of warps";
  blockDim = {how.threads, 1, 1};
  gridDim = {how.grid, 1, 1};
  const uint32_t nan = 0x7FC0DEAD;
  for (uint32_t b = 0; b < how.grid; ++b) {
    for (size_t i = 0; i < shared_words; ++i) memcpy(shared + i, &nan, 4);
    blockIdx = {b, 0, 0};
    if (!run_block()) return block.error.c_str();
    for (size_t i = how.shared_bytes / 4; i < shared_words; ++i) {
      if (memcmp(shared + i, &nan, 4)) return "a write behind the shared memory of the launch";
    }
  }
  return nullptr;
}

}  // namespace simt

inline void __syncthreads() { simt::yield_as(simt::Wait::block); }
