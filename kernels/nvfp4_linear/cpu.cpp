// SPDX-License-Identifier: MIT OR Apache-2.0
// NVFP4 weights (e2m1 codes, one e4m3 scale per 16 inputs; layout.h) against bf16 activations.
//
// One order for every row count: within a group the pairs ascending from zero, then
// acc = fma(group, scale, acc), groups ascending. With AVX2, NEON, or AVX-512 and no bf16 dot product
// the activations are the integers of product_int16.h: the sum of a group is exact and rounded to fp32,
// then acc = fma(group * scale, step, acc).
#include "layout.h"
#include "product.h"
#if defined(RONDO_INT16)
#include "product_int16.h"
#endif

#include <type_traits>

namespace {

using rondo::TileArgs;

#if !defined(RONDO_INT16)
constexpr int kScaleBase = 117;
#elif defined(__AVX512F__) || defined(RONDO_NEON)
constexpr int kScaleBase = 117 - 1;  // the integers of the codes are twice their values
#else
constexpr int kScaleBase = 117 - 9;  // or 2^9 times
#endif

#if !defined(RONDO_NEON)
RONDO_INLINE v16f group_scales(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return (v16f)_mm512_add_epi32(_mm512_slli_epi32(b, 20), _mm512_set1_epi32(kScaleBase << 23));
#else
  return (v16f)((widen16(load_vec<v16b>(p)) << 20) + uint32_t(kScaleBase << 23));
#endif
}
#endif

#if defined(RONDO_INT16)
typedef rondo::Int16Activations Activations;
#else
typedef rondo::Activations Activations;
#endif

typedef rondo::Nvfp4Layout<Activations> Layout;

#if defined(__AVX512F__)

}  // namespace
#include "avx512.h"
namespace {

#elif defined(RONDO_AVX)

}  // namespace
#include "avx2.h"
namespace {

#elif defined(RONDO_NEON)

}  // namespace
#include "neon.h"
namespace {

#else

alignas(64) const float kCodes[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                      -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

RONDO_INLINE v16f code_values(v16u lanes) {
  float r[16];
  for (int i = 0; i < 16; i++) r[i] = kCodes[lanes[i] & 15];
  return load16(r);
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

#if defined(RONDO_INT16)
typedef rondo_linear_args rondo_nvfp4_linear_pack_args;

RONDO_OP(nvfp4_linear_pack) { rondo::pack_rows<Nvfp4>(a, worker, workers); }
#endif

// 1 where the activations are rounded to the integers of product_int16.h.
RONDO_API int32_t rondo_nvfp4_rounds_inputs(void) {
  return std::is_same<Activations, rondo::Activations>::value ? 0 : 1;
}
