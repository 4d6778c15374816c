// SPDX-License-Identifier: MIT OR Apache-2.0
// The FP8 product with AVX2 or AVX-512 and no bf16 dot product: e4m3 as f16 in memory, fp32 sums.
//
// A lane holds the even or the odd inputs of an output, so half a unit fills four registers of 8 lanes
// or two of 16; the sums of a lane are the same at either width. Included by cpu.cpp, for its layout.
#pragma once
#include <utility>

#include "product.h"

namespace {

constexpr int kHalf = 32;                           // f16 of half a unit: two inputs of 16 outputs
constexpr int kRegs = kHalf / rondo::kRegLanes;     // registers of fp32 that they fill
#if defined(__AVX512F__)
constexpr int kRowsTogether = 8, kFewRows = 4, kRowsSideBySide = 4;
#else
constexpr int kRowsTogether = 3, kFewRows = 2, kRowsSideBySide = 1;
#endif

// A unit as f16 with the same exponent and mantissa bits, 2^-8 times the values: [half][output][2].
// An output with a NaN code has a NaN scale, so NaN needs no care here.
RONDO_INLINE void to_halves(const uint8_t* p, uint16_t* to) {
#if defined(__AVX512F__)
  const __m512i zero = _mm512_setzero_si512(), bits = _mm512_set1_epi16(int16_t(0xBF80));
  const __m512i c = _mm512_load_si512(p);
  const __m512i low = _mm512_srai_epi16(_mm512_unpacklo_epi8(zero, c), 1);
  const __m512i high = _mm512_srai_epi16(_mm512_unpackhi_epi8(zero, c), 1);
  _mm512_store_si512(to, _mm512_and_si512(low, bits));
  _mm512_store_si512(to + kHalf, _mm512_and_si512(high, bits));
#else
  const __m256i zero = _mm256_setzero_si256(), bits = _mm256_set1_epi16(int16_t(0xBF80));
#pragma GCC unroll 2
  for (int q = 0; q < 2; q++) {
    const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i*>(p + q * 32));
    const __m256i low = _mm256_srai_epi16(_mm256_unpacklo_epi8(zero, c), 1);
    const __m256i high = _mm256_srai_epi16(_mm256_unpackhi_epi8(zero, c), 1);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + q * 16), _mm256_and_si256(low, bits));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + kHalf + q * 16), _mm256_and_si256(high, bits));
  }
#endif
}
// A register of f16 in memory: from there the conversion is one instruction, from a register it is two.
RONDO_INLINE rondo::regf from_halves(const uint16_t* p) {
  rondo::regf v;
  asm("vcvtph2ps %1, %0" : "=v"(v) : "m"(*reinterpret_cast<const uint16_t(*)[rondo::kRegLanes]>(p)));
  return v;
}

struct Fp8 : Layout {
  typedef rondo::regf regf;

  template <int M>
  static constexpr int together() {
    return 2;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const float* x = static_cast<const float*>(a.x);
    const uint8_t* p = a.weight;
    for (int b = 0, left = a.k_count; left > 0; b++, left -= 128) {
      const int units = left < 128 ? left / 4 : 32;
      const bool first = a.first && b == 0;
      const uint8_t* later = p + a.weight_ahead(p - a.weight);
      regf held[T][M <= kFewRows ? M : 1][kRegs];
      if constexpr (M <= kFewRows) {
        for (int u = 0; u < units; u += 16) {
          const int some = units - u < 16 ? units - u : 16;
          const uint8_t* from = p + u * 2 * kUnit;
          if constexpr (M <= kRowsSideBySide) few_rows<M, T>(a, from, x + u * 4 * M, some, u > 0, held);
          else
            for (int t = 0; t < T; t++)
              few_rows<M, 1>(a, from + t * kUnit, x + u * 4 * M, some, u > 0, held + t);
        }
      }
      for (int t = 0; t < T; t++) {
        const uint8_t* q = a.scale ? a.scale + t * a.scale_stride : nullptr;
        const regf s = rondo::reg_splat(256.f * block_scale(q, b));
        float* acc = a.sums + t * M * 16;
        if constexpr (M <= kFewRows)
          for (int m = 0; m < M; m++) add_block(held[t][m], s, first, acc + m * 16);
        else many_rows<M>(p + t * kUnit, x, units, s, first, acc, later + t * units * kUnit);
      }
      x += 4 * M * units, p += 2 * kUnit * units;
    }
  }

