// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of bf16 as e4m3 codes with one scale, and codes back to bf16.
//
// The scale is max|x| / 448; a row of zeros has scale 1, a row that holds a NaN or an infinity has
// a NaN for a scale, so that all of it reads as NaN. A code is x / scale rounded to nearest, ties
// to even. Every code but NaN's is a bf16 exactly; the scale is left to whoever reads the row.
// e4m3_decode(codes, out, count) takes a multiple of 64 codes and leaves their bf16 in order.
#ifndef RONDO_KV_E4M3_H
#define RONDO_KV_E4M3_H

#include "../cpu/e4m3_bytes.h"
#include "../cpu/vec_math.h"

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512VBMI__)

RONDO_INLINE void e4m3_decode(const uint8_t* codes, bf16_t* out, int64_t count) {
  const __m512i l0 = _mm512_load_si512(rondo::kE4m3.low), l1 = _mm512_load_si512(rondo::kE4m3.low + 64);
  const __m512i h0 = _mm512_load_si512(rondo::kE4m3.high), h1 = _mm512_load_si512(rondo::kE4m3.high + 64);
  const __m512i sign = _mm512_set1_epi8(char(0x80));
  // Unpacking works inside quarters of 16 bytes: their halves are dealt out first.
  const __m512i deal = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t i = 0; i < count; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + i + count), _MM_HINT_T0);
    const __m512i c = _mm512_permutexvar_epi64(deal, _mm512_loadu_si512(codes + i));
    const __m512i low = _mm512_permutex2var_epi8(l0, c, l1);
    const __m512i mag = _mm512_permutex2var_epi8(h0, c, h1);
    const __m512i high = _mm512_ternarylogic_epi32(mag, c, sign, 0xF8);
    _mm512_storeu_si512(out + i, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(out + i + 32, _mm512_unpackhi_epi8(low, high));
  }
}

#elif defined(__AVX2__)

RONDO_INLINE void e4m3_decode(const uint8_t* codes, bf16_t* out, int64_t count) {
  // bf16 of the eight subnormal codes, m / 512.
  const __m256i tiny = _mm256_broadcastsi128_si256(_mm_setr_epi16(
      0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));
  for (int64_t i = 0; i < count; i += 16) {
    if (i % 64 == 0)
      _mm_prefetch(reinterpret_cast<const char*>(codes + i + count), _MM_HINT_T0);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    const __m256i c = _mm256_cvtepi8_epi16(bytes);
    const __m256i mag = _mm256_and_si256(c, _mm256_set1_epi16(0x7F));
    const __m256i normal =
        _mm256_add_epi16(_mm256_slli_epi16(mag, 4), _mm256_set1_epi16(120 << 7));
    // Two bytes of the table a lane: 2 mag and 2 mag + 1.
    const __m256i at = _mm256_add_epi16(_mm256_mullo_epi16(mag, _mm256_set1_epi16(0x0202)),
                                        _mm256_set1_epi16(0x0100));
    const __m256i small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), mag);
    const __m256i value = _mm256_blendv_epi8(normal, _mm256_shuffle_epi8(tiny, at), small);
    const __m256i sign = _mm256_and_si256(c, _mm256_set1_epi16(int16_t(0x8000)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_or_si256(value, sign));
  }
}

#else

RONDO_INLINE void e4m3_decode(const uint8_t* codes, bf16_t* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    const v16u c = widen16(load_vec<v16b>(codes + i)), mag = c & 0x7fu;
    const v16f normal = (v16f)((mag << 20) + uint32_t(120 << 23));
    // Subnormal codes as 2^-6 (1 + m/8) - 2^-6.
    const v16f tiny = (v16f)((mag << 20) + uint32_t(121 << 23)) - 0.015625f;
    const v16u bits = (v16u)select16((v16i)(mag < 8u), tiny, normal);
    store_vec(out + i, narrow16((bits >> 16) | (c & 0x80u) << 8));
  }
}

#endif

// Codes of `dim` bf16 values, a multiple of 16 up to 256; returns their scale.
RONDO_INLINE float e4m3_encode(const bf16_t* x, int dim, uint8_t* codes) {
  uint32_t most = 0;
  for (int c = 0; c < dim; c++) {
    const uint32_t size = x[c] & 0x7fffu;
    most = size > most ? size : most;
  }
  if (most >= 0x7f80u) {
    memset(codes, 0x7f, size_t(dim));
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = most ? bf16_to_float(bf16_t(most)) / 448.0f : 1.0f;
  for (int c = 0; c < dim; c += 16) {
    const v16f y = load16_bf16(x + c) / splat16(scale);
    const v16u sign = ((v16u)y & 0x80000000u) >> 24;
    const v16f size = minimum16(abs16(y), splat16(448.0f));
    const v16u bits = (v16u)size;
    const v16u normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - uint32_t(120 << 3);
    // Below 2^-6 codes are multiples of 2^-9: the spacing of floats from 2^14 on.
    const v16u tiny = (v16u)(size + 16384.0f) - 0x46800000u;
    const v16i small = (v16i)(size < 0.015625f);
    const v16u code = (v16u)select16(small, (v16i)tiny, (v16i)normal) | sign;
    uint32_t lanes[16];
    store_vec(lanes, code);
    for (int lane = 0; lane < 16; lane++) codes[c + lane] = uint8_t(lanes[lane]);
  }
  return scale;
}

#endif
