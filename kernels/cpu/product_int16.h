// SPDX-License-Identifier: MIT OR Apache-2.0
// Activations as integers, for AVX2, NEON, and AVX-512 without a bf16 dot product: they multiply int16.
//
// Sixteen neighbouring inputs of a row share a step, a power of two: 2^(e - 14) where 2^e is the
// power of two at or below their largest magnitude, and 2^-126 at least. Each input is the nearest
// multiple of the step, ties to even, so a bf16 value within 2^-7 of the largest is exact and no
// other is off by more than half a step. A group that holds an infinity or a NaN has a NaN for its
// step, and so has every output.
// A block of m rows is [K/16] groups of [8][m] pairs of int16 and then [m] fp32 steps.
#pragma once
#include "product.h"

namespace rondo {

constexpr int kGroup = 16;
constexpr int kGroupBytes = 36;  // of one row: 8 pairs and the step

struct Int16Activations {
  static constexpr bool kAsStored = false;
  static constexpr int kMaxRows = 16;
  static int64_t row_bytes(int32_t k) { return int64_t(k) / kGroup * kGroupBytes; }

  static void pack(const rondo_linear_args* a, int32_t begin, int32_t m, void* out) {
    const bf16_t* x = a->x + int64_t(begin) * a->x_stride;
    for (int32_t r = 0; r < m; r++, x += a->x_stride) {
      uint8_t* to = static_cast<uint8_t*>(out) + 4 * r;
      for (int32_t k = 0; k < a->k; k += kGroup, to += int64_t(kGroupBytes) * m) {
        uint32_t pairs[9];
        pack_group(x + k, pairs);
        if (m == 1) memcpy(to, pairs, sizeof pairs);
        else
          for (int j = 0; j < 9; j++) memcpy(to + int64_t(j) * 4 * m, pairs + j, 4);
      }
    }
  }

 private:
  RONDO_INLINE void pack_group(const bf16_t* x, uint32_t* pairs) {
#if defined(RONDO_NEON)
    const uint16x8_t bits[2] = {vld1q_u16(x), vld1q_u16(x + 8)}, mask = vdupq_n_u16(0x7fff);
    const int exponent = vmaxvq_u16(vmaxq_u16(vandq_u16(bits[0], mask), vandq_u16(bits[1], mask))) >> 7;
    const int step = exponent > 15 ? exponent - 14 : 1;
    const float32x4_t inverse = vreinterpretq_f32_u32(vdupq_n_u32(uint32_t(254 - step) << 23));
    const auto nearest = [inverse](uint32x4_t wide) {
      return vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(vreinterpretq_f32_u32(wide), inverse)));
    };
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const uint32x4_t low = vshll_n_u16(vget_low_u16(bits[i]), 16), high = vshll_high_n_u16(bits[i], 16);
      vst1q_s16(reinterpret_cast<int16_t*>(pairs + 4 * i), vcombine_s16(nearest(low), nearest(high)));
    }
#else
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
    const __m128i larger = _mm_max_epu16(_mm256_castsi256_si128(magnitude),
                                         _mm256_extracti128_si256(magnitude, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(larger, _mm_set1_epi16(-1)));
    const int exponent = (0xffff ^ (_mm_cvtsi128_si32(least) & 0xffff)) >> 7;
    const int step = exponent > 15 ? exponent - 14 : 1;
    const __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32((254 - step) << 23));
    __m256i whole[2];
    const __m128i half[2] = {_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half[i]), 16);
      whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(wide), inverse));
    }
    const __m256i packed = _mm256_packs_epi32(whole[0], whole[1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs), _mm256_permute4x64_epi64(packed, 0xD8));
#endif
    pairs[8] = exponent == 255 ? 0x7fc00000u : uint32_t(step) << 23;
  }
};

}  // namespace rondo
