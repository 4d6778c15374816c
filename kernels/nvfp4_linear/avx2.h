// SPDX-License-Identifier: MIT OR Apache-2.0
// The NVFP4 product with AVX2: int16 activations (product_int16.h) against codes looked up as bytes.
//
// The sum of a group is exact: 16 products of at most 12 * 2^8 by 2^15 stay below 2^31, and as
// multiples of 2^8 they are exact in fp32 too. Included by cpu.cpp, for its layout.
#pragma once
#include <utility>

#include "avx2_add.h"
#include "product_int16.h"

namespace {

// Twice the value of every code.
alignas(16) const int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct Nvfp4 : Layout {
  template <int M>
  static constexpr int together() {
    return 2;
  }
  template <int M, int T>
  static void tiles(const rondo::TileArgs& a) {
    if constexpr (M == 1) one_row<T>(a);
    else if constexpr (M <= 4) few_rows<M, T>(a);
    else many_rows<M, T>(a);
  }

 private:
  // Up to this many groups of a tile are decoded before they meet the rows, when there are many of these.
  static constexpr int kPanel = 8;
  struct Panel {
    __m256i codes[kPanel][4][2];
    __m256 scales[kPanel][2];
  };

  RONDO_INLINE __m256i broadcast_word(const uint8_t* p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
  }
  // Codes of 8 outputs and 8 inputs as bytes: v[i] holds pair i in the low bytes, i + 2 in the high.
  RONDO_INLINE void look_up(const uint8_t* p, __m256i* low, __m256i* high) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kCodes)));
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    *low = _mm256_shuffle_epi8(table, _mm256_and_si256(c, mask));
    *high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(c, 4), mask));
  }
  // Half a group of one tile: codes[i] are pairs i and i + 2 of outputs 0..7 and 8..15.
  RONDO_INLINE void look_up_half(const uint8_t* p, __m256i (*codes)[2]) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) look_up(p + v * 32, &codes[0][v], &codes[1][v]);
  }
  RONDO_INLINE void scales(const uint8_t* q, __m256* s) {
    const v16f wide = group_scales(q);
    s[0] = low_half16(wide), s[1] = high_half16(wide);
  }
  // Asks for what comes later in the place of group g of T tiles.
  template <int T>
  RONDO_INLINE void fetch(const rondo::TileArgs& a, int64_t g) {
    const int64_t at = g * 2 * kUnit;
    const uint8_t* later = a.weight + at + a.weight_ahead(at);
#pragma GCC unroll 4
    for (int line = 0; line < 2 * T; line++) rondo::prefetch(later + line * 64);
    fetch_scales(a, g);
  }
  RONDO_INLINE void fetch_scales(const rondo::TileArgs& a, int64_t g) {
    const int64_t at = g * 2 * kScaleUnit;
    if (!(g & 1)) rondo::prefetch(a.scale + at + a.scale_ahead(at));
  }
  // acc + sum * scale * step, the accumulator in memory: the registers belong to the chains.
  RONDO_INLINE void add_group(float* acc, bool first, __m256i sum, __m256 scale, __m256 step) {
    const __m256 before = first ? _mm256_setzero_ps() : _mm256_load_ps(acc);
    const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
    _mm256_store_ps(acc, _mm256_fmadd_ps(scaled, step, before));
  }
  RONDO_INLINE __m256 step_of(const uint8_t* p) { return _mm256_castsi256_ps(broadcast_word(p)); }

  template <int T>
  RONDO_INLINE void one_row(const rondo::TileArgs& a) {
    const __m256i upper = _mm256_set1_epi16(-256);
    const uint8_t* x = static_cast<const uint8_t*>(a.x);
    const uint8_t* p = a.weight;
    const uint8_t* q = a.scale;
    bool first = a.first;
    for (int g = 0; g < a.k_count / 16; g++) {
      fetch<T>(a, g);
      __m256i sum[2 * T];
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        __m256i pairs[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) pairs[j] = broadcast_word(x + (4 * h + j) * 4);
#pragma GCC unroll 4
        for (int v = 0; v < 2 * T; v++) {
          __m256i low, high;
          look_up(p + v / 2 * kUnit + h * 64 + v % 2 * 32, &low, &high);
          const __m256i w = _mm256_slli_epi16(low, 8);
          if (h) rondo::reg_add_pairs(&sum[v], w, pairs[0]);
          else sum[v] = _mm256_madd_epi16(w, pairs[0]);
          rondo::reg_add_pairs(&sum[v], _mm256_slli_epi16(high, 8), pairs[1]);
          rondo::reg_add_pairs(&sum[v], _mm256_and_si256(low, upper), pairs[2]);
          rondo::reg_add_pairs(&sum[v], _mm256_and_si256(high, upper), pairs[3]);
        }
      }
      __m256 s[2 * T];
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) scales(q + t * kScaleUnit, s + 2 * t);
      const __m256 step = step_of(x + 32);
