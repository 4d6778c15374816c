// SPDX-License-Identifier: MIT OR Apache-2.0
// e4m3 weights, with one scale per 128 x 128 block or per output, against bf16 activations.
//
// A tile is 16 outputs; 64 bytes hold four neighbouring inputs of each output. Each quarter of 16
// bytes covers four outputs: bytes 0..7 are their inputs 0 and 1 (output 0: 0 1, output 1: 0 1, ..),
// bytes 8..15 inputs 2 and 3, so that interleaving two byte tables inside the quarters yields one
// pair of bf16 a lane. The units of two neighbouring tiles alternate. K is padded
// with zeros to a multiple of 32.
// One order for every row count: blocks of 32 inputs are summed from zero, pairs ascending; four of
// them are added in turn from zero, and acc = fma(those, block scale, acc). With AVX2 a lane holds the
// even or the odd inputs of an output: blocks of 64 inputs are summed from zero, two of them are
// added, then even and odd inputs, and acc as before. The scale of an output multiplies the
// finished sum.
#include "e4m3_bytes.h"
#include "product.h"

#include <utility>

namespace {

using rondo::TileArgs;

// The scale of 128-block b of this tile; one without block scales.
RONDO_INLINE float block_scale(const uint8_t* scale, int b) {
  float s = 1.f;
  if (scale) memcpy(&s, scale + int64_t(b) * 4, 4);
  return s;
}

struct Layout : rondo::Activations {
  static constexpr int kUnit = 64;
  static int64_t weight_offset(int32_t k) { return int64_t(k) / 4 * 2 * kUnit; }
  static int64_t scale_offset(int32_t k) { return k / 128 * 4; }
  static int64_t scale_second(int64_t stride) { return stride; }
};

#if defined(RONDO_BF16_DOT)

struct Fp8 : Layout {
  template <int M>
  static constexpr int together() {
    return M <= 4 ? 2 : 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const __m512i l0 = _mm512_load_si512(rondo::kE4m3.low), l1 = _mm512_load_si512(rondo::kE4m3.low + 64);
    const __m512i h0 = _mm512_load_si512(rondo::kE4m3.high), h1 = _mm512_load_si512(rondo::kE4m3.high + 64);
    const __m512i sign = _mm512_set1_epi8(char(0x80));
    const uint32_t* x = static_cast<const uint32_t*>(a.x);
    const uint8_t* p = a.weight;
    for (int b = 0, left = a.k_count / 32; left > 0; b++, left -= 4) {
      alignas(64) float held[T][M][16];
      const int parts = left < 4 ? left : 4;
      for (int part = 0; part < parts; part++, x += 16 * M, p += 8 * 2 * kUnit) {
        const int64_t ahead = a.weight_ahead(p - a.weight);
        __m512 sum[T][M];
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) sum[t][m] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
          __m512bh w[T][2];
#pragma GCC unroll 2
          for (int t = 0; t < T; t++) {
            const uint8_t* from = p + (2 * j + t) * kUnit;
            _mm_prefetch(reinterpret_cast<const char*>(from) + ahead, _MM_HINT_T0);
            const __m512i c = _mm512_load_si512(from);
            const __m512i low = _mm512_permutex2var_epi8(l0, c, l1);
            const __m512i mag = _mm512_permutex2var_epi8(h0, c, h1);
            const __m512i high = _mm512_ternarylogic_epi32(mag, c, sign, 0xF8);
            w[t][0] = (__m512bh)_mm512_unpacklo_epi8(low, high);
            w[t][1] = (__m512bh)_mm512_unpackhi_epi8(low, high);
          }
#pragma GCC unroll 2
          for (int i = 0; i < 2; i++)
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
              const uint32_t* pair = x + (j * 2 + i) * M + m;
              if constexpr (T == 1) {
                sum[0][m] = rondo::dot_broadcast(sum[0][m], w[0][i], pair);
              } else {
                const __m512bh v = (__m512bh)_mm512_set1_epi32(int(*pair));
#pragma GCC unroll 2
                for (int t = 0; t < T; t++) sum[t][m] = _mm512_dpbf16_ps(sum[t][m], w[t][i], v);
              }
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) {
            if (part) sum[t][m] = _mm512_add_ps(_mm512_load_ps(held[t][m]), sum[t][m]);
            _mm512_store_ps(held[t][m], sum[t][m]);
          }
      }
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        const uint8_t* q = a.scale ? a.scale + t * a.scale_stride : nullptr;
        const __m512 s = _mm512_set1_ps(block_scale(q, b));
        // The accumulators stay in memory: the registers belong to the chains.
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
          float* acc = a.sums + (t * M + m) * 16;
          const __m512 before = a.first && b == 0 ? _mm512_setzero_ps() : _mm512_load_ps(acc);
          _mm512_store_ps(acc, _mm512_fmadd_ps(_mm512_load_ps(held[t][m]), s, before));
        }
      }
    }
  }
};

