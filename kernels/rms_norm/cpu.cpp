// SPDX-License-Identifier: MIT OR Apache-2.0
// RMS norm of rows, with the residual sum in front when there is one.
#include "rondo.h"
#include "vec_math.h"

#include <cstdint>

struct rondo_rms_norm_args {
  const uint16_t* x;         // rows of N bf16
  const uint16_t* residual;  // null: the norm of x itself
  uint16_t* total;           // round(residual + x), may be the residual itself
  const float* scale;        // [N], the factor on the normalised value (1 + w when zero-centred)
  uint16_t* out;
  int64_t x_stride;
  int64_t residual_stride;
  int64_t total_stride;
  int64_t out_stride;
  float eps;
  int32_t rows;
  int32_t width;
};

namespace {

constexpr int kLanes = 16;

// 64 values at a time in four sums, then the rest in the first; joined pairwise.
template <bool ADD>
void norm_row(const rondo_rms_norm_args* a, int64_t row) {
  const uint16_t* x = a->x + row * a->x_stride;
  const uint16_t* residual = ADD ? a->residual + row * a->residual_stride : nullptr;
  uint16_t* total = ADD ? a->total + row * a->total_stride : nullptr;
  uint16_t* out = a->out + row * a->out_stride;
  v16f squares[4] = {};
  int at = 0;
  const auto take = [&](int sum) {
    v16f value = load16_bf16(x + at);
    if (ADD) {
      value = round_bf16_16(load16_bf16(residual + at) + value);
      store16_bf16(total + at, value);
    }
    squares[sum] = fma16(value, value, squares[sum]);
    at += kLanes;
  };
  while (at + 4 * kLanes <= a->width) {
#pragma GCC unroll 4
    for (int sum = 0; sum < 4; sum++) take(sum);
  }
  while (at < a->width) take(0);
  const float all = sum16((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const v16f inverse = splat16(inverse_rms(all, a->width, a->eps));
  const uint16_t* normed = ADD ? total : x;
  for (int c = 0; c < a->width; c += kLanes)
    store16_bf16(out + c, load16_bf16(normed + c) * inverse * load16(a->scale + c));
}

}  // namespace

RONDO_OP(rms_norm) {
  for (int64_t row = worker; row < a->rows; row += workers) {
    if (a->residual) norm_row<true>(a, row);
    else norm_row<false>(a, row);
  }
}