#pragma GCC unroll 4
      for (int v = 0; v < 2 * T; v++) add_group(a.sums + v * 8, first, sum[v], s[v], step);
      x += rondo::kGroupBytes, p += 2 * kUnit, q += 2 * kScaleUnit, first = false;
    }
  }

  // Adds the sums of a group of 16 outputs for N of the M rows; x points to the first row's first pair.
  template <int M, int N>
  RONDO_INLINE void add_rows(const __m256i (*sum)[2], const __m256* s, const uint8_t* x, float* acc,
                             bool first) {
#pragma GCC unroll 6
    for (int i = 0; i < N; i++) {
      const __m256 step = step_of(x + (8 * M + i) * 4);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) add_group(acc + (i * 2 + v) * 8, first, sum[i][v], s[v], step);
    }
  }

  // The tiles in turn, group by group: side by side in memory they are one stream.
  template <int M, int T>
  RONDO_INLINE void few_rows(const rondo::TileArgs& a) {
    const uint8_t* x = static_cast<const uint8_t*>(a.x);
    bool first = a.first;
    for (int64_t g = 0; g < a.k_count / 16; g++, x += rondo::kGroupBytes * M, first = false) {
      fetch<T>(a, g);
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        const uint8_t* p = a.weight + g * 2 * kUnit + t * kUnit;
        __m256i sum[M][2], codes[2][2];
        look_up_half(p, codes);
        rondo::add_codes<M, M, true>(codes[0], x, sum);
        rondo::add_codes<M, M, false>(codes[1], x + 4 * M, sum);
        look_up_half(p + 64, codes);
        rondo::add_codes<M, M, false>(codes[0], x + 16 * M, sum);
        rondo::add_codes<M, M, false>(codes[1], x + 20 * M, sum);
        __m256 s[2];
        scales(a.scale + g * 2 * kScaleUnit + t * kScaleUnit, s);
        add_rows<M, M>(sum, s, x, a.sums + t * M * 16, first);
      }
    }
  }

  // The panel against N of M rows. A function of its own, so that nothing else takes its registers. On the
  // way it asks for `Lines` lines a group from `later` on: all at once nothing would come meanwhile.
  template <int M, int N, int Lines>
  __attribute__((noinline)) static void add_panel(const Panel& panel, int groups, const uint8_t* x,
                                                  float* acc, bool first, const uint8_t* later) {
    for (int g = 0; g < groups; g++, x += rondo::kGroupBytes * M, first = false) {
#pragma GCC unroll 2
      for (int line = 0; line < Lines; line++, later += 64) rondo::prefetch(later);
      __m256i sum[N][2];
      rondo::add_codes<M, N, true>(panel.codes[g][0], x, sum);
      rondo::add_codes<M, N, false>(panel.codes[g][1], x + 4 * M, sum);
      rondo::add_codes<M, N, false>(panel.codes[g][2], x + 16 * M, sum);
      rondo::add_codes<M, N, false>(panel.codes[g][3], x + 20 * M, sum);
      add_rows<M, N>(sum, panel.scales[g], x, acc, first);
    }
  }
  template <int M, int... Part>
  RONDO_INLINE void add_parts(const Panel& panel, int groups, const uint8_t* x, float* acc, bool first,
                              const uint8_t* later, std::integer_sequence<int, Part...>) {
    constexpr int parts = sizeof...(Part);
    (add_panel<M, M * (Part + 1) / parts - M * Part / parts, Part == 0 ? 2 : 0>(
         panel, groups, x + M * Part / parts * 4, acc + M * Part / parts * 16, first, later),
     ...);
  }
  template <int M, int T>
  RONDO_INLINE void many_rows(const rondo::TileArgs& a) {
    alignas(64) Panel panel;
    const uint8_t* x = static_cast<const uint8_t*>(a.x);
    const int all = a.k_count / 16;
    for (int done = 0; done < all; done += kPanel) {
      const int groups = all - done < kPanel ? all - done : kPanel;
      const int64_t at = int64_t(done) * 2 * kUnit;
      const uint8_t* later = a.weight + at + a.weight_ahead(at);
      for (int t = 0; t < T; t++) {
        for (int i = 0; i < groups; i++) {
          const int64_t g = done + i;
          if (t == 0) fetch_scales(a, g);
          const uint8_t* p = a.weight + g * 2 * kUnit + t * kUnit;
          look_up_half(p, panel.codes[i]);
          look_up_half(p + 64, panel.codes[i] + 2);
          scales(a.scale + g * 2 * kScaleUnit + t * kScaleUnit, panel.scales[i]);
        }
        add_parts<M>(panel, groups, x, a.sums + t * M * 16, a.first && done == 0,
                     later + t * groups * kUnit,
                     std::make_integer_sequence<int, (M - 1) / rondo::kRowsTogether + 1>());
      }
      x += int64_t(groups) * rondo::kGroupBytes * M;
    }
  }
};

}  // namespace
