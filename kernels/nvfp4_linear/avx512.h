// SPDX-License-Identifier: MIT OR Apache-2.0
// The NVFP4 product with AVX-512: codes looked up as words, sixteen outputs a register.
//
// With a bf16 dot product the words are bf16, as the activations are; without one they are int16, and
// the activations the integers of product_int16.h: the bits are those of AVX2. Included by cpu.cpp, for
// its layout.
#pragma once
#if !defined(RONDO_BF16_DOT)
#include "product_int16.h"
#endif

namespace {

#if defined(RONDO_BF16_DOT)

// Codes to bf16; twice, so that the fifth index bit of vpermw needs no mask.
alignas(64) const uint16_t kCodes[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
    0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
    0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};

// The sum of the pairs of a group, of 16 outputs against one row.
struct GroupSum {
  static constexpr int kRowBytes = 32;  // of a row's activations: 8 pairs
  __m512 value;

  RONDO_MEMBER void begin() { value = _mm512_setzero_ps(); }
  // Adds a pair of codes times a pair of inputs, which the instruction itself reads and broadcasts.
  RONDO_MEMBER void add(__m512i codes, const uint32_t* pair) {
    value = rondo::dot_broadcast(value, (__m512bh)codes, pair);
  }
  RONDO_MEMBER void add(__m512i codes, __m512i pairs) {
    value = _mm512_dpbf16_ps(value, (__m512bh)codes, (__m512bh)pairs);
  }
  RONDO_MEMBER __m512 scaled(__m512 scale, const uint32_t*, __m512 acc) const {
    return _mm512_fmadd_ps(value, scale, acc);
  }
};

#else

// Twice the value of every code.
alignas(64) const int16_t kCodes[32] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
                                        0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct GroupSum {
  static constexpr int kRowBytes = rondo::kGroupBytes;  // 8 pairs and their step
  __m512i value;

  RONDO_MEMBER void begin() { value = _mm512_setzero_si512(); }
  RONDO_MEMBER void add(__m512i codes, const uint32_t* pair) {
#if defined(__AVX512VNNI__)
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(value) : "v"(codes), "m"(*pair));
#else
    add(codes, _mm512_set1_epi32(int32_t(*pair)));
#endif
  }
  RONDO_MEMBER void add(__m512i codes, __m512i pairs) { rondo::reg_add_pairs(&value, codes, pairs); }
  RONDO_MEMBER __m512 scaled(__m512 scale, const uint32_t* step, __m512 acc) const {
    const __m512 of_row = _mm512_castsi512_ps(_mm512_set1_epi32(int32_t(*step)));
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(value), scale), of_row, acc);
  }
};

#endif

struct Nvfp4 : Layout {
  template <int M>
  static constexpr int together() {
    return M <= 4 ? 2 : 1;
  }

  // The four pairs of one vector of codes.
  RONDO_INLINE void decode(const uint8_t* p, __m512i lut, __m512i* w) {
    const __m512i c = _mm512_load_si512(p);
    w[0] = _mm512_permutexvar_epi16(c, lut);
    w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi32(c, 4), lut);
    w[2] = _mm512_permutexvar_epi16(_mm512_srli_epi32(c, 8), lut);
    w[3] = _mm512_permutexvar_epi16(_mm512_srli_epi32(c, 12), lut);
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const __m512i lut = _mm512_load_si512(kCodes);
    const int groups = a.k_count / 16;
    const rondo::Prefetch weight_ahead = a.weight_ahead, scale_ahead = a.scale_ahead;
    const uint32_t* x = static_cast<const uint32_t*>(a.x);
    const uint8_t* p[T];
    const uint8_t* q[T];
    __m512 acc[T][M];
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) {
      p[t] = a.weight + t * kUnit, q[t] = a.scale + t * kScaleUnit;
#pragma GCC unroll 16
      for (int m = 0; m < M; m++)
        acc[t][m] = a.first ? _mm512_setzero_ps() : _mm512_load_ps(a.sums + (t * M + m) * 16);
    }
    for (int g = 0; g < groups; g++, x += GroupSum::kRowBytes / 4 * M) {
      const int64_t at = int64_t(g) * 2 * kUnit, scale_at = int64_t(g) * 2 * kScaleUnit;
      const int64_t ahead = weight_ahead(at);
      if (!(g & 1))
        _mm_prefetch(reinterpret_cast<const char*>(q[0]) + scale_at + scale_ahead(scale_at),
                     _MM_HINT_T0);
      __m512 s[T];
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        const char* later = reinterpret_cast<const char*>(p[t]) + at + ahead;
        _mm_prefetch(later, _MM_HINT_T0);
        _mm_prefetch(later + 64, _MM_HINT_T0);
        s[t] = (__m512)group_scales(q[t] + scale_at);
      }
      const uint32_t* steps = x + 8 * M;
      if constexpr (T * M <= 8) {
        // All chains side by side; two halves of the group, to keep few weights at a time.
        GroupSum sum[T][M];
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) sum[t][m].begin();
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
          __m512i w[T][4];
#pragma GCC unroll 2
          for (int t = 0; t < T; t++) decode(p[t] + at + h * 64, lut, w[t]);
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++)
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
              const uint32_t* pair = x + (h * 4 + j) * M + m;
              if constexpr (T == 1) {
                sum[0][m].add(w[0][j], pair);
              } else {
                const __m512i v = _mm512_set1_epi32(int32_t(*pair));
#pragma GCC unroll 2
                for (int t = 0; t < T; t++) sum[t][m].add(w[t][j], v);
              }
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) acc[t][m] = sum[t][m].scaled(s[t], steps + m, acc[t][m]);
      } else {
        // Many rows: the whole group decoded, then up to six chains side by side.
        constexpr int kParts = (M + 5) / 6;
        __m512i w[8];
        decode(p[0] + at, lut, w);
        decode(p[0] + at + 64, lut, w + 4);
#pragma GCC unroll 3
        for (int part = 0; part < kParts; part++) {
          const int begin = M * part / kParts, n = M * (part + 1) / kParts - begin;
          GroupSum sum[6];
#pragma GCC unroll 6
          for (int i = 0; i < n; i++) sum[i].begin();
#pragma GCC unroll 8
          for (int j = 0; j < 8; j++)
#pragma GCC unroll 6
            for (int i = 0; i < n; i++) sum[i].add(w[j], x + j * M + begin + i);
#pragma GCC unroll 6
          for (int i = 0; i < n; i++)
            acc[0][begin + i] = sum[i].scaled(s[0], steps + begin + i, acc[0][begin + i]);
        }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; t++)
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) _mm512_store_ps(a.sums + (t * M + m) * 16, acc[t][m]);
  }
};

}  // namespace
