// SPDX-License-Identifier: MIT OR Apache-2.0
// Walk of the gated delta rule with the commit of the previous round folded in, and the gated norm.
//
// A state tile is [dk][16] fp32: 16 value columns in the lanes, one vector per key row, so nothing
// is summed across lanes and a column's result depends on no other column. A token is two halves:
//   probe   t = S^T k, u = S^T q            d = (v - g t) beta,  o = g u + (q.k) d
//   update  S' = g S + k (x) d              d is kept, so committing the token later repeats the
//                                           update alone and has the same bits.
// The update of one token and the probe of the next share a pass over the tile. o needs no pass
// after the update, so the last row of a verify pass and every leaf of a tree never write a state.
#include "rondo.h"
#include "vec_math.h"

#include <cstdint>
#include <limits>

namespace {

constexpr int kLanes = 16;
constexpr int kMaxDepth = 32;
#if defined(__AVX512F__)
constexpr int kPair = 2;
#else
constexpr int kPair = 1;  // two tiles of accumulators do not fit 16 registers
#endif

}  // namespace

struct rondo_gated_delta_args {
  float* state;                  // [Hv][dv/16][dk][16]
  const float* q;                // [Hk][capacity][dk], unit length times dk^-0.5
  const float* k;                // [Hk][capacity][dk], unit length
  const uint16_t* v;             // [Hv][capacity][dv] bf16
  const float* qk;               // [rows][Hk], q.k
  const float* decay;            // [rows][Hv], exp(g)
  const float* beta;             // [rows][Hv]
  float* correction;             // [Hv][capacity][dv], the d of every row; null when all commit
  const uint16_t* z;             // rows of Hv*dv bf16, z_stride apart
  const float* norm_weight;      // [dv], bf16 values
  uint16_t* out;                 // rows of Hv*dv bf16, out_stride apart
  const int32_t* pending_count;  // null: nothing pending
  const int32_t* pending_rows;
  const float* pending_k;           // [Hk][pending_capacity][dk]
  const float* pending_decay;       // [pending rows][Hv]
  const float* pending_correction;  // [Hv][pending_capacity][dv]
  const int32_t* parents;           // null: a chain
  float* scratch;                   // [workers][scratch_floats]
  int64_t scratch_floats;
  int64_t z_stride;
  int64_t out_stride;
  float eps;
  int32_t rows;
  int32_t key_heads;
  int32_t value_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t capacity;
  int32_t pending_capacity;
  int32_t advance;  // 1: every row is committed; 0: the walked state is dropped
};

namespace {

struct Token {
  const float* k;
  float g;
};

// One pass over NT tiles: S' = g S + k d when UPDATE, then t += k' S', u += q' S' when PROBE. Even
// and odd key rows go to two sums, joined at the end.
template <int NT, bool UPDATE, bool PROBE, bool COLD>
inline void sweep(const float* src, float* dst, int dk, Token old, const v16f* d, const float* key,
                  const float* query, v16f* t, v16f* u) {
  const int tile = dk * kLanes;
  v16f ts[NT][2] = {}, us[NT][2] = {};
  const v16f g = splat16(old.g);
  for (int i = 0; i < dk; i += 2) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const int at = (i + half) * kLanes;
      const v16f old_key = UPDATE ? splat16(old.k[i + half]) : v16f{};
      const v16f new_key = PROBE ? splat16(key[i + half]) : v16f{};
      const v16f new_query = PROBE ? splat16(query[i + half]) : v16f{};
      // Both tiles are read before either is written: they lie a multiple of 4 KiB apart, and a load
      // waits for an unfinished store whose address has the same low 12 bits.
      v16f s[NT];
#pragma GCC unroll 2
      for (int n = 0; n < NT; n++) {
        if (COLD) __builtin_prefetch(src + (n + NT) * tile + at, 0, 3);
        s[n] = load16(src + n * tile + at);
      }
#pragma GCC unroll 2
      for (int n = 0; n < NT; n++) {
        if (UPDATE) {
          s[n] = fma16(old_key, d[n], s[n] * g);
          store16(dst + n * tile + at, s[n]);
        }
        if (PROBE) {
          ts[n][half] = fma16(new_key, s[n], ts[n][half]);
          us[n][half] = fma16(new_query, s[n], us[n][half]);
        }
      }
    }
  }
  if (PROBE) {
    for (int n = 0; n < NT; n++) {
      t[n] = ts[n][0] + ts[n][1];
      u[n] = us[n][0] + us[n][1];
    }
  }
}

