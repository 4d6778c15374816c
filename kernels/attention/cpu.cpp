// SPDX-License-Identifier: MIT OR Apache-2.0
// Causal attention with grouped heads for 1 to any number of rows, chain or tree, output gate fused.
//
// Positions are taken in blocks of 32 aligned to the absolute position, one running maximum a block,
// so a row's result is a function of its own past alone. A unit of work is one row and up to six
// query heads of one key head: they share the row's limit, so a block is read once for all of them
// and positions past the limit are never touched. Blocks that every row of a batch of 32 sees come
// first, up to four at a time, rows inside; the blocks at each row's own end follow row by row.
// In a tree a row's past is the committed positions and its ancestors. The last blocks are gathered
// on a scratch of two blocks in which the node at depth i holds position start + i, so that a node
// has the bits it would have in plain decoding.
// A cache in e4m3 is decoded block by block into bf16, which is exact. The scale of a key multiplies
// its finished score, the scale of a value its probability.
#include "rondo.h"
#include "vec_math.h"

#include "../kv_cache/e4m3.h"
#include "../kv_cache/layout.h"

#include <cstdint>
#include <cstring>
#include <limits>

struct rondo_attention_args {
  const uint16_t* q;  // [rows][Hq][D] bf16
  void* keys;
  void* values;
  float* key_scales;  // null: a cache in bf16
  float* value_scales;
  const uint16_t* gate;    // gate of head h at h * gate_head_stride; null: no gate
  const int32_t* start;    // position of the first row
  const int32_t* parents;  // null: a chain
  uint16_t* out;           // rows of Hq*D bf16
  float* scratch;          // [workers][scratch_floats]
  int64_t gate_stride;
  int64_t gate_head_stride;
  int64_t out_stride;
  int64_t scratch_floats;
  float scale;
  int32_t rows;
  int32_t query_heads;
  int32_t key_heads;
  int32_t dim;
  int32_t capacity;
};

namespace {

constexpr int kLanes = 16;
constexpr int kBatch = 32;
constexpr int kUnitHeads = 6;
constexpr int kSpan = 4 * kBlock;

struct Running {
  float maximum[kUnitHeads];
  float mass[kUnitHeads];
};

// Neighbouring blocks of keys and values in bf16, and the scales of their positions.
struct Span {
  const uint32_t* keys;
  const uint16_t* values;
  const float* key_scales;  // null: none, of keys and of values
  const float* value_scales;
};

// Scores of up to 32 positions for G heads; even and odd dimension pairs go to two sums.
template <int G, int HALVES>
inline void scores(const uint16_t* q, const uint32_t* keys, int dim, float scale, float* s,
                   bool cold) {
  v16f even[G][HALVES] = {}, odd[G][HALVES] = {};
  for (int i = 0; i < dim / 2; i += 2) {
    if (cold) {
      __builtin_prefetch(keys + (i + dim / 2) * kBlock, 0, 3);
      __builtin_prefetch(keys + (i + dim / 2) * kBlock + 16, 0, 3);
      __builtin_prefetch(keys + (i + 1 + dim / 2) * kBlock, 0, 3);
      __builtin_prefetch(keys + (i + 1 + dim / 2) * kBlock + 16, 0, 3);
    }
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
      const v16u k0 = load_vec<v16u>(keys + i * kBlock + h * kLanes);
      const v16u k1 = load_vec<v16u>(keys + (i + 1) * kBlock + h * kLanes);
#pragma GCC unroll 6
      for (int g = 0; g < G; g++) {
        even[g][h] = dot_pairs16(even[g][h], k0, load_pair(q + g * dim + 2 * i));
        odd[g][h] = dot_pairs16(odd[g][h], k1, load_pair(q + g * dim + 2 * i + 2));
      }
    }
  }
  for (int g = 0; g < G; g++)
    for (int h = 0; h < HALVES; h++)
      store16(s + g * kSpan + h * kLanes, (even[g][h] + odd[g][h]) * splat16(scale));
}

