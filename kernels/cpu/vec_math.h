// SPDX-License-Identifier: MIT OR Apache-2.0
// Helpers of the row and state kernels on top of vec.h: partial vectors with a fast full case,
// pair products of bf16, and the reciprocal root of a mean square.
#pragma once
#include "vec.h"

// The first n of 16 values, zeros after them.
RONDO_INLINE v16f load16_n(const float* p, int n) { return n == 16 ? load16(p) : load16_part(p, n); }
RONDO_INLINE v16f load16_bf16_n(const bf16_t* p, int n) {
  return n == 16 ? load16_bf16(p) : load16_bf16_part(p, n);
}
RONDO_INLINE void store16_n(float* p, v16f x, int n) {
  if (n == 16) store16(p, x);
  else store16_part(p, x, n);
}
RONDO_INLINE void store16_bf16_n(bf16_t* p, v16f x, int n) {
  if (n == 16) store16_bf16(p, x);
  else store16_bf16_part(p, x, n);
}

// x in the first n lanes, `other` in the rest.
RONDO_INLINE v16f first_lanes16(v16f x, int n, v16f other) {
  const v16i lane{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return select16((v16i)(lane < n), x, other);
}

RONDO_INLINE bool any16(v16i mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  int32_t lanes[16], all = 0;
  store_vec(lanes, mask);
  for (int i = 0; i < 16; i++) all |= lanes[i];
  return all != 0;
#endif
}

// 1 / sqrt(squares / n + eps), every operation rounded once.
RONDO_INLINE float inverse_rms(float squares, int n, float eps) {
  return 1.0f / __builtin_sqrtf(squares / float(n) + eps);
}

// Two neighbouring bf16 values in one word, the first in the low half.
RONDO_INLINE uint32_t load_pair(const bf16_t* p) {
  uint32_t pair;
  memcpy(&pair, p, sizeof pair);
  return pair;
}

// sum + a.low * b.low + a.high * b.high, lane by lane, for words of two bf16 values. With the
// AVX-512 BF16 instruction subnormal inputs and results count as zero.
RONDO_INLINE v16f dot_pairs16(v16f sum, v16u a, uint32_t b) {
#if defined(__AVX512BF16__)
  return (v16f)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)a,
                                (__m512bh)_mm512_set1_epi32(int32_t(b)));
#else
  const v16f low = fma16((v16f)(a << 16), splat16(bf16_to_float(bf16_t(b))), sum);
  return fma16((v16f)(a & 0xffff0000u), splat16(bf16_to_float(bf16_t(b >> 16))), low);
#endif
}
