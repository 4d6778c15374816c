// SPDX-License-Identifier: MIT OR Apache-2.0
// Elementwise steps between products, a row kept for later, and the statistics that tell where numbers
// went bad.
#include "rondo.h"
#include "vec_math.h"

#include <cstdint>
#include <cstring>
#include <limits>

struct rondo_binary_args {
  const uint16_t* x;  // rows of `width` bf16
  const uint16_t* y;
  uint16_t* out;
  int64_t x_stride;
  int64_t y_stride;
  int64_t out_stride;
  int32_t rows;
  int32_t width;
};

using rondo_silu_mul_args = rondo_binary_args;
using rondo_output_gate_args = rondo_binary_args;
using rondo_add_args = rondo_binary_args;

struct rondo_statistics_args {
  const uint16_t* x;
  float* out;  // [rows][3]: largest finite magnitude, mean square of the finite, non-finite count
  int64_t x_stride;
  int32_t rows;
  int32_t width;
};

struct rondo_keep_row_args {
  const uint16_t* x;  // `width` bf16
  uint16_t* kept;     // [slots][width]
  const int32_t* slot;
  int32_t slots;
  int32_t width;
};

namespace {

constexpr int kLanes = 16;
constexpr int kStrip = 2048;

// Workers share rows, and strips of a row when there are fewer rows than workers.
template <class Op>
void each_vector(const rondo_binary_args* a, int32_t worker, int32_t workers, Op op) {
  const int64_t strips = (a->width + kStrip - 1) / kStrip;
  for (int64_t unit = worker; unit < a->rows * strips; unit += workers) {
    const int64_t row = unit / strips, begin = unit % strips * kStrip;
    const int64_t end = begin + kStrip < a->width ? begin + kStrip : a->width;
    const uint16_t* x = a->x + row * a->x_stride;
    const uint16_t* y = a->y + row * a->y_stride;
    uint16_t* out = a->out + row * a->out_stride;
    for (int64_t c = begin; c < end; c += kLanes) {
      const int lanes = end - c < kLanes ? int(end - c) : kLanes;
      store16_bf16_n(out + c, op(load16_bf16_n(x + c, lanes), load16_bf16_n(y + c, lanes)), lanes);
    }
  }
}

}  // namespace

// round(round(silu(x)) * y)
RONDO_OP(silu_mul) {
  each_vector(a, worker, workers, [](v16f gate, v16f up) { return round_bf16_16(silu16(gate)) * up; });
}

// round(x * round(sigmoid(y)))
RONDO_OP(output_gate) {
  each_vector(a, worker, workers,
              [](v16f x, v16f gate) { return x * round_bf16_16(sigmoid16(gate)); });
}

// round(x + y)
RONDO_OP(add) {
  each_vector(a, worker, workers, [](v16f x, v16f y) { return x + y; });
}

// Nothing is written to a slot that does not exist.
RONDO_OP(keep_row) {
  (void)workers;
  const int32_t slot = *a->slot;
  if (worker == 0 && slot >= 0 && slot < a->slots)
    memcpy(a->kept + int64_t(slot) * a->width, a->x, size_t(a->width) * sizeof(uint16_t));
}

RONDO_OP(statistics) {
  const v16f zero = splat16(0.0f), limit = splat16(std::numeric_limits<float>::max());
  for (int64_t row = worker; row < a->rows; row += workers) {
    const uint16_t* x = a->x + row * a->x_stride;
    v16f top = zero, squares = zero, broken = zero;
    for (int c = 0; c < a->width; c += kLanes) {
      const int lanes = a->width - c < kLanes ? a->width - c : kLanes;
      v16f value = load16_bf16_n(x + c, lanes);
      value = select16(value < zero, -value, value);
      const v16i finite = value <= limit;
      broken = select16(finite, broken, broken + splat16(1.0f));
      value = select16(finite, value, zero);
      top = select16(value > top, value, top);
      squares = fma16(value, value, squares);
    }
    const float count = sum16(broken);
    a->out[row * 3] = max16(top);
    a->out[row * 3 + 1] = sum16(squares) / (float(a->width) - count);
    a->out[row * 3 + 2] = count;
  }
}
