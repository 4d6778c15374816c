// SPDX-License-Identifier: MIT OR Apache-2.0
// Everything of a gated delta layer between its projections and its walk: causal convolution of
// width 4, SiLU, unit length of q and k, decay exp(g) and write strength beta.
//
// A worker owns whole heads, so it may commit the convolution's tail in place: the tail becomes the
// last three of [tail | pending raw rows] before any row reads it. A row reads its three nearest
// ancestors through pointers, which serves chains and trees with the same arithmetic: a four-term
// fp32 sum, SiLU in fp32, one rounding to bf16.
#include "rondo.h"
#include "vec_math.h"

#include <cmath>
#include <cstdint>
#include <cstring>

struct rondo_delta_prepare_args {
  const uint16_t* raw;   // rows of channels q | k | v, raw_stride apart
  const uint16_t* taps;  // [4][C] bf16, oldest first
  uint16_t* tail;        // [3][C] bf16, oldest first
  const uint16_t* a;     // rows of Hv bf16
  const uint16_t* b;
  const float* rate;     // [Hv], -exp(A_log)
  const float* dt_bias;  // [Hv]
  const int32_t* pending_count;  // null: nothing pending
  const int32_t* pending_rows;
  const uint16_t* pending_raw;
  const int32_t* parents;  // null: a chain
  float* q;                // [Hk][capacity][dk]
  float* k;                // [Hk][capacity][dk]
  uint16_t* v;             // [Hv][capacity][dv] bf16
  float* qk;               // [rows][Hk]
  float* decay;            // [rows][Hv]
  float* beta;             // [rows][Hv]
  int64_t raw_stride;
  int64_t pending_raw_stride;
  int64_t a_stride;
  int64_t b_stride;
  float query_scale;
  float eps;
  int32_t rows;
  int32_t key_heads;
  int32_t value_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t capacity;
  int32_t advance;  // 1: the tail also takes this call's rows
};

