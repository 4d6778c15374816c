// SPDX-License-Identifier: MIT OR Apache-2.0
// The NVFP4 product with NEON: int16 activations (product_int16.h) against codes looked up as bytes.
//
// A register of int16 holds the even and the odd input of four outputs; their products go to sums of
// their own, which are joined behind the group. All are exact, so the bits are those of AVX2. Included
// by cpu.cpp, for its layout.
#pragma once
#include <utility>

#include "product_int16.h"

namespace {

// Twice the value of every code.
alignas(16) const int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr int kQuarters = 4;       // of a tile, four outputs each
constexpr int kRowsTogether = 3;   // whose sums fit the registers

struct Nvfp4 : Layout {
  template <int M>
  static constexpr int together() {
    return 2;
  }

  // The tiles in turn, group by group: side by side in memory they are one stream.
  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const uint8_t* x = static_cast<const uint8_t*>(a.x);
    bool first = a.first;
    for (int64_t g = 0; g < a.k_count / 16; g++, x += rondo::kGroupBytes * M, first = false) {
      const int64_t at = g * 2 * kUnit, scale_at = g * 2 * kScaleUnit;
      const uint8_t* later = a.weight + at + a.weight_ahead(at);
#pragma GCC unroll 4
      for (int line = 0; line < 2 * T; line++) __builtin_prefetch(later + line * 64);
      if (!(g & 1)) __builtin_prefetch(a.scale + scale_at + a.scale_ahead(scale_at));
      for (int t = 0; t < T; t++) {
        int16x8_t w[8][kQuarters];
        decode(a.weight + at + t * kUnit, w);
        decode(a.weight + at + t * kUnit + 64, w + 4);
        float32x4_t s[kQuarters];
        scales(a.scale + scale_at + t * kScaleUnit, s);
        add_parts<M>(w, s, x, a.sums + t * M * 16, first,
                     std::make_integer_sequence<int, (M - 1) / kRowsTogether + 1>());
      }
    }
  }

 private:
  // Half a group of 16 outputs: w[i] is pair i, [quarter][output][even, odd].
  RONDO_INLINE void decode(const uint8_t* p, int16x8_t (*w)[kQuarters]) {
    const int8x16_t table = vld1q_s8(kCodes);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) {
      const uint8x16_t c = vld1q_u8(p + q * 16);
      const int16x8_t low = vreinterpretq_s16_s8(vqtbl1q_s8(table, vandq_u8(c, vdupq_n_u8(15))));
      const int16x8_t high = vreinterpretq_s16_s8(vqtbl1q_s8(table, vshrq_n_u8(c, 4)));
      w[0][q] = vshrq_n_s16(vshlq_n_s16(low, 8), 8);
      w[1][q] = vshrq_n_s16(vshlq_n_s16(high, 8), 8);
      w[2][q] = vshrq_n_s16(low, 8);
      w[3][q] = vshrq_n_s16(high, 8);
    }
  }
  RONDO_INLINE void scales(const uint8_t* p, float32x4_t* s) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t half[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)};
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; q++) {
      const uint16x8_t from = half[q / 2];
      const uint32x4_t wide = q % 2 ? vmovl_high_u16(from) : vmovl_u16(vget_low_u16(from));
      s[q] = vreinterpretq_f32_u32(
          vaddq_u32(vshlq_n_u32(wide, 20), vdupq_n_u32(uint32_t(kScaleBase) << 23)));
    }
  }

  // A group of 16 outputs against N of the M rows; x points to the first row's first pair.
  template <int M, int N>
  RONDO_INLINE void add_rows(const int16x8_t (*w)[kQuarters], const float32x4_t* s, const uint8_t* x,
                             float* acc, bool first) {
    int32x4_t sum[N][kQuarters][2];
#pragma GCC unroll 3
    for (int r = 0; r < N; r++)
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; q++) sum[r][q][0] = sum[r][q][1] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      int16x8_t pairs[N];
#pragma GCC unroll 3
      for (int r = 0; r < N; r++) pairs[r] = vreinterpretq_s16_u32(vdupq_n_u32(word(x + (j * M + r) * 4)));
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; q++)
#pragma GCC unroll 3
        for (int r = 0; r < N; r++) {
          sum[r][q][0] = vmlal_s16(sum[r][q][0], vget_low_s16(w[j][q]), vget_low_s16(pairs[r]));
          sum[r][q][1] = vmlal_high_s16(sum[r][q][1], w[j][q], pairs[r]);
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < N; r++) {
      const float32x4_t step = vreinterpretq_f32_u32(vdupq_n_u32(word(x + (8 * M + r) * 4)));
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; q++) {
        float* to = acc + r * 16 + q * 4;
        const float32x4_t before = first ? vdupq_n_f32(0.f) : vld1q_f32(to);
        const float32x4_t group = vcvtq_f32_s32(vpaddq_s32(sum[r][q][0], sum[r][q][1]));
        vst1q_f32(to, vfmaq_f32(before, vmulq_f32(group, s[q]), step));
      }
    }
  }
  template <int M, int... Part>
  RONDO_INLINE void add_parts(const int16x8_t (*w)[kQuarters], const float32x4_t* s, const uint8_t* x,
                              float* acc, bool first, std::integer_sequence<int, Part...>) {
    constexpr int parts = sizeof...(Part);
    (add_rows<M, M * (Part + 1) / parts - M * Part / parts>(w, s, x + M * Part / parts * 4,
                                                           acc + M * Part / parts * 16, first),
     ...);
  }
  RONDO_INLINE uint32_t word(const uint8_t* p) {
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
  }
};

}  // namespace
