// SPDX-License-Identifier: MIT OR Apache-2.0
// Attention of a draft block: every row sees the cached positions of its window and all rows of the
// block, which lie in the cache behind the context.
//
// Positions are taken in blocks of 32 aligned to the absolute position, one running maximum a block;
// positions outside a row's range weigh exactly zero. A unit of work is one row and one query head.
#include "rondo.h"
#include "vec_math.h"

#include "../kv_cache/layout.h"

#include <cstdint>
#include <limits>

struct rondo_block_attention_args {
  const uint16_t* q;  // [rows][Hq][D] bf16
  uint32_t* keys;  // of a cache in bf16
  uint16_t* values;
  const int32_t* start;  // position of the first row of the block
  const int32_t* first;  // first position the cache holds
  uint16_t* out;         // rows of Hq*D bf16
  int64_t out_stride;
  float scale;
  int32_t rows;
  int32_t query_heads;
  int32_t key_heads;
  int32_t dim;
  int32_t capacity;
  int32_t window;
};

namespace {

constexpr int kLanes = 16;
constexpr float kLow = -std::numeric_limits<float>::infinity();

// Lanes `from` to `to` - 1 of x, minus infinity elsewhere.
inline v16f between(v16f x, int from, int to) {
  const v16i lane{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return select16((v16i)(lane >= from) & (v16i)(lane < to), x, splat16(kLow));
}

// Scores of 32 positions; even and odd dimension pairs go to two sums.
inline void scores(const uint16_t* q, const uint32_t* keys, int dim, float scale, v16f* s) {
  v16f even[2] = {}, odd[2] = {};
  for (int i = 0; i < dim / 2; i += 2) {
    for (int h = 0; h < 2; h++) {
      const v16u k0 = load_vec<v16u>(keys + i * kBlock + h * kLanes);
      const v16u k1 = load_vec<v16u>(keys + (i + 1) * kBlock + h * kLanes);
      even[h] = dot_pairs16(even[h], k0, load_pair(q + 2 * i));
      odd[h] = dot_pairs16(odd[h], k1, load_pair(q + 2 * i + 2));
    }
  }
  for (int h = 0; h < 2; h++) s[h] = (even[h] + odd[h]) * splat16(scale);
}

// acc = acc * alpha + p V over the positions from .. to of a block, VECTORS * 16 dimensions from `at`.
template <int VECTORS>
inline void weigh(const float* p, float alpha, const uint16_t* values, int dim, int at, int from, int to,
                  float* acc) {
  v16f sum[VECTORS];
  for (int c = 0; c < VECTORS; c++) sum[c] = load16(acc + at + c * kLanes) * splat16(alpha);
  for (int j = from; j < to; j++) {
    const v16f weight = splat16(p[j]);
    for (int c = 0; c < VECTORS; c++)
      sum[c] = fma16(weight, load16_bf16(values + int64_t(j) * dim + at + c * kLanes), sum[c]);
  }
  for (int c = 0; c < VECTORS; c++) store16(acc + at + c * kLanes, sum[c]);
}

void attend(const rondo_block_attention_args* a, const KvPlanes<uint32_t, uint16_t>& cache, int row,
            int head) {
  const int dim = a->dim, kv = head / (a->query_heads / a->key_heads);
  const int64_t position = int64_t(*a->start) + row, end = int64_t(*a->start) + a->rows;
  const int64_t reach = position - a->window + 1;
  const int64_t low = reach > *a->first ? reach : *a->first;
  const uint16_t* q = a->q + (int64_t(row) * a->query_heads + head) * dim;
  alignas(64) float acc[kMaxDim] = {}, p[kBlock];
  float maximum = kLow, mass = 0.0f;
  for (int64_t base = low / kBlock * kBlock; base < end; base += kBlock) {
    const int from = int(low > base ? low - base : 0);
    const int to = int(end - base < kBlock ? end - base : kBlock);
    v16f s[2];
    scores(q, cache.key_block(kv, base / kBlock), dim, a->scale, s);
    s[0] = between(s[0], from, to);
    s[1] = between(s[1], from - kLanes, to - kLanes);
    const float top = max16(maximum16(s[0], s[1]));
    const float now = top > maximum ? top : maximum;
    s[0] = exp16(s[0] - splat16(now));
    s[1] = exp16(s[1] - splat16(now));
    store16(p, s[0]);
    store16(p + kLanes, s[1]);
    const float alpha = now == maximum ? 1.0f : exp16(splat16(maximum - now))[0];
    maximum = now;
    mass = mass * alpha + sum16(s[0] + s[1]);
    const uint16_t* values = cache.value(kv, base);
    int at = 0;
    for (; at + 4 * kLanes <= dim; at += 4 * kLanes) weigh<4>(p, alpha, values, dim, at, from, to, acc);
    for (; at < dim; at += kLanes) weigh<1>(p, alpha, values, dim, at, from, to, acc);
  }
  uint16_t* out = a->out + row * a->out_stride + int64_t(head) * dim;
  for (int c = 0; c < dim; c += kLanes) store16_bf16(out + c, load16(acc + c) / splat16(mass));
}

}  // namespace

RONDO_OP(block_attention) {
  const KvPlanes<uint32_t, uint16_t> cache{a->keys, a->values, a->capacity, a->dim};
  const bool valid = *a->first >= 0 && *a->start >= *a->first &&
                     int64_t(*a->start) + a->rows <= a->capacity;
  for (int unit = worker; unit < a->rows * a->query_heads; unit += workers) {
    const int row = unit / a->query_heads, head = unit % a->query_heads;
    if (valid) {
      attend(a, cache, row, head);
      continue;
    }
    // A row past the cache becomes NaN, which the draft reports; memory is never overrun.
    uint16_t* out = a->out + row * a->out_stride + int64_t(head) * a->dim;
    for (int c = 0; c < a->dim; c++) out[c] = 0x7fc0;
  }
}
