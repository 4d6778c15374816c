// SPDX-License-Identifier: MIT OR Apache-2.0
// Mixture of experts: which experts a pass needs, their products, and the weighted sum.
//
// A pass is R rows of k slots. `moe_route` sorts the R * k (row, slot) pairs by expert, rows ascending
// inside an expert: a pair's place in that order is its row in every buffer between the products, so
// that the rows of an expert lie together and each distinct expert is read once. `moe_each` calls the
// product of a dense weight once for each distinct expert: its bits are those of that product. The order
// of a row's weighted sum is its places ascending, which is ascending experts, whatever else runs.
#include "product.h"
#include "vec_math.h"

struct rondo_moe_route_args {
  const void* logits;    // [rows][experts], fp32 or bf16, rows logits_stride elements apart
  int32_t* chosen;       // [rows][top_k], best first; of equals the lower expert
  bf16_t* weights;       // [rows][top_k], their softmax over all experts, divided by its sum
  int32_t* distinct;     // number of distinct experts
  int32_t* distinct_of;  // the same number for a reader of its own, or null
  int32_t* listed;       // the distinct experts, ascending
  int32_t* first;        // [distinct + 1], the first place of each
  int32_t* row_of;       // [rows * top_k], the row of each place
  int32_t* place;        // [rows][top_k], places ascending
  bf16_t* place_weight;  // [rows][top_k], weights in that order
  int64_t logits_stride;
  int32_t rows, experts, top_k, logits_bf16;
};

struct rondo_moe_gather_args {
  const bf16_t* x;        // rows x_stride elements apart
  bf16_t* out;            // [places][width]
  const int32_t* row_of;  // [places]
  int64_t x_stride;
  int32_t places, width;
};

struct rondo_moe_each_args {
  rondo_linear_args linear;  // of expert 0 and place 0
  rondo_fn call;             // a product, or its pack step
  const int32_t* distinct;
  const int32_t* listed;
  const int32_t* first;
  const int32_t* row_of;  // null: the row of a place is the place itself
  int64_t weight_step;    // bytes from an expert to the next
  int64_t scale_step;     // bytes
  int64_t row_scale_step;  // numbers
  int64_t packed_step;    // bytes that a repacked row may take
  int64_t gather_bytes;   // of gathered rows at the start of a worker's scratch
  int64_t repacks;        // whether `call` is a pack step, whose shares are blocks of rows, mostly one
};

struct rondo_moe_combine_args {
  const bf16_t* y;  // [places][width], the experts' outputs
  const int32_t* place;
  const bf16_t* place_weight;
  const bf16_t* shared;       // [rows][width], the output of the shared expert, or null
  const bf16_t* shared_gate;  // [rows][1] before its sigmoid, or null: factor 1
  bf16_t* out;                // [rows][width]
  int64_t y_stride, shared_stride, gate_stride, out_stride;
  int32_t rows, width, top_k, reserved;
};

namespace {

constexpr int kMostExperts = 1024, kMostChosen = 64;  // MOST_* of plan.py
constexpr int kStrip = 512;

RONDO_INLINE float logit(const rondo_moe_route_args* a, int64_t at) {
  return a->logits_bf16 ? bf16_to_float(static_cast<const bf16_t*>(a->logits)[at])
                        : static_cast<const float*>(a->logits)[at];
}

// The largest logits of one row in order, of equals the lower expert, and how many experts were seen to
// be numbers.
int choose(const rondo_moe_route_args* a, int64_t base, float* best, int32_t* who) {
  int count = 0, numbers = 0;
  for (int32_t e = 0; e < a->experts; e++) {
    const float v = logit(a, base + e);
    numbers += v == v;
    if (count == a->top_k && !(v > best[count - 1])) continue;
    int at = count < a->top_k ? count++ : count - 1;
    for (; at > 0 && v > best[at - 1]; at--) best[at] = best[at - 1], who[at] = who[at - 1];
    best[at] = v, who[at] = e;
  }
  return numbers;
}

// The sum of e^(logit - top) over all experts.
float softmax_sum(const rondo_moe_route_args* a, int64_t base, float top) {
  v16f sum = splat16(0.f);
  for (int32_t e = 0; e < a->experts; e += 16) {
    const int n = a->experts - e < 16 ? a->experts - e : 16;
    const v16f v = a->logits_bf16
                       ? load16_bf16_n(static_cast<const bf16_t*>(a->logits) + base + e, n)
                       : load16_n(static_cast<const float*>(a->logits) + base + e, n);
    sum += first_lanes16(exp16(v - splat16(top)), n, splat16(0.f));
  }
  return sum16(sum);
}

// The experts and weights of one row. A row whose softmax is no number gets the first experts and NaN.
void route_row(const rondo_moe_route_args* a, int32_t row) {
  const int64_t base = row * a->logits_stride, to = int64_t(row) * a->top_k;
  float best[kMostChosen];
  int32_t who[kMostChosen];
  const int numbers = choose(a, base, best, who);
  const float total = numbers == a->experts ? softmax_sum(a, base, best[0]) : __builtin_nanf("");
  if (!(total >= 1.f)) {
    for (int32_t s = 0; s < a->top_k; s++) a->chosen[to + s] = s, a->weights[to + s] = 0x7fc0;
    return;
  }
  float share[kMostChosen], sum = 0.f;
  for (int32_t s = 0; s < a->top_k; s++) {
    share[s] = exp16(splat16(best[s] - best[0]))[0] / total;
    sum += share[s];
  }
  for (int32_t s = 0; s < a->top_k; s++) {
    a->chosen[to + s] = who[s];
    a->weights[to + s] = float_to_bf16(share[s] / sum);
  }
}

// A stable counting sort of the pairs by expert.
void plan(const rondo_moe_route_args* a) {
  int32_t next[kMostExperts] = {};  // pairs of an expert, then its next place
  const int64_t pairs = int64_t(a->rows) * a->top_k;
  for (int64_t i = 0; i < pairs; i++) next[a->chosen[i]]++;
  int32_t distinct = 0, at = 0;
  for (int32_t e = 0; e < a->experts; e++) {
    if (!next[e]) continue;
    a->listed[distinct] = e, a->first[distinct++] = at;
    const int32_t count = next[e];
    next[e] = at, at += count;
  }
  a->first[distinct] = at;
  *a->distinct = distinct;
  if (a->distinct_of) *a->distinct_of = distinct;
  for (int32_t row = 0; row < a->rows; row++) {
    int32_t* place = a->place + int64_t(row) * a->top_k;
    bf16_t* weight = a->place_weight + int64_t(row) * a->top_k;
    for (int32_t s = 0; s < a->top_k; s++) {
      const int64_t pair = int64_t(row) * a->top_k + s;
      const int32_t p = next[a->chosen[pair]]++;
      a->row_of[p] = row;
      int32_t j = s;
      for (; j > 0 && place[j - 1] > p; j--) place[j] = place[j - 1], weight[j] = weight[j - 1];
      place[j] = p, weight[j] = a->weights[pair];
    }
  }
}

}  // namespace