 private:
  // Sums of up to 64 inputs: the first ones of a block, or in addition to those.
  RONDO_INLINE void keep(regf* held, const regf* sum, bool add) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegs; i++) held[i] = add ? rondo::reg_add(held[i], sum[i]) : sum[i];
  }
  // Joins the even and the odd inputs of 16 outputs and adds them with the scale of their block.
  RONDO_INLINE void add_block(const regf* held, regf scale, bool first, float* acc) {
#pragma GCC unroll 2
    for (int v = 0; v < kRegs / 2; v++) {
      float* to = acc + v * rondo::kRegLanes;
      const regf before = first ? rondo::reg_zero() : rondo::reg_load(to);
      rondo::reg_store(to, rondo::reg_fma(join(held[2 * v], held[2 * v + 1]), scale, before));
    }
  }
  RONDO_INLINE regf join(regf a, regf b) {
#if defined(__AVX512F__)
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
#else
    const __m256 pairs = _mm256_hadd_ps(a, b);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xD8));
#endif
  }

  // Up to 64 inputs of T tiles against few rows, the tiles side by side.
  template <int M, int T>
  RONDO_INLINE void few_rows(const TileArgs& a, const uint8_t* p, const float* x, int units, bool add,
                             regf (*held)[M][kRegs]) {
    regf sum[T][M][kRegs];
#pragma GCC unroll 2
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int i = 0; i < kRegs; i++) sum[t][m][i] = rondo::reg_zero();
    for (int u = 0; u < units; u++, x += 4 * M, p += 2 * kUnit) {
      alignas(64) uint16_t w[T][2 * kHalf];
      const int64_t ahead = a.weight_ahead(p - a.weight);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        rondo::prefetch(p + t * kUnit + ahead);
        to_halves(p + t * kUnit, w[t]);
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        regf pairs[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) pairs[m] = rondo::broadcast_pair(x + (half * M + m) * 2);
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 4
          for (int i = 0; i < kRegs; i++) {
            const regf weight = from_halves(w[t] + half * kHalf + i * rondo::kRegLanes);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) sum[t][m][i] = rondo::reg_fma(weight, pairs[m], sum[t][m][i]);
          }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) keep(held[t][m], sum[t][m], add);
  }

  // A block of 16 outputs, `units` units of f16, against N of the M rows at x. A function of its own, so
  // that nothing else takes its registers. With Fetch it asks for as many lines from `later` on as half of
  // these units take, bit by bit: all at once they would hold up the decoding, and nothing would come
  // while the rows are multiplied.
  template <int M, int N, bool Fetch>
  __attribute__((noinline)) static void add_rows(const uint16_t* w, const float* x, int units,
                                                 regf scale, bool first, float* acc,
                                                 const uint8_t* later) {
    regf held[N][kRegs];
    for (bool add = false; units > 0; units -= 16, add = true) {
      regf sum[N][kRegs];
#pragma GCC unroll 8
      for (int r = 0; r < N; r++)
#pragma GCC unroll 4
        for (int i = 0; i < kRegs; i++) sum[r][i] = rondo::reg_zero();
      const uint16_t* end = w + (units < 16 ? units : 16) * 2 * kHalf;
#pragma GCC unroll 1
      for (; w < end; w += kHalf, x += 2 * M) {
        if (Fetch) rondo::prefetch(later), later += kUnit / 2;
        regf value[N];
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) value[r] = rondo::broadcast_pair(x + 2 * r);
#pragma GCC unroll 4
        for (int i = 0; i < kRegs; i++) {
          const regf weight = from_halves(w + i * rondo::kRegLanes);
#pragma GCC unroll 8
          for (int r = 0; r < N; r++) sum[r][i] = rondo::reg_fma(weight, value[r], sum[r][i]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < N; r++) keep(held[r], sum[r], add);
    }
#pragma GCC unroll 8
    for (int r = 0; r < N; r++) add_block(held[r], scale, first, acc + r * 16);
  }
  template <int M, int... Part>
  RONDO_INLINE void add_parts(const uint16_t* w, const float* x, int units, regf scale, bool first,
                              float* acc, const uint8_t* later, std::integer_sequence<int, Part...>) {
    constexpr int parts = sizeof...(Part);
    (add_rows<M, M * (Part + 1) / parts - M * Part / parts, Part == 0>(
         w, x + M * Part / parts * 2, units, scale, first, acc + M * Part / parts * 16, later),
     ...);
  }
  // A block of one tile against many rows: the weights decoded once, then some rows at a time. Each tile of
  // a pair asks for half of the lines of both.
  template <int M>
  RONDO_INLINE void many_rows(const uint8_t* p, const float* x, int units, regf scale, bool first,
                              float* acc, const uint8_t* later) {
    alignas(64) uint16_t w[32 * 2 * kHalf];
    for (int u = 0; u < units; u++) to_halves(p + u * 2 * kUnit, w + u * 2 * kHalf);
    add_parts<M>(w, x, units, scale, first, acc, later,
                 std::make_integer_sequence<int, (M - 1) / kRowsTogether + 1>());
  }
};

}  // namespace
