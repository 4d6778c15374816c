// SPDX-License-Identifier: MIT OR Apache-2.0
// Products on the matrix unit of a core (AMX): 16 outputs x 32 inputs of weights, decoded to bf16,
// against the pairs of up to 16 rows, in one instruction.
//
// The weights are the left operand, one output a row; the activations, packed in pairs as product.h
// packs them, the right one, one row of the batch a column. The instruction takes whole tiles in
// the same time whatever their number of columns, so that up to 16 rows cost about as much as one.
// It adds, for every output and column on its own, the even inputs and the odd inputs ascending
// from zero, then (even + odd) to the accumulator, rounding each sum to nearest and flushing
// subnormal numbers: no column can change another, and the order is the same for every row count.
// Tiles of 32 inputs follow each other, ascending; where a format has scales for 128 inputs, four
// tiles are summed from zero and acc = fma(those, scale, acc).
//
// A format supplies kUnit (bytes of a stored tile), kStored (tiles are bf16 already), kScaledBlocks (one
// fp32 scale for 128 inputs of a tile) and decode(stored, tile).
#pragma once
#include "product.h"

namespace rondo {

constexpr int kTileInputs = 32;
constexpr int kTileBytes = 1024;            // 16 x 32 bf16, or 16 x 16 fp32
constexpr int kPairBytes = 2 * kTileBytes;  // of two neighbouring tiles
constexpr int kFoldTiles = 4;               // tiles under one block scale
constexpr int kPanelInputs = 256;           // decoded at a time for more than two blocks of rows
constexpr int kVisitTiles = 256;            // accumulators kept while the inputs are taken in steps

// Registers: accumulators 0 .. 3 (tile, block), weights 4 and 5, activations 6 and 7.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The sizes of the registers, set again only when they change: that takes as long as a few products.
class TileSizes {
 public:
  RONDO_MEMBER void set(int32_t m0, int32_t m1) {
    if (m0 == m0_ && m1 == m1_) return;
    m0_ = m0, m1_ = m1;
    TileConfiguration c;
    const int32_t columns[8] = {m0, m1, m0, m1, 16, 16, m0, m1};
    for (int i = 0; i < 8; i++) c.row_bytes[i] = uint16_t(4 * columns[i]), c.rows[i] = 16;
    _tile_loadconfig(&c);
  }
  ~TileSizes() { _tile_release(); }