RONDO_OP(moe_route) {
  if (worker) return;
  (void)workers;
  for (int32_t row = 0; row < a->rows; row++) route_row(a, row);
  plan(a);
}

RONDO_OP(moe_gather) {
  const rondo_range mine = rondo_share(a->places, worker, workers);
  for (int64_t p = mine.begin; p < mine.end; p++)
    memcpy(a->out + p * a->width, a->x + a->row_of[p] * a->x_stride, size_t(a->width) * sizeof(bf16_t));
}

RONDO_OP(moe_each) {
  const rondo_linear_args& base = a->linear;
  const int64_t out_bytes = base.out_stride * (base.out_fp32 ? 4 : 2);
  const int32_t distinct = *a->distinct, pairs = (base.tiles + 1) / 2;
  const int32_t larger = a->repacks ? 1 % workers : pairs % workers;
  for (int32_t d = 0; d < distinct; d++) {
    const int64_t expert = a->listed[d], place = a->first[d];
    // The larger shares of what does not divide evenly begin with the worker after those of the expert
    // before, so that over a pass no worker has more than one pair of tiles above another.
    const int32_t share = int32_t((worker + int64_t(d) * (workers - larger)) % workers);
    if (!a->repacks && share >= pairs) continue;
    rondo_linear_args l = base;
    l.weight += expert * a->weight_step;
    if (l.scale) l.scale += expert * a->scale_step;
    if (l.row_scale) l.row_scale += expert * a->row_scale_step;
    l.rows = a->first[d + 1] - a->first[d];
    l.out = static_cast<uint8_t*>(base.out) + place * out_bytes;
    if (base.packed) l.packed = base.packed + place * a->packed_step;
    if (base.scratch) {
      l.scratch = base.scratch + worker * base.scratch_stride + a->gather_bytes;
      l.scratch_stride = 0;  // this worker's own, whatever its share is called
    }
    if (!a->row_of) {
      l.x = base.x + place * base.x_stride;
    } else if (l.rows == 1) {
      l.x = base.x + a->row_of[place] * base.x_stride;
    } else {
      bf16_t* own = reinterpret_cast<bf16_t*>(base.scratch + worker * base.scratch_stride);
      for (int32_t r = 0; r < l.rows; r++)
        memcpy(own + int64_t(r) * base.k, base.x + a->row_of[place + r] * base.x_stride,
               size_t(base.k) * sizeof(bf16_t));
      l.x = own, l.x_stride = base.k;
    }
    a->call(&l, share, workers);
  }
}

RONDO_OP(moe_combine) {
  const int64_t strips = (a->width + kStrip - 1) / kStrip;
  const rondo_range mine = rondo_share(a->rows * strips, worker, workers);
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    const int64_t row = unit / strips;
    const int32_t begin = int32_t(unit % strips) * kStrip;
    const int32_t end = begin + kStrip < a->width ? begin + kStrip : a->width;
    const int32_t* place = a->place + row * a->top_k;
    const bf16_t* weight = a->place_weight + row * a->top_k;
    v16f gate = splat16(1.f);
    if (a->shared && a->shared_gate)
      gate = round_bf16_16(sigmoid16(splat16(bf16_to_float(a->shared_gate[row * a->gate_stride]))));
    for (int32_t c = begin; c < end; c += 16) {
      const int n = end - c < 16 ? end - c : 16;
      v16f sum = splat16(0.f);
      for (int32_t s = 0; s < a->top_k; s++) {
        const v16f y = load16_bf16_n(a->y + place[s] * a->y_stride + c, n);
        sum = round_bf16_16(sum + round_bf16_16(y * splat16(bf16_to_float(weight[s]))));
      }
      if (a->shared) {
        const v16f y = load16_bf16_n(a->shared + row * a->shared_stride + c, n);
        sum = sum + (a->shared_gate ? round_bf16_16(gate * y) : y);
      }
      store16_bf16_n(a->out + row * a->out_stride + c, sum, n);
    }
  }
}
