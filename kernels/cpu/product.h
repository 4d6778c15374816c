// SPDX-License-Identifier: MIT OR Apache-2.0
// The frame of every matrix product: rows of activations against weights in tiles of 16 outputs.
//
// A lane is an output, so there is no horizontal sum and the order of the sum over K is the same
// for 1 row and for 1,024. Rows are taken in blocks of at most kMaxRows; the activations of a block
// are repacked once so that one step of K lies in one place:
//   with a bf16 dot product: [K/2][rows] pairs of bf16; else with AVX2 or AVX-512: [K/2][rows][2]
//   fp32; else [K][rows] fp32.
// A format supplies `template <int M, int T> static void tiles(...)`: the raw sums of T neighbouring
// tiles against M rows. It inherits from Activations, or from its own way of repacking rows.
#pragma once
#include "vec.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define RONDO_BF16_DOT 1
#endif
#if defined(__AVX2__) && !defined(RONDO_BF16_DOT)
#define RONDO_AVX 1  // of either width
#include "registers.h"
#endif
#if defined(RONDO_AVX) || defined(RONDO_NEON)
#define RONDO_INT16 1  // NVFP4 products read inputs as integers (product_int16.h)
#endif

struct rondo_linear_args {
  const uint8_t* weight;   // pairs of tiles, interleaved unit by unit; weight_stride bytes a tile
  const uint8_t* scale;    // scales inside the sum, scale_stride bytes a tile; null without
  const float* row_scale;  // [tiles * 16], multiplies the finished sum; null without
  const bf16_t* x;         // [rows][k], rows x_stride elements apart
  uint8_t* packed;         // repacked activations of all rows (pack step), or null
  uint8_t* scratch;        // working memory, scratch_stride bytes a worker
  void* out;               // bf16 or fp32, rows out_stride elements apart
  int64_t weight_stride, scale_stride, scratch_stride, x_stride, out_stride;
  int32_t rows, k, k_padded, tiles;
  int32_t columns;   // outputs stored; at most tiles * 16 (with silu_mul: tiles * 8)
  int32_t out_fp32;  // 0: bf16
  int32_t silu_mul;  // tiles alternate gate, up
  // How to walk them (kernels/cpu/blocking.py); no sum depends on it.
  int32_t block_rows;   // rows computed together; 0: as many as the format can
  int32_t chunk_tiles;  // even, 2 .. kMostChunkTiles
  int32_t step_inputs;  // a multiple of 128; 0: the kernel's own choice
  int32_t ahead_bytes;  // how far ahead weights are fetched
  int32_t reserved;
};

namespace rondo {

// The most bytes that a repacked activation takes, and half of the least second-level cache of
// processors of this level.
#if defined(RONDO_BF16_DOT)
constexpr int kActivationBytes = 2, kStepBytes = 512 << 10;
#else
constexpr int kActivationBytes = 4, kStepBytes = 256 << 10;
#endif
// The most tiles whose sums are kept while the inputs are taken step by step.
constexpr int kMostChunkTiles = 64;

// Where to prefetch from while a visit to `chunk` bytes goes on: `distance` further, or at the start
// of the next visit, `next` bytes from the start of this one, once that would leave the chunk.
struct Prefetch {
  int64_t distance, edge, jump;
  Prefetch() : distance(0), edge(0), jump(0) {}
  Prefetch(int64_t ahead, int64_t chunk, int64_t next)
      : distance(ahead), edge(chunk - ahead), jump(next - chunk) {}
  // How far ahead of the byte `at` of this visit.
  int64_t operator()(int64_t at) const { return distance + (at >= edge ? jump : 0); }
};

// One call of a format's inner loop: `k_count` inputs of T neighbouring tiles, T * M running sums.
// The units of the two tiles of a pair alternate in memory, so that a pair is one stream: a tile's
// units lie 2 * Format::kUnit bytes apart, those of its neighbour kUnit bytes further.
struct TileArgs {
  const uint8_t* weight;
  const uint8_t* scale;  // null without scales inside the sum
  int64_t scale_stride;
  const void* x;  // repacked activations of these inputs
  int32_t k_count;
  bool first;             // the sums start from zero
  Prefetch weight_ahead, scale_ahead;
  float* sums;  // [T][M][16]
};

// Inputs taken at a time by a block of m rows: all of them while its activations leave half of the
// second-level cache to the weights. A shorter step would keep them in the first-level cache, but
// cuts the stream of weights, which costs more: a quarter at 4 rows of FP8 from memory.
RONDO_INLINE int32_t k_step(int32_t m) { return (kStepBytes / (m * kActivationBytes)) & ~127; }

template <class Format>
RONDO_INLINE int32_t row_blocks(const rondo_linear_args* a) {
  const bool fewer = a->block_rows > 0 && a->block_rows < Format::kMaxRows;
  const int32_t most = fewer ? a->block_rows : Format::kMaxRows;
  return (a->rows + most - 1) / most;
}
RONDO_INLINE int32_t block_begin(int32_t rows, int32_t blocks, int32_t b) {
  return int32_t(int64_t(rows) * b / blocks);
}

#if defined(RONDO_BF16_DOT)
// Sixteen vectors of sixteen words: v[i][j] becomes v[j][i].
RONDO_INLINE void transpose16(__m512i* v) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}
#endif

