// SPDX-License-Identifier: MIT OR Apache-2.0
// NVFP4 weights (e2m1 codes, one e4m3 scale per 16 inputs) against bf16 activations.
//
// A tile is 16 outputs; a group of 16 inputs is 128 bytes of codes in the first plane and 16 bytes
// of scales in the second, and the groups of two neighbouring tiles alternate in both:
//   codes: two vectors of 16 lanes, one lane an output. Vector h covers inputs 8h..8h+7; the low
//     half of a lane holds the codes of the four even inputs (lowest first), the high half those of
//     the odd ones: (lane >> 4j) indexes the pair (8h+2j, 8h+2j+1) in both halves at once.
//   scales: the e4m3 value with a normalised exponent, (exponent + 10) << 3 | mantissa, so that
//     byte << 20 plus a constant is its fp32 form; subnormal e4m3 needs no special case. A zero
//     scale is stored as zero codes.
// One order for every row count: within a group the pairs ascending from zero, then
// acc = fma(group, scale, acc), groups ascending. With AVX2 the activations are the integers of
// product_int16.h: the sum of a group is exact and rounded to fp32, then
// acc = fma(group * scale, step, acc).
#include "product.h"
#if defined(RONDO_AVX2)
#include "product_int16.h"
#endif

#include <type_traits>

namespace {

using rondo::TileArgs;

#if defined(RONDO_AVX2)
constexpr int kScaleBase = 117 - 9;  // the integers of the codes are 2^9 times their values
#else
constexpr int kScaleBase = 117;
#endif

RONDO_INLINE v16f group_scales(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return (v16f)_mm512_add_epi32(_mm512_slli_epi32(b, 20), _mm512_set1_epi32(117 << 23));
#else
  return (v16f)((widen16(load_vec<v16b>(p)) << 20) + uint32_t(kScaleBase << 23));
#endif
}

#if defined(RONDO_AVX2)
typedef rondo::Int16Activations Activations;
#else
typedef rondo::Activations Activations;
#endif

struct Layout : Activations {
  static constexpr int kUnit = 128;
  static constexpr int kScaleUnit = 16;
  static int64_t weight_offset(int32_t k) { return int64_t(k) / 16 * 2 * kUnit; }
  static int64_t scale_offset(int32_t k) { return int64_t(k) / 16 * 2 * kScaleUnit; }
  static int64_t scale_second(int64_t) { return kScaleUnit; }
};

#if defined(RONDO_BF16_DOT)

// Codes to bf16; twice, so that the fifth index bit of vpermw needs no mask.
alignas(64) const uint16_t kCodes[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
    0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
    0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};

struct Nvfp4 : Layout {
  template <int M>
  static constexpr int together() {
    return M <= 4 ? 2 : 1;
  }

