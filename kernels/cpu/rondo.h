// SPDX-License-Identifier: MIT OR Apache-2.0
// The C ABI shared by every native CPU kernel.
//
// An operation is `void rondo_<name>(const rondo_<name>_args*, int32_t worker, int32_t workers)`.
// Its args are a plain struct that never changes after recording; whatever varies from round to
// round (positions, lengths, counts) is read through pointers in it. A worker takes its share of
// independent outputs and never a share of a sum, so results do not depend on `workers`.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define RONDO_API extern "C" __attribute__((visibility("default")))
#define RONDO_INLINE static inline __attribute__((always_inline))
#define RONDO_MEMBER inline __attribute__((always_inline))

// Defines an operation together with `rondo_<name>_args_size`, which the Python side compares
// with its mirror of the struct before the first call.
#define RONDO_OP(name)                                                                          \
  RONDO_API int64_t rondo_##name##_args_size(void) { return sizeof(rondo_##name##_args); }      \
  RONDO_API void rondo_##name(const rondo_##name##_args* a, int32_t worker, int32_t workers)

typedef void (*rondo_fn)(const void* args, int32_t worker, int32_t workers);

enum rondo_step_flags : uint32_t {
  // The next step touches nothing that this one writes: workers go on without waiting.
  RONDO_NO_BARRIER = 1,
  // Only worker 0 runs the step; the others go straight to the barrier.
  RONDO_SERIAL = 2,
};

struct rondo_step {
  rondo_fn fn;
  const void* args;
  uint32_t flags;
  uint32_t reserved;
};

struct rondo_range {
  int64_t begin, end;
};

// The contiguous share of `count` units that belongs to `worker`; sizes differ by at most one.
RONDO_INLINE rondo_range rondo_share(int64_t count, int32_t worker, int32_t workers) {
  const int64_t each = count / workers, rest = count % workers;
  const int64_t begin = each * worker + (worker < rest ? worker : rest);
  return {begin, begin + each + (worker < rest ? 1 : 0)};
}