// Repacks the rows [begin, begin + m); inputs beyond k become zero.
static inline void pack_block(const rondo_linear_args* a, int32_t begin, int32_t m, void* out) {
  const bf16_t* x = a->x + int64_t(begin) * a->x_stride;
#if defined(RONDO_BF16_DOT)
  uint32_t* to = static_cast<uint32_t*>(out);
  const int32_t whole = a->k / 2, all = a->k_padded / 2;
  const __mmask16 rows = __mmask16((1u << m) - 1);
  int32_t p = 0;
  for (; m > 2 && p + 16 <= whole; p += 16) {
    __m512i v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++)
      v[r] = r < m ? _mm512_loadu_si512(x + r * a->x_stride + 2 * p) : _mm512_setzero_si512();
    transpose16(v);
    // Whole stores run over into the next pair, which then overwrites them; the last may not.
    uint32_t* at = to + int64_t(p) * m;
#pragma GCC unroll 15
    for (int j = 0; j < 15; j++) {
      if (j * m + 16 <= 16 * m) _mm512_storeu_si512(at + j * m, v[j]);
      else _mm512_mask_storeu_epi32(at + j * m, rows, v[j]);
    }
    _mm512_mask_storeu_epi32(at + 15 * m, rows, v[15]);
  }
  for (; p < whole; p++)
    for (int32_t r = 0; r < m; r++) memcpy(to + int64_t(p) * m + r, x + r * a->x_stride + 2 * p, 4);
  if (a->k & 1) {
    for (int32_t r = 0; r < m; r++) to[int64_t(p) * m + r] = x[r * a->x_stride + a->k - 1];
    p++;
  }
  if (p < all) memset(to + int64_t(p) * m, 0, size_t(all - p) * m * 4);
#elif defined(RONDO_AVX)
  float* to = static_cast<float*>(out);
  for (int32_t r = 0; r < m; r++, x += a->x_stride) {
    int32_t k = 0;
    for (; k + 8 <= a->k; k += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + k));
      const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
      int64_t pairs[4];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs), wide);
      for (int j = 0; j < 4; j++) memcpy(to + (int64_t(k) + 2 * j) * m + 2 * r, pairs + j, 8);
    }
    for (; k < a->k_padded; k++)
      to[int64_t(k / 2) * 2 * m + 2 * r + k % 2] = k < a->k ? bf16_to_float(x[k]) : 0.f;
  }
#else
  float* to = static_cast<float*>(out);
  for (int32_t k = 0; k < a->k; k++)
    for (int32_t r = 0; r < m; r++) to[int64_t(k) * m + r] = bf16_to_float(x[r * a->x_stride + k]);
  memset(to + int64_t(a->k) * m, 0, size_t(a->k_padded - a->k) * m * 4);
#endif
}