  // The four pairs of one vector of codes.
  RONDO_INLINE void decode(__m512i c, __m512i lut, __m512bh* w) {
    w[0] = (__m512bh)_mm512_permutexvar_epi16(c, lut);
    w[1] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(c, 4), lut);
    w[2] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(c, 8), lut);
    w[3] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(c, 12), lut);
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
    for (int g = 0; g < groups; g++, x += 8 * M) {
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
      if constexpr (T * M <= 8) {
        // All chains side by side; two halves of the group, to keep few weights at a time.
        __m512 sum[T][M];
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) sum[t][m] = _mm512_setzero_ps();
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
          __m512bh w[T][4];
#pragma GCC unroll 2
          for (int t = 0; t < T; t++)
            decode(_mm512_load_si512(p[t] + at + h * 64), lut, w[t]);
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++)
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
              const uint32_t* pair = x + (h * 4 + j) * M + m;
              if constexpr (T == 1) {
                sum[0][m] = rondo::dot_broadcast(sum[0][m], w[0][j], pair);
              } else {
                const __m512bh v = (__m512bh)_mm512_set1_epi32(int(*pair));
#pragma GCC unroll 2
                for (int t = 0; t < T; t++) sum[t][m] = _mm512_dpbf16_ps(sum[t][m], w[t][j], v);
              }
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) acc[t][m] = _mm512_fmadd_ps(sum[t][m], s[t], acc[t][m]);
      } else {
        // Many rows: the whole group decoded, then up to six chains side by side.
        constexpr int kParts = (M + 5) / 6;
        __m512bh w[8];
        decode(_mm512_load_si512(p[0] + at), lut, w);
        decode(_mm512_load_si512(p[0] + at + 64), lut, w + 4);
#pragma GCC unroll 3
        for (int part = 0; part < kParts; part++) {
          const int begin = M * part / kParts, n = M * (part + 1) / kParts - begin;
          __m512 sum[6];
#pragma GCC unroll 6
          for (int i = 0; i < n; i++) sum[i] = _mm512_setzero_ps();
#pragma GCC unroll 8
          for (int j = 0; j < 8; j++)
#pragma GCC unroll 6
            for (int i = 0; i < n; i++)
              sum[i] = rondo::dot_broadcast(sum[i], w[j], x + j * M + begin + i);
#pragma GCC unroll 6
          for (int i = 0; i < n; i++)
            acc[0][begin + i] = _mm512_fmadd_ps(sum[i], s[0], acc[0][begin + i]);
        }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; t++)
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) _mm512_store_ps(a.sums + (t * M + m) * 16, acc[t][m]);
  }
};

#elif defined(RONDO_AVX2)

}  // namespace
#include "avx2.h"
namespace {

#else

alignas(64) const float kCodes[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                      -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

RONDO_INLINE v16f code_values(v16u lanes) {
#if defined(__AVX512F__)
  return (v16f)_mm512_permutexvar_ps((__m512i)lanes, _mm512_load_ps(kCodes));
#else
  float r[16];
  for (int i = 0; i < 16; i++) r[i] = kCodes[lanes[i] & 15];
  return load16(r);
#endif
}

struct Nvfp4 : Layout {
  template <int M>
  static constexpr int together() {
    return 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const int groups = a.k_count / 16;
    const float* x = static_cast<const float*>(a.x);
    v16f acc[M];
    for (int m = 0; m < M; m++) acc[m] = a.first ? v16f{} : load16(a.sums + m * 16);
    alignas(64) float w[16 * 16];
    for (int g = 0; g < groups; g++, x += 16 * M) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        const v16u c = load_vec<v16u>(a.weight + int64_t(g) * 2 * kUnit + h * 64);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          store16(w + (h * 8 + 2 * j) * 16, code_values(c >> (4 * j)));
          store16(w + (h * 8 + 2 * j + 1) * 16, code_values(c >> (16 + 4 * j)));
        }
      }
      v16f sum[M] = {};
      rondo::add_columns<M>(w, x, 16, sum);
      const v16f s = group_scales(a.scale + int64_t(g) * 2 * kScaleUnit);
      for (int m = 0; m < M; m++) acc[m] = fma16(sum[m], s, acc[m]);
    }
    for (int m = 0; m < M; m++) store16(a.sums + m * 16, acc[m]);
  }
};

#endif

}  // namespace

typedef rondo_linear_args rondo_nvfp4_linear_args;

RONDO_OP(nvfp4_linear) { rondo::product<Nvfp4>(a, worker, workers); }

#if defined(RONDO_AVX2)
typedef rondo_linear_args rondo_nvfp4_linear_pack_args;

RONDO_OP(nvfp4_linear_pack) { rondo::pack_rows<Nvfp4>(a, worker, workers); }
#endif

// 1 where the activations are rounded to the integers of product_int16.h.
RONDO_API int32_t rondo_nvfp4_rounds_inputs(void) {
  return std::is_same<Activations, rondo::Activations>::value ? 0 : 1;
}
