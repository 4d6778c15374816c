// SPDX-License-Identifier: MIT OR Apache-2.0
// Two-tap convolution over the rows of a draft block; its coefficients are a base a channel plus a
// value that every row brings for each group of channels.
#include "rondo.h"
#include "vec_math.h"

#include <cstdint>

struct rondo_block_conv_args {
  const uint16_t* x;        // rows of C bf16
  const uint16_t* dynamic;  // rows of [taps][groups] bf16
  const float* base;        // [taps][C]
  uint16_t* out;
  int64_t x_stride;
  int64_t dynamic_stride;
  int64_t out_stride;
  int32_t rows;
  int32_t width;
  int32_t group;  // channels of a group
};

namespace {

constexpr int kLanes = 16;

// Dynamic values of 16 channels from c.
inline v16f spread(const uint16_t* dynamic, int c, int group) {
  if (group % kLanes == 0) return splat16(bf16_to_float(dynamic[c / group]));
  alignas(64) float values[kLanes];
  for (int i = 0; i < kLanes; i++) values[i] = bf16_to_float(dynamic[(c + i) / group]);
  return load16(values);
}

}  // namespace

// Row t reads row t - 1 as well, so `out` must not be x.
RONDO_OP(block_conv) {
  const int groups = a->width / a->group;
  for (int64_t row = worker; row < a->rows; row += workers) {
    const uint16_t* x = a->x + row * a->x_stride;
    const uint16_t* before = x - a->x_stride;
    const uint16_t* dynamic = a->dynamic + row * a->dynamic_stride;
    uint16_t* out = a->out + row * a->out_stride;
    for (int c = 0; c < a->width; c += kLanes) {
      v16f sum = (load16(a->base + c) + spread(dynamic, c, a->group)) * load16_bf16(x + c);
      if (row > 0) {
        const v16f late = load16(a->base + a->width + c) + spread(dynamic + groups, c, a->group);
        sum = fma16(late, load16_bf16(before + c), sum);
      }
      store16_bf16(out + c, sum);
    }
  }
}