#if !defined(__AVX512F__)
// Scores of one block, two heads and half a block at a time: their sums fill the registers.
template <int G, int FIRST = 0>
inline void block_scores(const uint16_t* q, const uint32_t* keys, int dim, int left, float scale,
                         float* s, bool cold) {
  if constexpr (FIRST < G) {
    constexpr int kHeads = G - FIRST < 2 ? G - FIRST : 2;
    for (int at = 0; at < kBlock && at < left; at += kLanes)
      scores<kHeads, 1>(q + FIRST * dim, keys + at, dim, scale, s + FIRST * kSpan + at,
                        cold && FIRST == 0);
    block_scores<G, FIRST + 2>(q, keys, dim, left, scale, s, cold);
  }
}
#endif

// acc = acc * alpha + p V, block after block over n positions, for G heads and VECTORS * 16
// dimensions from `at`.
template <int G, int VECTORS>
inline void weigh(const float* p, const float* alpha, const uint16_t* values, int dim, int at, int n,
                  float* acc) {
  v16f sum[G][VECTORS];
#pragma GCC unroll 6
  for (int g = 0; g < G; g++)
#pragma GCC unroll 4
    for (int c = 0; c < VECTORS; c++) sum[g][c] = load16(acc + g * dim + at + c * kLanes);
  for (int first = 0; first < n; first += kBlock, alpha += kUnitHeads) {
#pragma GCC unroll 6
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
      for (int c = 0; c < VECTORS; c++) sum[g][c] = sum[g][c] * splat16(alpha[g]);
    const int last = first + kBlock < n ? first + kBlock : n;
    for (int j = first; j < last; j++) {
      v16f v[VECTORS];
#pragma GCC unroll 4
      for (int c = 0; c < VECTORS; c++)
        v[c] = load16_bf16(values + int64_t(j) * dim + at + c * kLanes);
#pragma GCC unroll 6
      for (int g = 0; g < G; g++) {
        const v16f weight = splat16(p[g * kSpan + j]);
#pragma GCC unroll 4
        for (int c = 0; c < VECTORS; c++) sum[g][c] = fma16(weight, v[c], sum[g][c]);
      }
    }
  }
#pragma GCC unroll 6
  for (int g = 0; g < G; g++)
#pragma GCC unroll 4
    for (int c = 0; c < VECTORS; c++) store16(acc + g * dim + at + c * kLanes, sum[g][c]);
}

// Probabilities of one block under the running maximum, in place of its scores; n of 32 count. With
// scales of the block's keys and values, what takes the place is the factor of each value's codes.
inline float weights(float* s, const float* key_scales, const float* value_scales, int n,
                     float* maximum, float* mass) {
  const v16f low = splat16(-std::numeric_limits<float>::infinity());
  v16f a = load16(s), b = n > kLanes ? load16(s + kLanes) : low;
  if (key_scales) {
    a = a * load16(key_scales);
    b = n > kLanes ? b * load16(key_scales + kLanes) : low;
  }
  a = first_lanes16(a, n, low);
  b = n > kLanes ? first_lanes16(b, n - kLanes, low) : low;
  const float before = *maximum, top = max16(maximum16(a, b));
  const float now = top > before ? top : before;
  a = exp16(a - splat16(now));
  b = n > kLanes ? exp16(b - splat16(now)) : splat16(0.0f);
  store16(s, value_scales ? a * load16(value_scales) : a);
  store16(s + kLanes, value_scales ? b * load16(value_scales + kLanes) : b);
  const float alpha = now == before ? 1.0f : exp16(splat16(before - now))[0];
  *maximum = now;
  *mass = *mass * alpha + sum16(a + b);
  return alpha;
}