struct Activations {
#if defined(RONDO_BF16_DOT)
  static constexpr bool kAsStored = true;  // one row is repacked to itself
#else
  static constexpr bool kAsStored = false;
#endif
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 16;
#elif defined(RONDO_AVX)
  static constexpr int kMaxRows = 12;
#elif defined(__aarch64__)
  static constexpr int kMaxRows = 4;
#else
  static constexpr int kMaxRows = 2;
#endif
  // Bytes that k repacked activations of one row take.
  static int64_t row_bytes(int32_t k) { return int64_t(k) * kActivationBytes; }
  static void pack(const rondo_linear_args* a, int32_t begin, int32_t m, void* out) {
    pack_block(a, begin, m, out);
  }
};

// The pack step: workers repack the activation blocks of a long run of rows together.
template <class Format>
static void pack_rows(const rondo_linear_args* a, int32_t worker, int32_t workers) {
  const int32_t blocks = row_blocks<Format>(a);
  const rondo_range mine = rondo_share(blocks, worker, workers);
  for (int64_t b = mine.begin; b < mine.end; b++) {
    const int32_t row = block_begin(a->rows, blocks, int32_t(b));
    const int32_t end = block_begin(a->rows, blocks, int32_t(b) + 1);
    Format::pack(a, row, end - row, a->packed + row * Format::row_bytes(a->k_padded));
  }
}

// Scales, rounds once and stores the sums [m][16] of one tile; with `up`, those of the gate and up
// tiles as silu(gate) * up, each factor rounded as the unfused steps round it.
[[maybe_unused]] __attribute__((noinline)) static void store_sums(const rondo_linear_args* a,
                                                                  const float* sums,
                                                                  const float* up, int32_t tile,
                                                                  int32_t row, int32_t m) {
  const v16f one = splat16(1.f);
  const float* rs = a->row_scale ? a->row_scale + int64_t(tile) * 16 : nullptr;
  const v16f s0 = rs ? load16(rs) : one;
  const int32_t column = (up ? tile / 2 : tile) * 16;
  const int32_t width = a->columns - column < 16 ? a->columns - column : 16;
  if (width <= 0) return;
  for (int32_t r = 0; r < m; r++) {
    v16f y = load16(sums + r * 16) * s0;
    const int64_t at = int64_t(row + r) * a->out_stride + column;
    if (up) {
      const v16f s1 = rs ? load16(rs + 16) : one;
      y = round_bf16_16(silu16(round_bf16_16(y))) * round_bf16_16(load16(up + r * 16) * s1);
    }
    if (a->out_fp32) {
      float* to = static_cast<float*>(a->out) + at;
      if (width == 16) store16(to, y);
      else store16_part(to, y, width);
    } else {
      bf16_t* to = static_cast<bf16_t*>(a->out) + at;
      if (width == 16) store16_bf16(to, y);
      else store16_bf16_part(to, y, width);
    }
  }
}

// The repacked rows of this product: of the pack step, the rows themselves, or repacked here.
template <class Format>
static const uint8_t* rows_to_read(const rondo_linear_args* a, int32_t worker) {
  if (Format::kAsStored && a->rows == 1 && a->k == a->k_padded)
    return reinterpret_cast<const uint8_t*>(a->x);
  if (a->packed) return a->packed;
  uint8_t* own = a->scratch + worker * a->scratch_stride;
  const int32_t blocks = row_blocks<Format>(a);
  for (int32_t b = 0; b < blocks; b++) {
    const int32_t row = block_begin(a->rows, blocks, b);
    const int32_t m = block_begin(a->rows, blocks, b + 1) - row;
    Format::pack(a, row, m, own + row * Format::row_bytes(a->k_padded));
  }
  return own;
}