 private:
  int32_t m0_ = 0, m1_ = 0;
};

// One or two neighbouring blocks of rows, from the first input of a step on.
struct Columns {
  const uint8_t* x[2];
  int32_t m[2];
};

// The same inputs of two neighbouring tiles, decoded.
struct TilePair {
  const uint8_t *first, *second;
};

// The stored tiles of two neighbours, each a stream of its own: the processor looks ahead in both.
template <class Format>
struct Streams {
  const uint8_t* weight[2];
  Prefetch ahead;
  RONDO_MEMBER void fetch(int32_t unit) const {
    const int64_t at = int64_t(unit) * Format::kUnit;
    const int64_t later = at + ahead(at);
    for (const uint8_t* stream : weight)
#pragma GCC unroll 16
      for (int line = 0; line < Format::kUnit; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(stream + later + line), _MM_HINT_T0);
  }
  RONDO_MEMBER void decode(int32_t unit, uint8_t* to) const {
    fetch(unit);
    Format::decode(weight[0] + int64_t(unit) * Format::kUnit, to);
    Format::decode(weight[1] + int64_t(unit) * Format::kUnit, to + kTileBytes);
  }
};

// Tiles that are bf16 in memory.
template <class Format>
struct StoredTiles {
  Streams<Format> streams;
  RONDO_MEMBER TilePair operator()(int32_t unit) const {
    streams.fetch(unit);
    const int64_t at = int64_t(unit) * Format::kUnit;
    return {streams.weight[0] + at, streams.weight[1] + at};
  }
};

// Tiles decoded one ahead of their use, so that the matrix unit need not wait for the stores.
template <class Format>
struct DecodedTiles {
  Streams<Format> streams;
  int32_t units;
  uint8_t* ring;  // two pairs
  RONDO_MEMBER TilePair operator()(int32_t unit) const {
    if (unit == 0) streams.decode(0, ring);
    if (unit + 1 < units) streams.decode(unit + 1, ring + (unit + 1) % 2 * kPairBytes);
    const uint8_t* at = ring + unit % 2 * kPairBytes;
    return {at, at + kTileBytes};
  }
};

// Tiles decoded before, pair after pair.
struct PanelTiles {
  const uint8_t* panel;
  RONDO_MEMBER TilePair operator()(int32_t unit) const {
    const uint8_t* at = panel + int64_t(unit) * kPairBytes;
    return {at, at + kTileBytes};
  }
};

// The tiles [from, to) of a step added to the accumulators in the registers.
template <bool kTwo, class Tiles>
RONDO_INLINE void add_tiles(const Tiles& tiles, int32_t from, int32_t to, const Columns& c) {
  for (int32_t u = from; u < to; u++) {
    const TilePair w = tiles(u);
    _tile_loadd(6, c.x[0] + int64_t(u) * 64 * c.m[0], 4 * c.m[0]);
    _tile_loadd(4, w.first, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (kTwo) {
      _tile_loadd(7, c.x[1] + int64_t(u) * 64 * c.m[1], 4 * c.m[1]);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_loadd(5, w.second, 64);
    _tile_dpbf16ps(2, 5, 6);
    if (kTwo) _tile_dpbf16ps(3, 5, 7);
  }
}

// acc = fma(sums, scale, acc) for one tile [16 outputs][m], or acc = sums * scale the first time.
RONDO_INLINE void fold(const float* sums, float scale, bool first, float* acc) {
  const __m512 s = _mm512_set1_ps(scale);
#pragma GCC unroll 4
  for (int n = 0; n < 16; n++) {
    const __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(acc + 16 * n);
    _mm512_store_ps(acc + 16 * n, _mm512_fmadd_ps(_mm512_load_ps(sums + 16 * n), s, before));
  }
}

RONDO_INLINE void zero_accumulators() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
template <bool kTwo>
RONDO_INLINE void store_accumulators(float* first, float* second) {
  _tile_stored(0, first, 64);
  _tile_stored(2, second, 64);
  if (kTwo) {
    _tile_stored(1, first + 256, 64);
    _tile_stored(3, second + 256, 64);
  }
}

// `units` tiles of a pair against one or two blocks. acc[t]: the accumulators [block][16][16] of tile t.
// scale[t]: its block scales from here on, null without.
template <bool kTwo, class Tiles>
static void add_step(const Tiles& tiles, int32_t units, const Columns& c, bool first,
                     const float* const* scale, float* const* acc) {
  if (!scale[0]) {
    zero_accumulators();
    if (!first) {
      _tile_loadd(0, acc[0], 64);
      _tile_loadd(2, acc[1], 64);
      if (kTwo) {
        _tile_loadd(1, acc[0] + 256, 64);
        _tile_loadd(3, acc[1] + 256, 64);
      }
    }
    add_tiles<kTwo>(tiles, 0, units, c);
    store_accumulators<kTwo>(acc[0], acc[1]);
    return;
  }
  alignas(64) float part[2][2 * 256];  // columns beyond the rows hold anything and are never stored
  for (int32_t u = 0; u < units; u += kFoldTiles) {
    const int32_t end = u + kFoldTiles < units ? u + kFoldTiles : units;
    zero_accumulators();
    add_tiles<kTwo>(tiles, u, end, c);
    store_accumulators<kTwo>(part[0], part[1]);
    for (int t = 0; t < 2; t++)
      for (int b = 0; b < (kTwo ? 2 : 1); b++)
        fold(part[t] + 256 * b, scale[t][u / kFoldTiles], first && u == 0, acc[t] + 256 * b);
  }
}

// Scales and stores the accumulators of one pair of tiles against one block of m rows.
static inline void store_pair(const rondo_linear_args* a, const float* first, const float* second,
                              int32_t tile, bool pair, int32_t row, int32_t m) {
  alignas(64) float sums[2][256];
  const float* from[2] = {first, second};
  for (int t = 0; t < (pair ? 2 : 1); t++) {
    __m512i v[16];
#pragma GCC unroll 16
    for (int n = 0; n < 16; n++) v[n] = _mm512_load_si512(from[t] + 16 * n);
    transpose16(v);
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) _mm512_store_si512(sums[t] + 16 * r, v[r]);
  }
  store_sums(a, sums[0], a->silu_mul ? sums[1] : nullptr, tile, row, m);
  if (pair && !a->silu_mul) store_sums(a, sums[1], nullptr, tile + 1, row, m);
}

template <class Format>
struct MatrixProduct {
  const rondo_linear_args* a;
  const uint8_t* x;  // packed rows
  int32_t blocks;
  float* acc;      // [tiles of a visit][blocks of a visit][16][16]
  uint8_t* panel;  // decoded tiles of a step, or the ring
  TileSizes* sizes;

  RONDO_MEMBER int32_t row_of(int32_t block) const { return block_begin(a->rows, blocks, block); }
  RONDO_MEMBER int32_t rows_of(int32_t block) const { return row_of(block + 1) - row_of(block); }

  // Inputs [k, k + 32 units) of the pair at `tile` against the blocks [b0, b1).
  void add_pair(int64_t tile, int32_t k, int32_t units, int32_t b0, int32_t b1, const Prefetch& ahead,
                float* pair_acc) const {
    const uint8_t* weight =
        a->weight + tile * a->weight_stride + int64_t(k) / kTileInputs * Format::kUnit;
    const Streams<Format> streams{{weight, weight + a->weight_stride}, ahead};
    const float* block_scale[2] = {nullptr, nullptr};
    for (int t = 0; Format::kScaledBlocks && a->scale && t < 2; t++) {
      const int64_t at = tile + t < a->tiles ? tile + t : tile;
      block_scale[t] = reinterpret_cast<const float*>(a->scale + at * a->scale_stride) + k / 128;
    }
    const bool first = k == 0, many = b1 - b0 > 2;
    if constexpr (!Format::kStored)
      for (int32_t u = 0; many && u < units; u++)
        streams.decode(u, panel + int64_t(u) * kPairBytes);
    for (int32_t b = b0; b < b1; b += 2) {
      const bool two = b + 1 < b1;
      Columns c;
      for (int i = 0; i < 2; i++) {
        const int32_t block = two ? b + i : b;
        c.m[i] = rows_of(block);
        c.x[i] = x + row_of(block) * Format::row_bytes(a->k_padded) + Format::row_bytes(k) * c.m[i];
      }
      sizes->set(c.m[0], c.m[1]);
      float* to[2] = {pair_acc + (b - b0) * 256, pair_acc + (b1 - b0 + b - b0) * 256};
      const auto run = [&](const auto& tiles) {
        if (two) add_step<true>(tiles, units, c, first, block_scale, to);
        else add_step<false>(tiles, units, c, first, block_scale, to);
      };
      if constexpr (Format::kStored) run(StoredTiles<Format>{streams});
      else if (many) run(PanelTiles{panel});
      else run(DecodedTiles<Format>{streams, units, panel});
    }
  }

  // All inputs of the tiles [t0, t1) against the blocks [b0, b1).
  void visit(int64_t t0, int64_t t1, int32_t b0, int32_t b1) const {
    const int32_t n = b1 - b0;
    int32_t step = a->step_inputs ? a->step_inputs : n > 2 ? kPanelInputs : a->k_padded;
    if (n > 2 && step > kPanelInputs) step = kPanelInputs;
    for (int32_t k = 0, count; k < a->k_padded; k += count) {
      count = a->k_padded - k < step ? a->k_padded - k : step;
      const bool last = k + count == a->k_padded;
      const int32_t units = count / kTileInputs;
      for (int64_t tile = t0; tile < t1; tile += 2) {
        // The next visit: the same inputs of the next pair, or the next inputs of the first one.
        const bool onward = tile + 2 < t1 || last;
        const int64_t on = onward ? 2 : t0 - tile, further = onward ? 0 : units;
        // The two streams share the distance.
        const Prefetch ahead(a->ahead_bytes / 2, units * Format::kUnit,
                             on * a->weight_stride + further * Format::kUnit);
        float* pair = acc + (tile - t0) * n * 256;
        add_pair(tile, k, units, b0, b1, ahead, pair);
        if (!last) continue;
        for (int32_t b = b0; b < b1; b++)
          store_pair(a, pair + (b - b0) * 256, pair + (n + b - b0) * 256, int32_t(tile), tile + 1 < t1,
                     row_of(b), rows_of(b));
      }
    }
  }
};

template <class Format>
static void matrix_product(const rondo_linear_args* a, int32_t worker, int32_t workers) {
  const rondo_range pairs = rondo_share((int64_t(a->tiles) + 1) / 2, worker, workers);
  const int64_t t0 = pairs.begin * 2, t1 = pairs.end * 2 < a->tiles ? pairs.end * 2 : a->tiles;
  if (t0 >= t1) return;
  const uint8_t* x = rows_to_read<Format>(a, worker);
  alignas(64) float acc[kVisitTiles * 256];
  alignas(64) uint8_t panel[kPanelInputs / kTileInputs * kPairBytes];
  TileSizes sizes;
  const MatrixProduct<Format> all{a, x, row_blocks<Format>(a), acc, panel, &sizes};
  const int32_t together = kVisitTiles / a->chunk_tiles;
  for (int64_t t = t0; t < t1; t += a->chunk_tiles) {
    const int64_t end = t + a->chunk_tiles < t1 ? t + a->chunk_tiles : t1;
    for (int32_t b = 0; b < all.blocks; b += together)
      all.visit(t, end, b, b + together < all.blocks ? b + together : all.blocks);
  }
}

}  // namespace rondo
