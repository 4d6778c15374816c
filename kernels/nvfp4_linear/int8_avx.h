// SPDX-License-Identifier: MIT OR Apache-2.0
// The NVFP4 product with 8-bit activations, AVX2 or AVX-512: codes looked up as bytes.
//
// A byte of a code meets a byte of an input, four of both in every lane. With VNNI their products go to
// the sum of int32 in one instruction; without it, pairs of them add up in int16 first, which hold all
// sixteen: 8 * 24 * 127 stays below 2^15. Included by int8.cpp, for its layout.
#pragma once
#include "registers.h"

namespace {

using rondo::regf;
using rondo::regi;

constexpr int kRegs = 16 / rondo::kRegLanes;  // that hold the outputs of a tile

// Twice the value of every code and kWeightOffset; for every 16 bytes of a register, and for the six bits
// that vpermb reads of an index.
alignas(64) const uint8_t kCodes[64] = {
#define RONDO_CODES 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0
    RONDO_CODES, RONDO_CODES, RONDO_CODES, RONDO_CODES
#undef RONDO_CODES
};

struct Nvfp4Int8 : Layout {
  template <int M>
  static constexpr int together() {
    return 2;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const regi table = rondo::reg_load_bits(kCodes);
    const rondo::Prefetch weight_ahead = a.weight_ahead, scale_ahead = a.scale_ahead;
    const uint32_t* x = static_cast<const uint32_t*>(a.x);
    Sums<M, T> acc;
    acc.begin(a, x - M);
    for (int g = 0; g < a.k_count / 16; g++, x += rondo::kInt8Words * M) {
      const int64_t at = int64_t(g) * 2 * kUnit, scale_at = int64_t(g) * 2 * kScaleUnit;
      const uint8_t* later = a.weight + at + weight_ahead(at);
      if (!(g & 1)) rondo::prefetch(a.scale + scale_at + scale_ahead(scale_at));
#pragma GCC unroll 4
      for (int line = 0; line < 2 * T; line++) rondo::prefetch(later + line * 64);
      // Two registers of outputs share what is read of a row.
      constexpr int kShare = T * kRegs < 2 ? 1 : 2;
#pragma GCC unroll 2
      for (int r = 0; r < T * kRegs; r += kShare) {
        regi w[kShare][4], scale[kShare];
#pragma GCC unroll 2
        for (int i = 0; i < kShare; i++) {
          const int t = (r + i) / kRegs, v = (r + i) % kRegs;
          const uint8_t* p = a.weight + at + t * kUnit + v * sizeof(regi);
          look_up(p, table, w[i]);
          look_up(p + 64, table, w[i] + 2);
          scale[i] = scale_bits(a.scale + scale_at + t * kScaleUnit + v * rondo::kRegLanes);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          regi sum[kShare];
          add_group<kShare>(w, x + m, M, sum);
          const regi step = rondo::reg_splat_bits(x[5 * M + m]);
#pragma GCC unroll 2
          for (int i = 0; i < kShare; i++)
            acc.add((r + i) / kRegs, m, (r + i) % kRegs, rondo::reg_of_int32(sum[i]),
                    rondo::reg_of_bits(rondo::reg_add_bits(scale[i], step)));
        }
      }
      acc.keep();
    }
    acc.end(a);
  }

 private:
  static constexpr bool kWide = kRegs == 1;

  // The running sums: in registers where there are 32 of them, else in memory, as the registers belong to
  // the codes.
  template <int M, int T>
  struct Sums {
    float* held;
    regf values[kWide ? T : 1][kWide ? M : 1];

    RONDO_MEMBER void begin(const TileArgs& a, const uint32_t* start) {
      held = a.sums;
#pragma GCC unroll 2
      for (int t = 0; t < T; t++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          const regf from = rondo::reg_of_bits(rondo::reg_splat_bits(start[m]));
          if constexpr (kWide) {
            values[t][m] = a.first ? from : rondo::reg_load(held + (t * M + m) * 16);
          } else if (a.first) {
#pragma GCC unroll 2
            for (int v = 0; v < kRegs; v++) rondo::reg_store(at(t, m, v), from);
          }
        }
    }
    RONDO_MEMBER void add(int t, int m, int v, regf group, regf scale) {
      if constexpr (kWide) {
        values[t][m] = rondo::reg_fma(group, scale, values[t][m]);
      } else {
        rondo::reg_store(at(t, m, v), rondo::reg_fma(group, scale, rondo::reg_load(at(t, m, v))));
      }
    }
    // Without this the compiler would take sums from memory into more registers than there are.
    RONDO_MEMBER void keep() {
      if constexpr (!kWide) asm volatile("" : "+m"(*reinterpret_cast<float(*)[T * M * 16]>(held)));
    }
    RONDO_MEMBER void end(const TileArgs& a) {
      if constexpr (kWide)
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 8
          for (int m = 0; m < M; m++) rondo::reg_store(a.sums + (t * M + m) * 16, values[t][m]);
    }

   private:
    RONDO_MEMBER float* at(int t, int m, int v) { return held + (t * M + m) * 16 + v * rondo::kRegLanes; }
  };

#if defined(__AVX512F__)
  // The two words of inputs that a vector of codes holds.
  RONDO_INLINE void look_up(const uint8_t* p, regi table, regi* w) {
    const __m512i c = _mm512_load_si512(p);
#if defined(__AVX512VBMI__)
    w[0] = _mm512_permutexvar_epi8(c, table);
    w[1] = _mm512_permutexvar_epi8(_mm512_srli_epi32(c, 4), table);
#else
    const __m512i mask = _mm512_set1_epi8(15);
    w[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(c, mask));
    w[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi32(c, 4), mask));
#endif
  }
  RONDO_INLINE regi scale_bits(const uint8_t* p) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 20);
  }
  RONDO_INLINE regi pair_products(regi w, regi x) { return _mm512_maddubs_epi16(w, x); }
  RONDO_INLINE regi add_pairs(regi a, regi b) { return _mm512_add_epi16(a, b); }
  RONDO_INLINE regi join_pairs(regi v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }
#else
  RONDO_INLINE void look_up(const uint8_t* p, regi table, regi* w) {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    w[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(c, mask));
    w[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(c, 4), mask));
  }
  RONDO_INLINE regi scale_bits(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 20);
  }
  RONDO_INLINE regi pair_products(regi w, regi x) { return _mm256_maddubs_epi16(w, x); }
  RONDO_INLINE regi add_pairs(regi a, regi b) { return _mm256_add_epi16(a, b); }
  RONDO_INLINE regi join_pairs(regi v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
#endif

  // The sums of a group of T registers of outputs against the row whose first word is at x.
  template <int T>
  RONDO_INLINE void add_group(const regi (*w)[4], const uint32_t* x, int rows, regi* sum) {
    const regi begin = rondo::reg_splat_bits(x[4 * rows]);
#if defined(RONDO_VNNI)
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) sum[t] = begin;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const regi word = rondo::reg_splat_bits(x[j * rows]);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) rondo::reg_add_fours(&sum[t], w[t][j], word);
    }
#else
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const regi word = rondo::reg_splat_bits(x[j * rows]);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        const regi products = pair_products(w[t][j], word);
        sum[t] = j ? add_pairs(sum[t], products) : products;
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) sum[t] = rondo::reg_add_bits(join_pairs(sum[t]), begin);
#endif
  }
};

}  // namespace