// All K of the tiles [t0, t1) against one block of M rows; sums has room for t1 - t0 + 1 tiles.
template <class Format, int M>
static void sweep(const rondo_linear_args* a, const void* x, int32_t row, int64_t t0, int64_t t1,
                  float* sums) {
  constexpr int T = Format::template together<M>();
  const int32_t step = a->step_inputs ? a->step_inputs : k_step(M);
  const int64_t scale_stride = a->scale ? a->scale_stride : 0;
  TileArgs t{};
  t.scale_stride = scale_stride;
  for (int32_t k = 0; k < a->k_padded; k += t.k_count) {
    t.k_count = a->k_padded - k < step ? a->k_padded - k : step;
    t.first = k == 0;
    const bool last = k + t.k_count == a->k_padded;
    const int64_t weight_at = Format::weight_offset(k), scale_at = Format::scale_offset(k);
    t.x = static_cast<const uint8_t*>(x) + Format::row_bytes(k) * M;
    for (int64_t tile = t0; tile < t1; tile += 2) {
      const bool pair = tile + 1 < t1;
      // The next visit: the same inputs of the next pair, or the next inputs of the first one.
      const bool onward = tile + 2 < t1 || last;
      const int64_t on = onward ? 2 : t0 - tile;
      const int32_t further = onward ? 0 : t.k_count;
      t.weight_ahead = Prefetch(a->ahead_bytes, Format::weight_offset(t.k_count),
                                on * a->weight_stride + Format::weight_offset(further));
      t.scale_ahead = Prefetch(a->ahead_bytes / 8, Format::scale_offset(t.k_count),
                               on * scale_stride + Format::scale_offset(further));
      t.weight = a->weight + tile * a->weight_stride + weight_at;
      t.scale = a->scale ? a->scale + tile * scale_stride + scale_at : nullptr;
      t.sums = sums + (tile - t0) * M * 16;
      if (T == 2 && pair) {
        Format::template tiles<M, T>(t);
      } else {
        Format::template tiles<M, 1>(t);
        if (pair) {
          TileArgs u = t;
          u.weight += Format::kUnit, u.sums += M * 16;
          if (u.scale) u.scale += Format::scale_second(scale_stride);
          Format::template tiles<M, 1>(u);
        }
      }
      if (!last) continue;
      const float* second = t.sums + M * 16;
      store_sums(a, t.sums, a->silu_mul ? second : nullptr, int32_t(tile), row, M);
      if (pair && !a->silu_mul) store_sums(a, second, nullptr, int32_t(tile) + 1, row, M);
    }
  }
}

template <class Format, int M = Format::kMaxRows>
static void dispatch(const rondo_linear_args* a, int32_t m, const void* x, int32_t row, int64_t t0,
                     int64_t t1, float* sums) {
  if constexpr (M > 0) {
    if (m == M) sweep<Format, M>(a, x, row, t0, t1, sums);
    else dispatch<Format, M - 1>(a, m, x, row, t0, t1, sums);
  }
}

template <class Format>
static void product(const rondo_linear_args* a, int32_t worker, int32_t workers) {
  const rondo_range pairs = rondo_share((int64_t(a->tiles) + 1) / 2, worker, workers);
  const int64_t t0 = pairs.begin * 2, t1 = pairs.end * 2 < a->tiles ? pairs.end * 2 : a->tiles;
  if (t0 >= t1) return;
  const int32_t blocks = row_blocks<Format>(a);
  const int64_t row_bytes = Format::row_bytes(a->k_padded);
  const uint8_t* x = rows_to_read<Format>(a, worker);
  alignas(64) float sums[kMostChunkTiles * Format::kMaxRows * 16];
  for (int64_t t = t0; t < t1; t += a->chunk_tiles) {
    const int64_t end = t + a->chunk_tiles < t1 ? t + a->chunk_tiles : t1;
    for (int32_t b = 0; b < blocks; b++) {
      const int32_t row = block_begin(a->rows, blocks, b);
      const int32_t m = block_begin(a->rows, blocks, b + 1) - row;
      dispatch<Format>(a, m, x + row * row_bytes, row, t, end, sums);
    }
  }
}

#if defined(RONDO_BF16_DOT)
// acc + w0 * x0 + w1 * x1 in every lane, the pair read and broadcast by the instruction itself: the
// compiler has no pattern for that and would spend an instruction and a register more.
RONDO_INLINE __m512 dot_broadcast(__m512 acc, __m512bh w, const uint32_t* pair) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*pair));
  return acc;
}
#elif !defined(RONDO_AVX)
// Adds `columns` decoded columns [columns][16] fp32 against M rows to p, column after column.
template <int M>
RONDO_INLINE void add_columns(const float* w, const float* x, int columns, v16f* p) {
  for (int c = 0; c < columns; c++) {
    const v16f v = load16(w + c * 16);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) p[m] = fma16(v, splat16(x[c * M + m]), p[m]);
  }
}
#endif

}  // namespace rondo
