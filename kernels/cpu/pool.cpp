// SPDX-License-Identifier: MIT OR Apache-2.0
// Persistent workers that replay a list of steps in one parallel region.
//
// The calling thread is worker 0. Between steps stands a sense-reversing barrier; after the last
// one the other workers spin for `spin_us`, then park, so that an idle pool uses no processor time.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "rondo.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int kBarrierSpins = 20000;  // some 0.3 to 0.8 ms, longer than workers drift apart

using Clock = std::chrono::steady_clock;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
inline uint64_t now_ns() {
  return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(
                      Clock::now().time_since_epoch()).count());
}

class Pool {
 public:
  Pool(int32_t threads, int32_t spin_us) : threads_(threads), spin_us_(spin_us) {
    try {
      for (int32_t w = 1; w < threads; w++) others_.emplace_back([this, w] { serve(w); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Pool() { stop(); }

  void run(const rondo_step* steps, int32_t n, uint64_t* stamps_ns) {
    if (threads_ == 1) {
      if (stamps_ns) stamps_ns[0] = now_ns();
      for (int32_t i = 0; i < n; i++) {
        steps[i].fn(steps[i].args, 0, 1);
        if (stamps_ns) stamps_ns[i + 1] = now_ns();
      }
      return;
    }
    steps_ = steps, n_ = n;
    announce();
    replay(0, stamps_ns);
  }

 private:
  void announce() {
    region_.fetch_add(1);
    if (parked_.load()) {
      std::lock_guard<std::mutex> hold(mutex_);
      wake_.notify_all();
    }
  }
  void stop() {
    stopping_.store(true);
    announce();
    for (auto& t : others_) t.join();
    others_.clear();
  }
  void serve(int32_t worker) {
    uint64_t seen = 0;
    for (;;) {
      await(seen);
      seen++;
      if (stopping_.load()) return;
      replay(worker, nullptr);
    }
  }
  // Returns once a region after the `seen`th was announced.
  void await(uint64_t seen) {
    const auto until = Clock::now() + std::chrono::microseconds(spin_us_);
    do {
      for (int i = 0; i < 64; i++) {
        if (region_.load(std::memory_order_acquire) != seen) return;
        relax();
      }
    } while (Clock::now() < until);
    std::unique_lock<std::mutex> hold(mutex_);
    parked_.fetch_add(1);
    wake_.wait(hold, [&] { return region_.load() != seen; });
    parked_.fetch_sub(1);
  }
  void replay(int32_t worker, uint64_t* stamps_ns) {
    const rondo_step* steps = steps_;
    const int32_t n = n_;
    if (stamps_ns) stamps_ns[0] = now_ns();
    for (int32_t i = 0; i < n; i++) {
      const rondo_step& s = steps[i];
      if (s.flags & RONDO_SERIAL) {
        if (worker == 0) s.fn(s.args, 0, 1);
      } else {
        s.fn(s.args, worker, threads_);
      }
      if (!(s.flags & RONDO_NO_BARRIER) || i == n - 1) barrier();
      if (stamps_ns) stamps_ns[i + 1] = now_ns();
    }
  }
  void barrier() {
    const uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1);
      if (sleepers_.load()) {
        std::lock_guard<std::mutex> hold(barrier_mutex_);
        barrier_wake_.notify_all();
      }
      return;
    }
    for (int spins = 0; spins < kBarrierSpins; spins++) {
      if (turn_.load(std::memory_order_acquire) != turn) return;
      relax();
    }
    // A worker whose core was taken away keeps the others here. Sleeping frees this core, so that
    // the system can move the missing worker to it; spinning on would hold both cores.
    std::unique_lock<std::mutex> hold(barrier_mutex_);
    sleepers_.fetch_add(1);
    barrier_wake_.wait(hold, [&] { return turn_.load() != turn; });
    sleepers_.fetch_sub(1);
  }

  const int32_t threads_, spin_us_;
  const rondo_step* steps_ = nullptr;
  int32_t n_ = 0;
  alignas(64) std::atomic<uint64_t> region_{0};
  std::atomic<int32_t> parked_{0};
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
  std::atomic<int32_t> sleepers_{0};
  std::mutex barrier_mutex_;
  std::condition_variable barrier_wake_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> others_;
};

}  // namespace

RONDO_API int64_t rondo_step_size(void) { return sizeof(rondo_step); }

// Null when the threads cannot be started.
RONDO_API void* rondo_pool_create(int32_t threads, int32_t spin_us) {
  try {
    return new Pool(threads, spin_us);
  } catch (...) {
    return nullptr;
  }
}
RONDO_API void rondo_pool_destroy(void* pool) { delete static_cast<Pool*>(pool); }

// Runs n steps; stamps_ns (null or n + 1 entries) receives the monotonic time at each boundary.
RONDO_API void rondo_pool_run(void* pool, const rondo_step* steps, int32_t n, uint64_t* stamps_ns) {
  static_cast<Pool*>(pool)->run(steps, n, stamps_ns);
}