// Up to four neighbouring blocks of one row for G heads: n valid positions, 1 to 128.
template <int G>
void take_span(const uint16_t* q, const Span& span, int dim, int n, float scale, Running* run,
               float* acc, bool cold) {
  alignas(64) float s[G * kSpan];
  float alpha[kSpan / kBlock * kUnitHeads];
  for (int first = 0; first < n; first += kBlock) {
    const uint32_t* block = span.keys + int64_t(first) * (dim / 2);
    const float* key_scales = span.key_scales ? span.key_scales + first : nullptr;
    const float* value_scales = span.value_scales ? span.value_scales + first : nullptr;
    const int left = n - first;
#if defined(__AVX512F__)
    if (left > kLanes) scores<G, 2>(q, block, dim, scale, s + first, cold);
    else scores<G, 1>(q, block, dim, scale, s + first, cold);
#else
    block_scores<G>(q, block, dim, left, scale, s + first, cold);
#endif
    for (int g = 0; g < G; g++)
      alpha[first / kBlock * kUnitHeads + g] =
          weights(s + g * kSpan + first, key_scales, value_scales, left, &run->maximum[g],
                  &run->mass[g]);
  }
#if defined(__AVX512F__)
  constexpr int kVectors = 4;
#else
  constexpr int kVectors = G <= 3 ? 2 : 1;
#endif
  int at = 0;
  for (; at + kVectors * kLanes <= dim; at += kVectors * kLanes)
    weigh<G, kVectors>(s, alpha, span.values, dim, at, n, acc);
  for (; at < dim; at += kLanes) weigh<G, 1>(s, alpha, span.values, dim, at, n, acc);
}

void take(int heads, const uint16_t* q, const Span& span, int dim, int n, float scale, Running* run,
          float* acc, bool cold) {
  switch (heads) {
    case 1: take_span<1>(q, span, dim, n, scale, run, acc, cold); break;
    case 2: take_span<2>(q, span, dim, n, scale, run, acc, cold); break;
    case 3: take_span<3>(q, span, dim, n, scale, run, acc, cold); break;
    case 4: take_span<4>(q, span, dim, n, scale, run, acc, cold); break;
    case 5: take_span<5>(q, span, dim, n, scale, run, acc, cold); break;
    default: take_span<6>(q, span, dim, n, scale, run, acc, cold); break;
  }
}

// round(round(acc / mass) * round(sigmoid(gate))).
void finish(const rondo_attention_args* a, int64_t row, int head, int heads, const Running& run,
            const float* acc) {
  for (int g = 0; g < heads; g++) {
    const v16f mass = splat16(run.mass[g]);
    uint16_t* out = a->out + row * a->out_stride + int64_t(head + g) * a->dim;
    const uint16_t* gate =
        a->gate ? a->gate + row * a->gate_stride + (head + g) * a->gate_head_stride : nullptr;
    for (int c = 0; c < a->dim; c += kLanes) {
      v16f o = load16(acc + g * a->dim + c) / mass;
      if (gate) o = round_bf16_16(o) * round_bf16_16(sigmoid16(load16_bf16(gate + c)));
      store16_bf16(out + c, o);
    }
  }
}

// The blocks of one key head, decoded where they are e4m3: of those the latest even and the latest
// odd one stay decoded, which is all that the ends of 32 neighbouring rows need.
struct Blocks {
  const KvCache& cache;
  int64_t head;
  float* decoded;  // 2 blocks, each [D/2][32] pairs of bf16 and [32][D] bf16
  int64_t held[2] = {-1, -1};

  int together() const { return cache.scaled() ? 1 : kSpan / kBlock; }

