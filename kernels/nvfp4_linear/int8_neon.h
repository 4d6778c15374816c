// SPDX-License-Identifier: MIT OR Apache-2.0
// The NVFP4 product with 8-bit activations, NEON: codes looked up as bytes.
//
// A register holds four bytes of each of four outputs, which meet one word of a row, taken out of a register
// of the words of four rows. The dot product instruction adds their products to a sum of int32 in every lane;
// without it they add up in int16, which hold all sixteen: 16 * 12 * 127 stays below 2^15. Included by
// int8.cpp, for its layout.
#pragma once
#include <utility>

namespace {

// Twice the value of every code.
alignas(16) const int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr int kQuarters = 4;  // of a tile, four outputs each

struct Nvfp4Int8 : Layout {
  template <int M>
  static constexpr int together() {
    return 2;
  }

  // The tiles in turn, group by group: side by side in memory they are one stream.
  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const uint32_t* x = static_cast<const uint32_t*>(a.x);
    if (a.first)
      for (int i = 0; i < T * M * kQuarters; i++)
        vst1q_f32(a.sums + i * 4, vreinterpretq_f32_u32(vdupq_n_u32((x - M)[i / kQuarters % M])));
    for (int64_t g = 0; g < a.k_count / 16; g++, x += rondo::kInt8Words * M) {
      const int64_t at = g * 2 * kUnit, scale_at = g * 2 * kScaleUnit;
      const uint8_t* later = a.weight + at + a.weight_ahead(at);
#pragma GCC unroll 4
      for (int line = 0; line < 2 * T; line++) __builtin_prefetch(later + line * 64);
      if (!(g & 1)) __builtin_prefetch(a.scale + scale_at + a.scale_ahead(scale_at));
      for (int t = 0; t < T; t++) {
        int8x16_t w[4][kQuarters];
        look_up(a.weight + at + t * kUnit, w);
        look_up(a.weight + at + t * kUnit + 64, w + 2);
        uint32x4_t scale[kQuarters];
        scale_bits(a.scale + scale_at + t * kScaleUnit, scale);
        add_rows<M>(w, scale, x, a.sums + t * M * 16);
      }
    }
  }

 private:
  // The two words of inputs that a vector of codes holds, [quarter][output][byte].
  RONDO_INLINE void look_up(const uint8_t* p, int8x16_t (*w)[kQuarters]) {
    const int8x16_t table = vld1q_s8(kCodes);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) {
      const uint8x16_t c = vld1q_u8(p + q * 16);
      w[0][q] = vqtbl1q_s8(table, vandq_u8(c, vdupq_n_u8(15)));
      w[1][q] = vqtbl1q_s8(table, vshrq_n_u8(c, 4));
    }
  }
  RONDO_INLINE void scale_bits(const uint8_t* p, uint32x4_t* scale) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t half[2] = {vshll_n_u8(vget_low_u8(bytes), 7), vshll_high_n_u8(bytes, 7)};
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++)  // by 20 in all
      scale[q] = q % 2 ? vshll_high_n_u16(half[q / 2], 13) : vshll_n_u16(vget_low_u16(half[q / 2]), 13);
  }

  // A group of 16 outputs against the rows from First on, four at a time.
  template <int M, int First = 0>
  RONDO_INLINE void add_rows(const int8x16_t (*w)[kQuarters], const uint32x4_t* scale, const uint32_t* x,
                             float* acc) {
    constexpr int rows = M - First < 4 ? M - First : 4;
    // Those of a single row lie in one register; behind those of more rows there are words to read into.
    int8x16_t words[4];
#pragma GCC unroll 4
    for (int j = 0; j < (M == 1 ? 1 : 4); j++)
      words[j] = vreinterpretq_s8_u32(vld1q_u32(x + j * M + First));
    add_each<M>(w, scale, words, x + 5 * M + First, acc + First * 16,
                std::make_integer_sequence<int, rows>());
    if constexpr (First + 4 < M) add_rows<M, First + 4>(w, scale, x, acc);
  }
  template <int M, int... Row>
  RONDO_INLINE void add_each(const int8x16_t (*w)[kQuarters], const uint32x4_t* scale,
                             const int8x16_t* words, const uint32_t* steps, float* acc,
                             std::integer_sequence<int, Row...>) {
    (add_row<M, Row>(w, scale, words, steps[Row], acc + Row * 16), ...);
  }
  template <int M, int Row>
  RONDO_INLINE void add_row(const int8x16_t (*w)[kQuarters], const uint32x4_t* scale,
                            const int8x16_t* words, uint32_t step, float* acc) {
    int32x4_t sum[kQuarters];
    if constexpr (M == 1) add_words<0, 1, 2, 3>(w, words[0], words[0], words[0], words[0], sum);
    else add_words<Row, Row, Row, Row>(w, words[0], words[1], words[2], words[3], sum);
    const uint32x4_t steps = vdupq_n_u32(step);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) {
      const float32x4_t factor = vreinterpretq_f32_u32(vaddq_u32(scale[q], steps));
      vst1q_f32(acc + q * 4, vfmaq_f32(vld1q_f32(acc + q * 4), vcvtq_f32_s32(sum[q]), factor));
    }
  }

  // The sums of a group of 16 outputs against a row whose word j is the lane Lj of xj.
#if defined(__ARM_FEATURE_DOTPROD)
  template <int L0, int L1, int L2, int L3>
  RONDO_INLINE void add_words(const int8x16_t (*w)[kQuarters], int8x16_t x0, int8x16_t x1, int8x16_t x2,
                              int8x16_t x3, int32x4_t* sum) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) sum[q] = vdotq_laneq_s32(vdupq_n_s32(0), w[0][q], x0, L0);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) sum[q] = vdotq_laneq_s32(sum[q], w[1][q], x1, L1);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) sum[q] = vdotq_laneq_s32(sum[q], w[2][q], x2, L2);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) sum[q] = vdotq_laneq_s32(sum[q], w[3][q], x3, L3);
  }
#else
  template <int L0, int L1, int L2, int L3>
  RONDO_INLINE void add_words(const int8x16_t (*w)[kQuarters], int8x16_t x0, int8x16_t x1, int8x16_t x2,
                              int8x16_t x3, int32x4_t* sum) {
    const int8x16_t word[4] = {every<L0>(x0), every<L1>(x1), every<L2>(x2), every<L3>(x3)};
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) {
      int16x8_t low = vmull_s8(vget_low_s8(w[0][q]), vget_low_s8(word[0]));
      int16x8_t high = vmull_high_s8(w[0][q], word[0]);
#pragma GCC unroll 3
      for (int j = 1; j < 4; j++) {
        low = vmlal_s8(low, vget_low_s8(w[j][q]), vget_low_s8(word[j]));
        high = vmlal_high_s8(high, w[j][q], word[j]);
      }
      sum[q] = vpaddlq_s16(vpaddq_s16(low, high));
    }
  }
  template <int L>
  RONDO_INLINE int8x16_t every(int8x16_t words) {
    return vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(words), L));
  }
#endif
};

}  // namespace