#elif defined(RONDO_AVX2)

// A unit as f16 with the same exponent and mantissa bits, 2^-8 times the values: [half][quarter][8].
// An output with a NaN code has a NaN scale, so NaN needs no care here.
constexpr int kUnitHalves = 64;  // f16 of a unit
RONDO_INLINE void to_halves(const uint8_t* p, uint16_t* to) {
  const __m256i zero = _mm256_setzero_si256(), bits = _mm256_set1_epi16(int16_t(0xBF80));
#pragma GCC unroll 2
  for (int q = 0; q < 2; q++) {
    const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i*>(p + q * 32));
    const __m256i low = _mm256_srai_epi16(_mm256_unpacklo_epi8(zero, c), 1);
    const __m256i high = _mm256_srai_epi16(_mm256_unpackhi_epi8(zero, c), 1);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + q * 16), _mm256_and_si256(low, bits));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 32 + q * 16), _mm256_and_si256(high, bits));
  }
}
// Eight f16 in memory: from there the conversion is one instruction, from a register it is two.
RONDO_INLINE __m256 from_halves(const uint16_t* p) {
  __m256 v;
  asm("vcvtph2ps %1, %0" : "=x"(v) : "m"(*reinterpret_cast<const uint16_t(*)[8]>(p)));
  return v;
}

struct Fp8 : Layout {
  template <int M>
  static constexpr int together() {
    return 2;
  }