  // The span that begins with a block, of `together` blocks.
  Span at(int64_t block) {
    if (!cache.scaled()) {
      const auto planes = cache.bf16();
      return {planes.key_block(head, block), planes.value(head, block * kBlock), nullptr, nullptr};
    }
    const int64_t scale = cache.scale_at(head, block * kBlock), count = kBlock * cache.dim;
    uint16_t* keys = reinterpret_cast<uint16_t*>(decoded) + block % 2 * 2 * count;
    if (held[block % 2] != block) {
      const auto planes = cache.e4m3();
      e4m3_decode(reinterpret_cast<uint8_t*>(planes.key_block(head, block)), keys, count);
      e4m3_decode(planes.value(head, block * kBlock), keys + count, count);
      held[block % 2] = block;
    }
    return {reinterpret_cast<uint32_t*>(keys), keys + count, cache.key_scales + scale,
            cache.value_scales + scale};
  }
};

// Two blocks of keys and values in bf16, holding one root-to-node path of a tree, with the scales of
// their positions if there are any.
struct Path {
  KvPlanes<uint32_t, uint16_t> planes;  // one head of 64 positions
  float* scales;                        // [64] of keys, [64] of values

  void put(const KvCache& cache, int64_t head, int64_t position, int at) const {
    alignas(64) uint32_t key[kMaxDim / 2];
    alignas(64) uint16_t value[kMaxDim];
    if (cache.scaled()) {
      alignas(64) uint16_t key_codes[kMaxDim / 2];
      alignas(64) uint8_t value_codes[kMaxDim];
      cache.e4m3().get(head, position, key_codes, value_codes);
      const int64_t count = (cache.dim + 63) / 64 * 64;
      std::memset(key_codes + cache.dim / 2, 0, size_t(count - cache.dim));
      std::memset(value_codes + cache.dim, 0, size_t(count - cache.dim));
      e4m3_decode(reinterpret_cast<uint8_t*>(key_codes), reinterpret_cast<uint16_t*>(key), count);
      e4m3_decode(value_codes, value, count);
      scales[at] = cache.key_scales[cache.scale_at(head, position)];
      scales[2 * kBlock + at] = cache.value_scales[cache.scale_at(head, position)];
    } else {
      cache.bf16().get(head, position, key, value);
    }
    planes.put(0, at, key, value);
  }

  Span span(int64_t block, bool scaled) const {
    const float* first = scaled ? scales + block * kBlock : nullptr;
    return {planes.key_block(0, block), planes.value(0, block * kBlock), first,
            scaled ? first + 2 * kBlock : nullptr};
  }
};

// Rows first, first + step, ... below last for `heads` query heads from `head`, all of key head kv.
void attend(const rondo_attention_args* a, const KvCache& cache, int kv, int head, int heads,
            int first, int last, int step, const int32_t* depth, float* scratch) {
  const int dim = a->dim;
  const int64_t start = *a->start;
  Running run[kBatch];
  float* acc = scratch;
  float* path_at = acc + int64_t(kBatch) * kUnitHeads * dim;
  float* scales = path_at + int64_t(2 * kBlock) * dim;
  const Path path{{reinterpret_cast<uint32_t*>(path_at),
                   reinterpret_cast<uint16_t*>(path_at + int64_t(dim) * kBlock), 2 * kBlock, dim},
                  scales};
  Blocks blocks{cache, kv, scales + 4 * kBlock};
  const int64_t shared = (depth ? start : start + first + 1) / kBlock;
  int count = 0;
  for (int r = first; r < last; r += step, count++) {
    for (int g = 0; g < heads; g++) {
      run[count].maximum[g] = -std::numeric_limits<float>::infinity();
      run[count].mass[g] = 0.0f;
    }
  }
  std::memset(acc, 0, sizeof(float) * size_t(count) * heads * dim);
  const auto query = [&](int r) { return a->q + (int64_t(r) * a->query_heads + head) * dim; };
  const int most = blocks.together() * kBlock;
  for (int64_t block = 0; block < shared; block += blocks.together()) {
    const int64_t positions = (shared - block) * kBlock;
    const Span span = blocks.at(block);
    int i = 0;
    for (int r = first; r < last; r += step, i++)
      take(heads, query(r), span, dim, int(positions < most ? positions : most), a->scale, &run[i],
           acc + int64_t(i) * heads * dim, i == 0 && !cache.scaled());
  }
  for (int j = 0; depth && j < start % kBlock; j++) path.put(cache, kv, shared * kBlock + j, j);
  int i = 0, placed = 0;
  for (int r = first; r < last; r += step, i++) {
    int64_t left = (depth ? start + depth[r] : start + r) + 1 - shared * kBlock;
    for (; depth && placed <= r; placed++)
      path.put(cache, kv, start + placed, int(start % kBlock) + depth[placed]);
    const int step_blocks = depth ? 2 : blocks.together();
    for (int64_t block = 0; left > 0; block += step_blocks, left -= step_blocks * kBlock) {
      const Span span = depth ? path.span(block, cache.scaled()) : blocks.at(shared + block);
      const int positions = int(left < step_blocks * kBlock ? left : step_blocks * kBlock);
      take(heads, query(r), span, dim, positions, a->scale, &run[i], acc + int64_t(i) * heads * dim,
           i == 0 && !depth && !cache.scaled());
    }
    finish(a, r, head, heads, run[i], acc + int64_t(i) * heads * dim);
  }
}