template <int NT>
void walk_columns(const rondo_gated_delta_args* a, const int32_t* depth, int head, int column,
                  float* scratch) {
  const int dk = a->key_dim, dv = a->value_dim, rows = a->rows;
  const int key_head = head / (a->value_heads / a->key_heads);
  const int tile = dk * kLanes, lane0 = column * kLanes;
  float* state = a->state + (int64_t(head) * (dv / kLanes) + column) * tile;
  const float* qs = a->q + int64_t(key_head) * a->capacity * dk;
  const float* ks = a->k + int64_t(key_head) * a->capacity * dk;
  const uint16_t* vs = a->v + int64_t(head) * a->capacity * dv + lane0;
  float* record = a->correction ? a->correction + int64_t(head) * a->capacity * dv + lane0 : nullptr;
  uint16_t* out = a->out + int64_t(head) * dv + lane0;

  v16f d[NT] = {}, t[NT], u[NT];
  Token queued{nullptr, 0.0f};  // an update not yet done: its tile is read from `from`, left in `to`
  const float* from = state;
  float* to = state;
  bool cold = true;

  const int pending = a->pending_count ? *a->pending_count : 0;
  for (int j = 0; j < pending; j++) {
    if (queued.k) {
      if (cold) sweep<NT, true, false, true>(state, state, dk, queued, d, nullptr, nullptr, t, u);
      else sweep<NT, true, false, false>(state, state, dk, queued, d, nullptr, nullptr, t, u);
      cold = false;
    }
    const int64_t row = a->pending_rows[j];
    queued.k = a->pending_k + (int64_t(key_head) * a->pending_capacity + row) * dk;
    queued.g = a->pending_decay[row * a->value_heads + head];
    const float* kept =
        a->pending_correction + (int64_t(head) * a->pending_capacity + row) * dv + lane0;
    for (int n = 0; n < NT; n++) d[n] = load16(kept + n * kLanes);
  }

  for (int r = 0; r < rows; r++) {
    const float* key = ks + int64_t(r) * dk;
    const float* query = qs + int64_t(r) * dk;
    const int parent = a->parents ? a->parents[r] : r - 1;
    if (r == 0 || parent == r - 1) {
      // The first child updates its parent's tile on the way; the root row commits what is pending.
      if (r > 0) {
        const int slot = a->parents ? depth[parent] : 0;
        if (a->advance) {
          from = to = state;
        } else {
          const int grand = a->parents ? a->parents[parent] : parent - 1;
          const int above = a->parents ? slot - 1 : 0;
          from = grand < 0 ? state : scratch + int64_t(above) * NT * tile;
          to = scratch + int64_t(slot) * NT * tile;
        }
      }
      if (!queued.k) {
        sweep<NT, false, true, true>(state, nullptr, dk, queued, d, key, query, t, u);
      } else if (cold) {
        sweep<NT, true, true, true>(from, to, dk, queued, d, key, query, t, u);
      } else {
        sweep<NT, true, true, false>(from, to, dk, queued, d, key, query, t, u);
      }
      cold = false;
    } else {
      const float* tiles = parent < 0 ? state : scratch + int64_t(depth[parent]) * NT * tile;
      sweep<NT, false, true, false>(tiles, nullptr, dk, queued, d, key, query, t, u);
    }
    const v16f g = splat16(a->decay[int64_t(r) * a->value_heads + head]);
    const v16f beta = splat16(a->beta[int64_t(r) * a->value_heads + head]);
    const v16f qk = splat16(a->qk[int64_t(r) * a->key_heads + key_head]);
    for (int n = 0; n < NT; n++) {
      const v16f v = load16_bf16(vs + int64_t(r) * dv + n * kLanes);
      d[n] = (v - g * t[n]) * beta;
      store16_bf16(out + r * a->out_stride + n * kLanes, fma16(qk, d[n], g * u[n]));
      if (record) store16(record + int64_t(r) * dv + n * kLanes, d[n]);
    }
    queued.k = key;
    queued.g = a->decay[int64_t(r) * a->value_heads + head];
  }
  // With no row to probe, the last pending update is still queued.
  if (a->advance && queued.k)
    sweep<NT, true, false, false>(state, state, dk, queued, d, nullptr, nullptr, t, u);
}

// y = round(round(w * round(o * rsqrt(mean(o^2) + eps))) * silu(z)), in place on the head's o.
void gated_norm(const rondo_gated_delta_args* a, int head) {
  const int dv = a->value_dim;
  for (int r = 0; r < a->rows; r++) {
    uint16_t* o = a->out + r * a->out_stride + int64_t(head) * dv;
    const uint16_t* z = a->z + r * a->z_stride + int64_t(head) * dv;
    v16f squares = splat16(0.0f);
    for (int c = 0; c < dv; c += kLanes) {
      const v16f x = load16_bf16(o + c);
      squares = fma16(x, x, squares);
    }
    const v16f inverse = splat16(inverse_rms(sum16(squares), dv, a->eps));
    for (int c = 0; c < dv; c += kLanes) {
      const v16f normed = round_bf16_16(load16_bf16(o + c) * inverse);
      const v16f weighted = round_bf16_16(load16(a->norm_weight + c) * normed);
      store16_bf16(o + c, weighted * silu16(load16_bf16(z + c)));
    }
  }
}

// Depth of every node; false when the list is no depth-first pre-order of at most 32 levels.
bool tree_depths(const int32_t* parents, int rows, int32_t* depth) {
  int32_t path[kMaxDepth];
  for (int r = 0; r < rows; r++) {
    const int32_t parent = parents[r];
    if (parent < -1 || parent >= r) return false;
    depth[r] = parent < 0 ? 0 : depth[parent] + 1;
    if (depth[r] >= kMaxDepth || (parent >= 0 && path[depth[parent]] != parent)) return false;
    path[depth[r]] = r;
  }
  return true;
}

}  // namespace

RONDO_OP(gated_delta) {
  const int heads = a->value_heads, tiles = a->value_dim / kLanes;
  const int first = int(int64_t(heads) * worker / workers);
  const int last = int(int64_t(heads) * (worker + 1) / workers);
  int32_t depth[kMaxDepth] = {};
  if (a->parents && !tree_depths(a->parents, a->rows, depth)) {
    for (int r = 0; r < a->rows; r++)
      for (int c = first * a->value_dim; c < last * a->value_dim; c++)
        a->out[r * a->out_stride + c] = 0x7fc0;
    return;
  }
  float* scratch = a->scratch + worker * a->scratch_floats;
  for (int head = first; head < last; head++) {
    int column = 0;
    for (; column + kPair <= tiles; column += kPair)
      walk_columns<kPair>(a, depth, head, column, scratch);
    for (; column < tiles; column++) walk_columns<1>(a, depth, head, column, scratch);
    gated_norm(a, head);
  }
}