  // Sums of up to 64 inputs, of quarter i of a unit: the first ones of a block, or in addition to those.
  RONDO_INLINE void keep(__m256* held, const __m256* sum, bool add) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) held[i] = add ? _mm256_add_ps(held[i], sum[i]) : sum[i];
  }
  // Joins the even and the odd inputs of 16 outputs and adds them with the scale of their block.
  RONDO_INLINE void add_block(const __m256* held, __m256 scale, bool first, float* acc) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      const __m256 pairs = _mm256_hadd_ps(held[2 * v], held[2 * v + 1]);
      const __m256 joined =
          _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xD8));
      const __m256 before = first ? _mm256_setzero_ps() : _mm256_load_ps(acc + 8 * v);
      _mm256_store_ps(acc + 8 * v, _mm256_fmadd_ps(joined, scale, before));
    }
  }

  // Up to 64 inputs of T tiles against one or two rows, the tiles side by side.
  template <int M, int T>
  RONDO_INLINE void few_rows(const TileArgs& a, const uint8_t* p, const float* x, int units, bool add,
                             __m256 (*held)[M][4]) {
    __m256 sum[T][M][4];
#pragma GCC unroll 2
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sum[t][m][i] = _mm256_setzero_ps();
    for (int u = 0; u < units; u++, x += 4 * M, p += 2 * kUnit) {
      alignas(32) uint16_t w[T][kUnitHalves];
      const int64_t ahead = a.weight_ahead(p - a.weight);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        rondo::prefetch(p + t * kUnit + ahead);
        to_halves(p + t * kUnit, w[t]);
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        __m256 pairs[M];
#pragma GCC unroll 2
        for (int m = 0; m < M; m++) pairs[m] = rondo::broadcast_pair(x + (half * M + m) * 2);
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 4
          for (int i = 0; i < 4; i++) {
            const __m256 weight = from_halves(w[t] + half * 32 + i * 8);
#pragma GCC unroll 2
            for (int m = 0; m < M; m++) sum[t][m][i] = _mm256_fmadd_ps(weight, pairs[m], sum[t][m][i]);
          }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
      for (int m = 0; m < M; m++) keep(held[t][m], sum[t][m], add);
  }

  // A block of 16 outputs, `units` units of f16, against N of the M rows at x. A function of its own, so
  // that nothing else takes its registers. With Fetch it asks for as many lines from `later` on as half of
  // these units take, bit by bit: all at once they would hold up the decoding, and nothing would come
  // while the rows are multiplied.
  template <int M, int N, bool Fetch>
  __attribute__((noinline)) static void add_rows(const uint16_t* w, const float* x, int units,
                                                 __m256 scale, bool first, float* acc,
                                                 const uint8_t* later) {
    __m256 held[N][4];
    for (bool add = false; units > 0; units -= 16, add = true) {
      __m256 sum[N][4];
#pragma GCC unroll 3
      for (int r = 0; r < N; r++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sum[r][i] = _mm256_setzero_ps();
      const uint16_t* end = w + (units < 16 ? units : 16) * kUnitHalves;
#pragma GCC unroll 1
      for (; w < end; w += 32, x += 2 * M) {
        if (Fetch) rondo::prefetch(later), later += kUnit / 2;
        __m256 value[N];
#pragma GCC unroll 3
        for (int r = 0; r < N; r++) value[r] = rondo::broadcast_pair(x + 2 * r);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
          const __m256 weight = from_halves(w + i * 8);
#pragma GCC unroll 3
          for (int r = 0; r < N; r++) sum[r][i] = _mm256_fmadd_ps(weight, value[r], sum[r][i]);
        }
      }
#pragma GCC unroll 3
      for (int r = 0; r < N; r++) keep(held[r], sum[r], add);
    }
#pragma GCC unroll 3
    for (int r = 0; r < N; r++) add_block(held[r], scale, first, acc + r * 16);
  }
  template <int M, int... Part>
  RONDO_INLINE void add_parts(const uint16_t* w, const float* x, int units, __m256 scale, bool first,
                              float* acc, const uint8_t* later, std::integer_sequence<int, Part...>) {
    constexpr int parts = sizeof...(Part);
    (add_rows<M, M * (Part + 1) / parts - M * Part / parts, Part == 0>(
         w, x + M * Part / parts * 2, units, scale, first, acc + M * Part / parts * 16, later),
     ...);
  }
  // A block of one tile against many rows: the weights decoded once, then up to three rows at a time.
  // Each tile of a pair asks for half of the lines of both.
  template <int M>
  RONDO_INLINE void many_rows(const uint8_t* p, const float* x, int units, __m256 scale, bool first,
                              float* acc, const uint8_t* later) {
    alignas(32) uint16_t w[32 * kUnitHalves];
    for (int u = 0; u < units; u++) to_halves(p + u * 2 * kUnit, w + u * kUnitHalves);
    add_parts<M>(w, x, units, scale, first, acc, later, std::make_integer_sequence<int, (M + 2) / 3>());
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const float* x = static_cast<const float*>(a.x);
    const uint8_t* p = a.weight;
    for (int b = 0, left = a.k_count; left > 0; b++, left -= 128) {
      const int units = left < 128 ? left / 4 : 32;
      const bool first = a.first && b == 0;
      const uint8_t* later = p + a.weight_ahead(p - a.weight);
      __m256 held[T][M <= 2 ? M : 1][4];
      if constexpr (M <= 2) {
        for (int u = 0; u < units; u += 16) {
          const int some = units - u < 16 ? units - u : 16;
          const uint8_t* from = p + u * 2 * kUnit;
          if constexpr (M == 1) few_rows<M, T>(a, from, x + u * 4 * M, some, u > 0, held);
          else
            for (int t = 0; t < T; t++)
              few_rows<M, 1>(a, from + t * kUnit, x + u * 4 * M, some, u > 0, held + t);
        }
      }
      for (int t = 0; t < T; t++) {
        const uint8_t* q = a.scale ? a.scale + t * a.scale_stride : nullptr;
        const __m256 s = _mm256_set1_ps(256.f * block_scale(q, b));
        float* acc = a.sums + t * M * 16;
        if constexpr (M <= 2)
          for (int m = 0; m < M; m++) add_block(held[t][m], s, first, acc + m * 16);
        else many_rows<M>(p + t * kUnit, x, units, s, first, acc, later + t * units * kUnit);
      }
      x += 4 * M * units, p += 2 * kUnit * units;
    }
  }
};

