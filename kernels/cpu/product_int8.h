// SPDX-License-Identifier: MIT OR Apache-2.0
// Activations as 8-bit integers: an instruction multiplies twice as many of them as of 16 bits.
//
// Sixteen neighbouring inputs of a row share a step, a power of two: 2^(e - 6) where 2^e is the power of
// two at or below their largest magnitude, and 2^-116 at least. Each input is the nearest multiple of the
// step from -127 to 127, ties to even, so none is off by more than half a step. A row that holds a
// magnitude of 2^127 and more, an infinity or a NaN has NaN for every output: its step times the largest
// scales is no fp32.
// A block of m rows begins with [m] fp32 that all sums of a row begin with, zero or NaN. Behind it are
// [K/16] groups of [4][m] words of four inputs, then [m] int32 with which the sum of the group begins,
// then [m] steps, as what is added to the bits of a scale whose exponent is small: a sum of exponents
// runs beside the multipliers. Word 2h + i has the inputs 8h + 2i + {0, 4, 1, 5}.
#pragma once
#include "product.h"

#include <math.h>

namespace rondo {

constexpr int kInt8Group = 16;
constexpr int kInt8Words = 6;  // of a group of one row: four of inputs, the beginning and the step

// Added to every weight where one factor of the instruction has to be unsigned; the beginning of the sum
// takes it back.
#if defined(__AVX2__)
constexpr int kWeightOffset = 12;
#else
constexpr int kWeightOffset = 0;
#endif
// Of the largest input, biased: no less, and below.
constexpr int kLeastExponent = 17, kEndExponent = 254;

struct Int8Activations {
  static constexpr bool kAsStored = false;
  static constexpr int kMaxRows = 8;
  static int64_t row_bytes(int32_t k) { return 4 + int64_t(k) / kInt8Group * kInt8Words * 4; }

  static void pack(const rondo_linear_args* a, int32_t begin, int32_t m, void* out) {
    const bf16_t* x = a->x + int64_t(begin) * a->x_stride;
    for (int32_t r = 0; r < m; r++, x += a->x_stride) {
      uint32_t* start = static_cast<uint32_t*>(out) + r;
      uint32_t* to = start + m;
      *start = 0;
      for (int32_t k = 0; k < a->k; k += kInt8Group, to += int64_t(kInt8Words) * m) {
        uint32_t words[kInt8Words];
        if (!pack_group(x + k, words)) *start = 0x7fc00000u;
        for (int j = 0; j < kInt8Words; j++) to[int64_t(j) * m] = words[j];
      }
    }
  }

 private:
  // False where an input is too large or not a number.
  RONDO_INLINE bool pack_group(const bf16_t* x, uint32_t* words) {
#if defined(__AVX2__)
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
    const __m128i larger = _mm_max_epu16(_mm256_castsi256_si128(magnitude),
                                         _mm256_extracti128_si256(magnitude, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(larger, _mm_set1_epi16(-1)));
    const int exponent = at_least(0xffff ^ (_mm_cvtsi128_si32(least) & 0xffff));
    const __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32((260 - exponent) << 23));
    const __m128i half[2] = {_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)};
    __m256i whole[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half[i]), 16);
      whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(wide), inverse));
    }
    // Words of inputs 0 .. 3, 8 .. 11, 4 .. 7, 12 .. 15.
    const __m256i words16 = _mm256_packs_epi32(whole[0], whole[1]);
    const __m128i bytes = _mm_max_epi8(_mm_packs_epi16(_mm256_castsi256_si128(words16),
                                                       _mm256_extracti128_si256(words16, 1)),
                                       _mm_set1_epi8(-127));
    const __m128i order = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words), _mm_shuffle_epi8(bytes, order));
    const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    const int sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#elif defined(RONDO_NEON)
    const uint16x8_t bits[2] = {vld1q_u16(x), vld1q_u16(x + 8)}, mask = vdupq_n_u16(0x7fff);
    const uint16x8_t larger = vmaxq_u16(vandq_u16(bits[0], mask), vandq_u16(bits[1], mask));
    const int exponent = at_least(vmaxvq_u16(larger));
    const float32x4_t inverse = vreinterpretq_f32_u32(vdupq_n_u32(uint32_t(260 - exponent) << 23));
    const auto nearest = [inverse](uint32x4_t wide) {
      return vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(vreinterpretq_f32_u32(wide), inverse)));
    };
    int8x8_t half[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const int16x8_t whole = vcombine_s16(nearest(vshll_n_u16(vget_low_u16(bits[i]), 16)),
                                           nearest(vshll_high_n_u16(bits[i], 16)));
      half[i] = vmax_s8(vqmovn_s16(whole), vdup_n_s8(-127));
    }
    const uint8x16_t order = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
    const int8x16_t bytes = vqtbl1q_s8(vcombine_s8(half[0], half[1]), order);
    vst1q_u32(words, vreinterpretq_u32_s8(bytes));
    const int sum = vaddlvq_s8(bytes);
#else
    uint32_t top = 0;
    for (int i = 0; i < kInt8Group; i++) top = (x[i] & 0x7fffu) > top ? x[i] & 0x7fffu : top;
    const int exponent = at_least(int(top));
    const uint32_t inverse_bits = uint32_t(260 - exponent) << 23;
    float inverse;
    memcpy(&inverse, &inverse_bits, 4);
    int8_t whole[kInt8Group];
    int sum = 0;
    for (int i = 0; i < kInt8Group; i++) {
      const float nearest = exponent < kEndExponent ? rintf(bf16_to_float(x[i]) * inverse) : 0.f;
      whole[i] = int8_t(nearest > 127.f ? 127.f : nearest < -127.f ? -127.f : nearest);
      sum += whole[i];
    }
    for (int j = 0; j < 4; j++) {
      const int8_t* from = whole + j / 2 * 8 + j % 2 * 2;
      const int8_t word[4] = {from[0], from[4], from[1], from[5]};
      memcpy(words + j, word, 4);
    }
#endif
    words[4] = uint32_t(-kWeightOffset * sum);
    const bool fits = exponent < kEndExponent;
    words[5] = fits ? uint32_t(exponent - kLeastExponent) << 23 : 0;  // the row's NaN stays the only one
    return fits;
  }
  RONDO_INLINE int at_least(int top) {
    const int exponent = top >> 7;
    return exponent > kLeastExponent ? exponent : kLeastExponent;
  }
};

}  // namespace rondo