namespace {

constexpr int kLanes = 16;
constexpr int kMaxKeyDim = 128;

struct Window {
  const uint16_t* row[4];
};

// The row's three nearest ancestors, then itself; ancestors before the first row are tail rows.
Window window_of(const rondo_delta_prepare_args* a, int64_t channels, int row) {
  Window w;
  w.row[3] = a->raw + row * a->raw_stride;
  int from_tail = 2;
  int parent = a->parents ? a->parents[row] : row - 1;
  for (int i = 2; i >= 0; i--) {
    if (parent >= 0) {
      w.row[i] = a->raw + parent * a->raw_stride;
      parent = a->parents ? a->parents[parent] : parent - 1;
    } else {
      w.row[i] = a->tail + from_tail * channels;
      from_tail--;
    }
  }
  return w;
}

inline v16f conv16(const Window& w, const uint16_t* taps, int64_t channels, int64_t at, int lanes) {
  v16f total = load16_bf16_n(w.row[0] + at, lanes) * load16_bf16_n(taps + at, lanes);
  for (int i = 1; i < 4; i++)
    total = fma16(load16_bf16_n(w.row[i] + at, lanes),
                  load16_bf16_n(taps + i * channels + at, lanes), total);
  return round_bf16_16(silu16(total));
}

void commit_tail(const rondo_delta_prepare_args* a, int64_t channels, int64_t at, int width,
                 const uint16_t* rows, int64_t stride, const int32_t* index, int count) {
  for (int i = 0; i < 3; i++) {
    const int from = count + i;
    const uint16_t* source;
    if (from < 3) {
      source = a->tail + from * channels;
    } else {
      const int taken = from - 3;
      source = rows + (index ? index[taken] : taken) * stride;
    }
    std::memmove(a->tail + i * channels + at, source + at, size_t(width) * 2);
  }
}

void commit_pending(const rondo_delta_prepare_args* a, int64_t channels, int64_t at, int width) {
  const int pending = a->pending_count ? *a->pending_count : 0;
  if (pending)
    commit_tail(a, channels, at, width, a->pending_raw, a->pending_raw_stride, a->pending_rows,
                pending);
}

// x * rsqrt(sum x^2 + eps) * scale over one head held in lanes padded with zeros.
inline void unit_length(v16f* x, int vectors, float eps, float scale) {
  v16f squares = splat16(0.0f);
  for (int c = 0; c < vectors; c++) squares = fma16(x[c], x[c], squares);
  const v16f inverse = splat16(1.0f / std::sqrt(sum16(squares) + eps));
  for (int c = 0; c < vectors; c++) x[c] = x[c] * inverse * splat16(scale);
}

void key_head(const rondo_delta_prepare_args* a, int64_t channels, int head) {
  const int dk = a->key_dim, vectors = (dk + kLanes - 1) / kLanes;
  const int64_t at_q = int64_t(head) * dk, at_k = int64_t(a->key_heads + head) * dk;
  commit_pending(a, channels, at_q, dk);
  commit_pending(a, channels, at_k, dk);
  for (int r = 0; r < a->rows; r++) {
    const Window w = window_of(a, channels, r);
    v16f q[kMaxKeyDim / kLanes], k[kMaxKeyDim / kLanes];
    for (int c = 0; c < vectors; c++) {
      const int lanes = dk - c * kLanes < kLanes ? dk - c * kLanes : kLanes;
      q[c] = conv16(w, a->taps, channels, at_q + c * kLanes, lanes);
      k[c] = conv16(w, a->taps, channels, at_k + c * kLanes, lanes);
    }
    unit_length(q, vectors, a->eps, a->query_scale);
    unit_length(k, vectors, a->eps, 1.0f);
    v16f dot = splat16(0.0f);
    const int64_t to = (int64_t(head) * a->capacity + r) * dk;
    for (int c = 0; c < vectors; c++) {
      dot = fma16(q[c], k[c], dot);
      const int lanes = dk - c * kLanes < kLanes ? dk - c * kLanes : kLanes;
      store16_n(a->q + to + c * kLanes, q[c], lanes);
      store16_n(a->k + to + c * kLanes, k[c], lanes);
    }
    a->qk[int64_t(r) * a->key_heads + head] = sum16(dot);
  }
  if (a->advance) {
    commit_tail(a, channels, at_q, dk, a->raw, a->raw_stride, nullptr, a->rows);
    commit_tail(a, channels, at_k, dk, a->raw, a->raw_stride, nullptr, a->rows);
  }
}

void value_head(const rondo_delta_prepare_args* a, int64_t channels, int head) {
  const int dv = a->value_dim;
  const int64_t at = int64_t(2) * a->key_heads * a->key_dim + int64_t(head) * dv;
  commit_pending(a, channels, at, dv);
  for (int r = 0; r < a->rows; r++) {
    const Window w = window_of(a, channels, r);
    uint16_t* to = a->v + (int64_t(head) * a->capacity + r) * dv;
    for (int c = 0; c < dv; c += kLanes)
      store16_bf16(to + c, conv16(w, a->taps, channels, at + c, kLanes));
  }
  if (a->advance) commit_tail(a, channels, at, dv, a->raw, a->raw_stride, nullptr, a->rows);
}

void gates(const rondo_delta_prepare_args* a, int row) {
  for (int h = 0; h < a->value_heads; h += kLanes) {
    const int lanes = a->value_heads - h < kLanes ? a->value_heads - h : kLanes;
    const v16f x = load16_bf16_n(a->a + row * a->a_stride + h, lanes) +
                   load16_n(a->dt_bias + h, lanes);
    const int64_t to = int64_t(row) * a->value_heads + h;
    store16_n(a->decay + to, exp16(load16_n(a->rate + h, lanes) * softplus16(x)), lanes);
    store16_n(a->beta + to, sigmoid16(load16_bf16_n(a->b + row * a->b_stride + h, lanes)), lanes);
  }
}

}  // namespace

RONDO_OP(delta_prepare) {
  const int64_t channels =
      int64_t(2) * a->key_heads * a->key_dim + int64_t(a->value_heads) * a->value_dim;
  for (int unit = worker; unit < a->key_heads + a->value_heads; unit += workers) {
    if (unit < a->key_heads) key_head(a, channels, unit);
    else value_head(a, channels, unit - a->key_heads);
  }
  // Rows are dealt from the far end: worker 0 already holds the larger share of heads.
  for (int row = workers - 1 - worker; row < a->rows; row += workers) gates(a, row);
}
