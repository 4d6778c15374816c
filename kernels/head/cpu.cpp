// SPDX-License-Identifier: MIT OR Apache-2.0
// Choice of tokens from fp32 logits: argmax and top-k with the lowest index first among equals, and
// the logarithm of the sum of exponentials that turns a logit into a probability.
#include "rondo.h"
#include "vec_math.h"

#include <cmath>
#include <cstdint>
#include <limits>

struct rondo_argmax_args {
  const float* logits;  // rows of `vocabulary` fp32, `stride` apart
  int32_t* ids;         // [rows]; -1: the row holds a NaN
  float* values;        // [rows] the largest logit; may be null
  int64_t stride;
  int32_t rows;
  int32_t vocabulary;
};

struct rondo_top_k_args {
  const float* logits;
  int32_t* ids;   // [rows][k]; all -1: the row holds a NaN
  float* values;  // [rows][k]
  int64_t stride;
  int32_t rows;
  int32_t vocabulary;
  int32_t k;
};

struct rondo_log_sum_exp_args {
  const float* logits;
  float* sums;  // [rows]
  int64_t stride;
  int32_t rows;
  int32_t vocabulary;
};

namespace {

constexpr int kLanes = 16;
constexpr int kMaxTop = 256;

// Largest value with its lowest index, lane by lane and then across lanes.
void argmax_row(const float* x, int n, int32_t* id, float* value) {
  const v16f low = splat16(-std::numeric_limits<float>::infinity());
  v16f best = first_lanes16(load16_n(x, n < kLanes ? n : kLanes), n, low);
  v16i lane{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  v16i where = lane, bad = best != best;
  for (int at = kLanes; at < n; at += kLanes) {
    lane += kLanes;
    const v16f now = at + kLanes <= n ? load16(x + at)
                                      : first_lanes16(load16_n(x + at, n - at), n - at, low);
    bad |= now != now;
    const v16i better = now > best;
    best = select16(better, now, best);
    where = select16(better, lane, where);
  }
  float top = best[0];
  int32_t first = where[0];
  bool nan = bad[0] != 0;
  for (int i = 1; i < kLanes; i++) {
    nan |= bad[i] != 0;
    // A lane past the end of a short row holds -inf and an index no logit has.
    if (where[i] < n && (best[i] > top || (best[i] == top && where[i] < first))) {
      top = best[i];
      first = where[i];
    }
  }
  *id = nan ? -1 : first;
  if (value) *value = nan ? std::numeric_limits<float>::quiet_NaN() : top;
}

struct Entry {
  float value;
  int32_t id;
};

inline bool before(const Entry& x, const Entry& y) {
  return x.value > y.value || (x.value == y.value && x.id < y.id);
}

// Restores a heap whose root comes last in the order, after the root was replaced.
void sift(Entry* heap, int n) {
  for (int at = 0;;) {
    int worst = at;
    for (int child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
      if (before(heap[worst], heap[child])) worst = child;
    if (worst == at) return;
    const Entry kept = heap[at];
    heap[at] = heap[worst];
    heap[worst] = kept;
    at = worst;
  }
}

void top_k_row(const float* x, int n, int k, int32_t* ids, float* values) {
  Entry heap[kMaxTop];
  int size = 0;
  bool nan = false;
  const auto offer = [&](float value, int32_t id) {
    if (size < k) {
      int at = size++;
      heap[at] = {value, id};
      while (at > 0 && before(heap[(at - 1) / 2], heap[at])) {
        const Entry kept = heap[at];
        heap[at] = heap[(at - 1) / 2];
        heap[(at - 1) / 2] = kept;
        at = (at - 1) / 2;
      }
    } else if (value > heap[0].value) {  // indices rise, so an equal value comes later
      heap[0] = {value, id};
      sift(heap, k);
    }
  };
  int at = 0;
  for (; at < n && at < k; at++) {
    nan |= x[at] != x[at];
    offer(x[at], at);
  }
  for (; at + kLanes <= n; at += kLanes) {
    const v16f now = load16(x + at);
    // NaN fails the comparison and so enters the branch.
    if (!any16(~(now <= splat16(heap[0].value)))) continue;
    for (int i = 0; i < kLanes; i++) {
      nan |= now[i] != now[i];
      offer(now[i], at + i);
    }
  }
  for (; at < n; at++) {
    nan |= x[at] != x[at];
    offer(x[at], at);
  }
  // Take the worst away until the heap is empty, filling the result from its end.
  for (int left = k; left > 0; left--) {
    ids[left - 1] = nan ? -1 : heap[0].id;
    values[left - 1] = nan ? std::numeric_limits<float>::quiet_NaN() : heap[0].value;
    heap[0] = heap[left - 1];
    sift(heap, left - 1);
  }
}

// max + ln(sum of e^(x - max)), lane by lane and then across lanes; NaN where a logit is NaN or
// infinity, or all are -infinity.
float log_sum_exp_row(const float* x, int n) {
  const v16f low = splat16(-std::numeric_limits<float>::infinity());
  const auto load = [&](int at) {
    return at + kLanes <= n ? load16(x + at)
                            : first_lanes16(load16_n(x + at, n - at), n - at, low);
  };
  v16f most = load(0);
  for (int at = kLanes; at < n; at += kLanes) most = maximum16(most, load(at));
  const float top = max16(most);
  v16f sum = splat16(0.0f);
  for (int at = 0; at < n; at += kLanes) sum = sum + exp16(load(at) - splat16(top));
  return top + std::log(sum16(sum));
}

}  // namespace

RONDO_OP(log_sum_exp) {
  for (int64_t row = worker; row < a->rows; row += workers)
    a->sums[row] = log_sum_exp_row(a->logits + row * a->stride, a->vocabulary);
}

RONDO_OP(argmax) {
  for (int64_t row = worker; row < a->rows; row += workers)
    argmax_row(a->logits + row * a->stride, a->vocabulary, a->ids + row,
               a->values ? a->values + row : nullptr);
}

RONDO_OP(top_k) {
  for (int64_t row = worker; row < a->rows; row += workers)
    top_k_row(a->logits + row * a->stride, a->vocabulary, a->k, a->ids + row * a->k,
              a->values + row * a->k);
}