#else

// e4m3 in the low byte of each lane, exact; subnormals as 2^-6 (1 + m/8) - 2^-6.
RONDO_INLINE v16f e4m3_values(v16u lanes) {
  const v16u mag = lanes & 0x7fu;
  const v16i small = (v16i)(mag < 8u);
  const v16f normal = (v16f)((mag << 20) + uint32_t(120 << 23));
  const v16f tiny = (v16f)((mag << 20) + uint32_t(121 << 23)) - 0.015625f;
  const v16i nan = (v16i)(mag == 0x7fu);
  const v16u bits = (v16u)select16(small, tiny, normal) | (v16u)(nan & 0x7fc00000);
  return (v16f)(bits | (lanes & 0x80u) << 24);
}
// Lanes of input pair i (0 or 1) of a 64-byte vector: the even input in byte 0, the odd in byte 1.
RONDO_INLINE v16u pair_lanes(const uint8_t* p, int i) {
#if defined(__AVX512F__)
  const __m512i v = _mm512_loadu_si512(p), zero = _mm512_setzero_si512();
  return (v16u)(i ? _mm512_unpackhi_epi16(v, zero) : _mm512_unpacklo_epi16(v, zero));
#else
  uint32_t r[16];
  for (int lane = 0; lane < 16; lane++) {
    const uint8_t* b = p + lane / 4 * 16 + i * 8 + lane % 4 * 2;
    r[lane] = uint32_t(b[0]) | uint32_t(b[1]) << 8;
  }
  return load_vec<v16u>(r);
#endif
}

struct Fp8 : Layout {
  template <int M>
  static constexpr int together() {
    return 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const float* x = static_cast<const float*>(a.x);
    const uint8_t* p = a.weight;
    v16f acc[M];
    for (int m = 0; m < M; m++) acc[m] = a.first ? v16f{} : load16(a.sums + m * 16);
    alignas(64) float w[32 * 16];
    for (int b = 0, left = a.k_count / 32; left > 0; b++, left -= 4) {
      v16f held[M] = {};
      const int parts = left < 4 ? left : 4;
      for (int part = 0; part < parts; part++, x += 32 * M, p += 8 * 2 * kUnit) {
        for (int j = 0; j < 16; j++) {
          const v16u pair = pair_lanes(p + j / 2 * 2 * kUnit, j % 2);
          store16(w + j * 32, e4m3_values(pair));
          store16(w + j * 32 + 16, e4m3_values(pair >> 8));
        }
        v16f sum[M] = {};
        rondo::add_columns<M>(w, x, 32, sum);
        for (int m = 0; m < M; m++) held[m] = part ? held[m] + sum[m] : sum[m];
      }
      const v16f s = splat16(block_scale(a.scale, b));
      for (int m = 0; m < M; m++) acc[m] = fma16(held[m], s, acc[m]);
    }
    for (int m = 0; m < M; m++) store16(a.sums + m * 16, acc[m]);
  }
};

#endif

}  // namespace

typedef rondo_linear_args rondo_fp8_linear_args;

RONDO_OP(fp8_linear) { rondo::product<Fp8>(a, worker, workers); }