// Query heads begin .. end of one key head, in equal parts of at most six, rows in batches of 32.
void attend_heads(const rondo_attention_args* a, const KvCache& cache, int kv, int begin, int end,
                  int first, int step, const int32_t* depth, float* scratch) {
  const int parts = (end - begin + kUnitHeads - 1) / kUnitHeads;
  for (int part = 0; part < parts; part++) {
    const int head = begin + (end - begin) * part / parts;
    const int next = begin + (end - begin) * (part + 1) / parts;
    for (int r = first; r < a->rows; r += kBatch * step) {
      const int stop = r + kBatch * step < a->rows ? r + kBatch * step : a->rows;
      attend(a, cache, kv, head, next - head, r, stop, step, depth, scratch);
    }
  }
}

}  // namespace

RONDO_OP(attention) {
  const KvCache cache{a->keys, a->values, a->key_scales, a->value_scales, a->capacity, a->dim};
  const int group = a->query_heads / a->key_heads;
  float* scratch = a->scratch + worker * a->scratch_floats;
  int32_t depths[kBatch];
  const int32_t* depth = nullptr;
  bool valid = *a->start >= 0 && int64_t(*a->start) + a->rows <= a->capacity;
  if (a->parents) {
    for (int r = 0; r < a->rows && valid; r++) {
      const int32_t parent = a->parents[r];
      valid = parent >= -1 && parent < r;
      depths[r] = parent >= 0 && valid ? depths[parent] + 1 : 0;
    }
    depth = depths;
  }
  if (!valid) {
    // A row past the cache becomes NaN, which the argmax reports; memory is never overrun.
    for (int64_t r = worker; r < a->rows; r += workers)
      for (int c = 0; c < a->query_heads * a->dim; c++) a->out[r * a->out_stride + c] = 0x7fc0;
    return;
  }
  if (a->key_heads % workers == 0) {
    for (int kv = worker; kv < a->key_heads; kv += workers)
      attend_heads(a, cache, kv, kv * group, (kv + 1) * group, 0, 1, depth, scratch);
  } else if (a->rows >= workers) {
    for (int kv = 0; kv < a->key_heads; kv++)
      attend_heads(a, cache, kv, kv * group, (kv + 1) * group, worker, workers, depth, scratch);
  } else {
    // Fewer rows and key heads than workers: each worker takes its share of all query heads.
    const int begin = int(int64_t(a->query_heads) * worker / workers);
    const int end = int(int64_t(a->query_heads) * (worker + 1) / workers);
    for (int kv = 0; kv < a->key_heads; kv++) {
      const int from = begin > kv * group ? begin : kv * group;
      const int to = end < (kv + 1) * group ? end : (kv + 1) * group;
      if (from < to) attend_heads(a, cache, kv, from, to, 0, 1, depth, scratch);
    }
  }
}
