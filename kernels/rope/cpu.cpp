// SPDX-License-Identifier: MIT OR Apache-2.0
// Everything of an attention layer between its projections and the attention: norm of q and k per
// head, partial rotary embedding, and the append of k and v to the cache.
//
// A worker owns whole heads. The owner of a key head first moves the positions accepted in the
// previous round's tree to the end of the committed ones, then appends this round's rows at
// start + row; the rotary position of a row is start + depth (depth = row in a chain).
#include "rondo.h"
#include "vec_math.h"

#include "../kv_cache/e4m3.h"
#include "../kv_cache/layout.h"

#include <cstdint>
#include <cstring>

struct rondo_attention_prepare_args {
  const uint16_t* q;  // rows of Hq heads bf16, D of each head's values; null: no queries
  const uint16_t* k;  // rows of Hkv x D
  const uint16_t* v;
  const float* q_scale;  // [D], 1 + w
  const float* k_scale;
  const uint16_t* table;  // [positions][cos rotary/2 | sin rotary/2] bf16
  const int32_t* start;   // committed positions, those pending included
  const int32_t* parents;  // null: a chain
  const int32_t* pending_count;  // null: nothing to move
  const int32_t* pending_rows;
  uint16_t* q_out;  // [rows][Hq][D]
  void* keys;
  void* values;
  float* key_scales;  // null: a cache in bf16
  float* value_scales;
  int64_t q_stride;
  int64_t q_head_stride;  // 2 * D where every query is followed by its gate
  int64_t k_stride;
  int64_t v_stride;
  float eps;
  int32_t rows;
  int32_t query_heads;
  int32_t key_heads;
  int32_t dim;
  int32_t rotary_dim;
  int32_t capacity;
  int32_t positions;
};

namespace {

constexpr int kLanes = 16;
constexpr int kMaxNodes = 32;

// round(x * rsqrt(mean x^2 + eps) * scale), then the rotation of the leading dimensions with its
// two products and their sum each rounded.
void norm_rotate(const uint16_t* x, const float* scale, const uint16_t* angles, int dim, int rotary,
                 float eps, uint16_t* out) {
  v16f squares[2] = {};
  for (int c = 0; c < dim; c += kLanes) {
    const v16f value = load16_bf16(x + c);
    squares[(c / kLanes) & 1] = fma16(value, value, squares[(c / kLanes) & 1]);
  }
  const v16f inverse = splat16(inverse_rms(sum16(squares[0] + squares[1]), dim, eps));
  alignas(64) float normed[kMaxDim];
  for (int c = 0; c < dim; c += kLanes) {
    const v16f value = round_bf16_16(load16_bf16(x + c) * inverse * load16(scale + c));
    store16(normed + c, value);
    store16_bf16(out + c, value);
  }
  const int half = rotary / 2;
  for (int c = 0; c < half; c += kLanes) {
    const int lanes = half - c < kLanes ? half - c : kLanes;
    const v16f first = load16_n(normed + c, lanes), second = load16_n(normed + half + c, lanes);
    const v16f cosine = load16_bf16_n(angles + c, lanes);
    const v16f sine = load16_bf16_n(angles + half + c, lanes);
    store16_bf16_n(out + c, round_bf16_16(first * cosine) - round_bf16_16(second * sine), lanes);
    store16_bf16_n(out + half + c, round_bf16_16(second * cosine) + round_bf16_16(first * sine), lanes);
  }
}

void copy_position(const KvCache& cache, int64_t head, int64_t from, int64_t to) {
  if (!cache.scaled()) {
    cache.bf16().copy(head, from, to);
    return;
  }
  cache.e4m3().copy(head, from, to);
  const int64_t source = cache.scale_at(head, from), target = cache.scale_at(head, to);
  cache.key_scales[target] = cache.key_scales[source];
  cache.value_scales[target] = cache.value_scales[source];
}

// A key and a value of bf16 to where they belong, as codes and scales where the cache has those.
void append(const KvCache& cache, int64_t head, int64_t slot, const uint16_t* key,
            const uint16_t* value) {
  if (!cache.scaled()) {
    uint32_t pairs[kMaxDim / 2];
    std::memcpy(pairs, key, size_t(cache.dim) * 2);
    cache.bf16().put(head, slot, pairs, value);
    return;
  }
  alignas(64) uint16_t key_codes[kMaxDim / 2];
  alignas(64) uint8_t value_codes[kMaxDim];
  const int64_t scale = cache.scale_at(head, slot);
  cache.key_scales[scale] =
      e4m3_encode(key, int(cache.dim), reinterpret_cast<uint8_t*>(key_codes));
  cache.value_scales[scale] = e4m3_encode(value, int(cache.dim), value_codes);
  cache.e4m3().put(head, slot, key_codes, value_codes);
}

void key_head(const rondo_attention_prepare_args* a, const KvCache& cache, const int32_t* depth,
              int head, int64_t start) {
  if (a->pending_count) {
    // Accepted rows are in ascending order and never lie before their target.
    const int64_t base = start - *a->pending_count;
    for (int j = 0; j < *a->pending_count; j++)
      if (a->pending_rows[j] != j) copy_position(cache, head, base + a->pending_rows[j], base + j);
  }
  alignas(64) uint16_t key[kMaxDim];
  for (int64_t r = 0; r < a->rows; r++) {
    const int64_t at = start + (depth ? depth[r] : r), slot = start + r;
    if (slot < 0 || slot >= a->capacity || at >= a->positions) continue;
    norm_rotate(a->k + r * a->k_stride + int64_t(head) * a->dim, a->k_scale,
                a->table + at * a->rotary_dim, a->dim, a->rotary_dim, a->eps, key);
    append(cache, head, slot, key, a->v + r * a->v_stride + int64_t(head) * a->dim);
  }
}

void query_head(const rondo_attention_prepare_args* a, const int32_t* depth, int head,
                int64_t start) {
  for (int64_t r = 0; r < a->rows; r++) {
    const int64_t at = start + (depth ? depth[r] : r);
    uint16_t* out = a->q_out + (r * a->query_heads + head) * a->dim;
    if (start < 0 || start + r >= a->capacity || at >= a->positions) {
      // A row past the cache becomes NaN, which the argmax reports; memory is never overrun.
      for (int c = 0; c < a->dim; c++) out[c] = 0x7fc0;
      continue;
    }
    norm_rotate(a->q + r * a->q_stride + int64_t(head) * a->q_head_stride, a->q_scale,
                a->table + at * a->rotary_dim, a->dim, a->rotary_dim, a->eps, out);
  }
}

}  // namespace

RONDO_OP(attention_prepare) {
  const KvCache cache{a->keys, a->values, a->key_scales, a->value_scales, a->capacity, a->dim};
  const int64_t start = *a->start;
  int32_t depths[kMaxNodes];
  const int32_t* depth = nullptr;
  if (a->parents) {
    for (int r = 0; r < a->rows; r++) {
      const int32_t parent = a->parents[r];
      depths[r] = parent >= 0 && parent < r ? depths[parent] + 1 : 0;
    }
    depth = depths;
  }
  const int units = a->key_heads + (a->q ? a->query_heads : 0);
  for (int unit = worker; unit < units; unit += workers) {
    if (unit < a->key_heads) key_head(a, cache, depth, unit, start);
    else query_head(a, depth, unit - a->key_heads, start);
  }
}
