// SPDX-License-Identifier: MIT OR Apache-2.0
// Sixteen-lane vectors: the compiler's own 64-byte vectors with AVX-512, aggregates of narrower ones
// (lanes.h) elsewhere; one source for all. Compiled with -ffp-contract=off: a fused multiply-add
// happens where fma16 stands and nowhere else (levels without the instruction round twice).
//
// Accuracy against the exact value, for results that are not subnormal: exp16, log1p16, softplus16
// and sigmoid16 within 2 ulp, silu16 within 3. Every lane gets the same operations, so a tail
// padded to 16 lanes has the bits of a full vector.
#pragma once
#include <math.h>
#include <string.h>

#include "rondo.h"
#if defined(__x86_64__)
// GCC 12's own header trips these warnings for its deliberately undefined merge operands.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)  // which does not know the name
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint8_t v16b __attribute__((vector_size(16)));
#if defined(__AVX512F__)
typedef float v16f __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16h __attribute__((vector_size(32)));
#else
#include "lanes.h"
typedef rondo::Lanes<float> v16f;
typedef rondo::Lanes<int32_t> v16i;
typedef rondo::Lanes<uint32_t> v16u;
typedef rondo::Lanes<uint16_t> v16h;
#endif

typedef uint16_t bf16_t;

#if defined(__AVX512F__)
RONDO_INLINE v16f splat16(float x) { return v16f{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
#else
RONDO_INLINE v16f splat16(float x) { return v16f::splat(x); }
#endif

template <typename V>
RONDO_INLINE V load_vec(const void* p) {
#if !defined(__AVX512F__)
  if constexpr (std::is_class_v<V>) return V::load(p);
#endif
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <typename V>
RONDO_INLINE void store_vec(void* p, V v) {
#if !defined(__AVX512F__)
  if constexpr (std::is_class_v<V>) return v.store(p);
#endif
  memcpy(p, &v, sizeof v);
}
RONDO_INLINE v16f load16(const float* p) { return load_vec<v16f>(p); }
RONDO_INLINE void store16(float* p, v16f v) { store_vec(p, v); }

// First n lanes (0 <= n <= 16) from p, the rest zero.
RONDO_INLINE v16f load16_part(const float* p, int n) {
  float t[16] = {};
  memcpy(t, p, size_t(n) * sizeof(float));
  return load16(t);
}
RONDO_INLINE void store16_part(float* p, v16f v, int n) {
  float t[16];
  store16(t, v);
  memcpy(p, t, size_t(n) * sizeof(float));
}

RONDO_INLINE v16f as_float16(v16u v) { return (v16f)v; }
RONDO_INLINE v16u as_bits16(v16f v) { return (v16u)v; }

// Lanes of a where mask is all ones, of b where it is zero.
#if defined(__AVX512F__)
RONDO_INLINE v16f select16(v16i mask, v16f a, v16f b) {
  return mask ? a : b;
}
RONDO_INLINE v16i select16(v16i mask, v16i a, v16i b) {
  return mask ? a : b;
}
RONDO_INLINE v16i to_int16(v16f v) { return __builtin_convertvector(v, v16i); }
RONDO_INLINE v16f to_float16(v16i v) { return __builtin_convertvector(v, v16f); }
#else
RONDO_INLINE v16f select16(v16i mask, v16f a, v16f b) { return choose(mask, a, b); }
RONDO_INLINE v16i select16(v16i mask, v16i a, v16i b) { return choose(mask, a, b); }
RONDO_INLINE v16i to_int16(v16f v) { return rondo::convert<int32_t>(v); }
RONDO_INLINE v16f to_float16(v16i v) { return rondo::convert<float>(v); }
#endif

// Unsigned integers to 32 bits, and the low halves of 32-bit lanes that hold no more.
#if !defined(__AVX512F__)
RONDO_INLINE v16u widen16(v16b b) {
#if defined(__AVX2__)
  const __m128i v = (__m128i)b;
  v16u r;
  r.p[0] = (v16u::piece)_mm256_cvtepu8_epi32(v);
  r.p[1] = (v16u::piece)_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(v, v));
  return r;
#else
  uint32_t t[16];
  for (int i = 0; i < 16; i++) t[i] = b[i];
  return load_vec<v16u>(t);
#endif
}
RONDO_INLINE v16u widen16(v16h h) {
  v16u r;
#if defined(__AVX2__)
  const __m256i v = (__m256i)h.p[0];
  r.p[0] = (v16u::piece)_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v));
  r.p[1] = (v16u::piece)_mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1));
#else
  const v16h::piece zero{};
  for (int i = 0; i < 2; i++) {
    const v16h::piece v = h.p[i];
    r.p[2 * i] = (v16u::piece)__builtin_shufflevector(v, zero, 0, 8, 1, 8, 2, 8, 3, 8);
    r.p[2 * i + 1] = (v16u::piece)__builtin_shufflevector(v, zero, 4, 8, 5, 8, 6, 8, 7, 8);
  }
#endif
  return r;
}
RONDO_INLINE v16h narrow16(v16u u) {
  v16h r;
#if defined(__AVX2__)
  const __m256i joined = _mm256_packus_epi32((__m256i)u.p[0], (__m256i)u.p[1]);
  r.p[0] = (v16h::piece)_mm256_permute4x64_epi64(joined, 0xD8);
#else
  for (int i = 0; i < 2; i++)
    r.p[i] = __builtin_shufflevector((v16h::piece)u.p[2 * i], (v16h::piece)u.p[2 * i + 1],
                                     0, 2, 4, 6, 8, 10, 12, 14);
#endif
  return r;
}
#endif

RONDO_INLINE v16f fma16(v16f a, v16f b, v16f c) {
#if defined(__AVX512F__)
  return (v16f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  c.p[0] = (v16f::piece)_mm256_fmadd_ps((__m256)a.p[0], (__m256)b.p[0], (__m256)c.p[0]);
  c.p[1] = (v16f::piece)_mm256_fmadd_ps((__m256)a.p[1], (__m256)b.p[1], (__m256)c.p[1]);
  return c;
#elif defined(__aarch64__)
  for (int i = 0; i < 4; i++) c.p[i] = vfmaq_f32(c.p[i], a.p[i], b.p[i]);
  return c;
#else
  return a * b + c;
#endif
}
RONDO_INLINE float fma1(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

RONDO_INLINE float bf16_to_float(bf16_t b) {
  const uint32_t u = uint32_t(b) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
// Round to nearest, ties to even; subnormals exact; a NaN stays a (quiet) NaN.
RONDO_INLINE bf16_t float_to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16_t((u >> 16) | 0x40);
  return bf16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
RONDO_INLINE float round_bf16(float f) { return bf16_to_float(float_to_bf16(f)); }

RONDO_INLINE v16f bf16_to_float16(v16h h) {
#if defined(__AVX512F__)
  return (v16f)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#else
  return (v16f)(widen16(h) << 16);
#endif
}
RONDO_INLINE v16u round_bits_bf16_16(v16f f) {
  const v16u u = (v16u)f;
  const v16u rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const v16i nan = (v16i)((u & 0x7fffffffu) > 0x7f800000u);
  return (v16u)(((v16i)((u >> 16) | 0x40u) & nan) | ((v16i)rounded & ~nan));
}
RONDO_INLINE v16h float_to_bf16_16(v16f f) {
  const v16u r = round_bits_bf16_16(f);
#if defined(__AVX512F__)
  return (v16h)_mm512_cvtepi32_epi16((__m512i)r);
#else
  return narrow16(r);
#endif
}
// fp32 lanes rounded to bf16 and widened again: a rounding point inside a fused kernel.
RONDO_INLINE v16f round_bf16_16(v16f f) { return (v16f)(round_bits_bf16_16(f) << 16); }

RONDO_INLINE v16f load16_bf16(const bf16_t* p) { return bf16_to_float16(load_vec<v16h>(p)); }
RONDO_INLINE void store16_bf16(bf16_t* p, v16f v) { store_vec(p, float_to_bf16_16(v)); }
RONDO_INLINE v16f load16_bf16_part(const bf16_t* p, int n) {
  bf16_t t[16] = {};
  memcpy(t, p, size_t(n) * sizeof(bf16_t));
  return load16_bf16(t);
}
RONDO_INLINE void store16_bf16_part(bf16_t* p, v16f v, int n) {
  bf16_t t[16];
  store16_bf16(t, v);
  memcpy(p, t, size_t(n) * sizeof(bf16_t));
}

#if defined(__AVX512F__)
RONDO_INLINE __m256 low_half16(v16f v) { return _mm512_castps512_ps256((__m512)v); }
RONDO_INLINE __m256 high_half16(v16f v) { return _mm512_extractf32x8_ps((__m512)v, 1); }
#elif defined(__AVX2__)
RONDO_INLINE __m256 low_half16(v16f v) { return (__m256)v.p[0]; }
RONDO_INLINE __m256 high_half16(v16f v) { return (__m256)v.p[1]; }
#endif
// Sum and maximum over the lanes, always halved the same way: 8+8, 4+4, 2+2, 1+1.
RONDO_INLINE float sum16(v16f v) {
#if defined(__AVX2__)
  const __m256 h = _mm256_add_ps(low_half16(v), high_half16(v));
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 p = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(p, _mm_movehdup_ps(p)));
#else
  float t[16];
  store16(t, v);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) t[i] += t[i + half];
  return t[0];
#endif
}
RONDO_INLINE float max16(v16f v) {
#if defined(__AVX2__)
  const __m256 h = _mm256_max_ps(low_half16(v), high_half16(v));
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 p = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(p, _mm_movehdup_ps(p)));
#else
  float t[16];
  store16(t, v);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
  return t[0];
#endif
}
// Lane-wise maximum; where b is NaN the result is a.
#if defined(__AVX512F__)
RONDO_INLINE v16f maximum16(v16f a, v16f b) { return (v16f)_mm512_max_ps((__m512)b, (__m512)a); }
RONDO_INLINE v16f minimum16(v16f a, v16f b) { return (v16f)_mm512_min_ps((__m512)b, (__m512)a); }
#else
RONDO_INLINE v16f maximum16(v16f a, v16f b) { return select16((v16i)(b > a), b, a); }
RONDO_INLINE v16f minimum16(v16f a, v16f b) { return select16((v16i)(b < a), b, a); }
#endif
RONDO_INLINE v16f abs16(v16f a) { return (v16f)((v16u)a & 0x7fffffffu); }
RONDO_INLINE v16f scale_by_power16(v16f v, v16i n) {
  // 2^n in two normal factors, so that results near the subnormals are reached without a jump.
  const v16i half = n >> 1, rest = n - half;
  const v16f a = (v16f)((half + 127) << 23), b = (v16f)((rest + 127) << 23);
  return v * a * b;
}

// e^x: n = round(x / ln 2), then a degree 6 polynomial on |r| <= ln(2)/2. NaN stays NaN,
// below -104 the result is 0, above 88.72 infinity.
RONDO_INLINE v16f exp16(v16f x) {
  const v16f clamped = minimum16(maximum16(x, splat16(-105.f)), splat16(89.f));
  const v16f shifter = splat16(12582912.f);
  const v16f t = fma16(clamped, splat16(1.44269504f), shifter);
  const v16f n = t - shifter;
  v16f r = fma16(n, splat16(-0.693359375f), clamped);
  r = fma16(n, splat16(2.12194440e-4f), r);
  v16f p = splat16(1.9875691500e-4f);
  p = fma16(p, r, splat16(1.3981999507e-3f));
  p = fma16(p, r, splat16(8.3334519073e-3f));
  p = fma16(p, r, splat16(4.1665795894e-2f));
  p = fma16(p, r, splat16(1.6666665459e-1f));
  p = fma16(p, r, splat16(5.0000001201e-1f));
  p = fma16(p, r * r, r) + 1.f;
#if defined(__AVX512F__)
  return (v16f)_mm512_scalef_ps((__m512)p, (__m512)n);  // the same bits in one step, NaN kept
#else
  const v16f y = scale_by_power16(p, to_int16(n));
  return select16((v16i)(x == x), y, x);
#endif
}

// Natural logarithm of positive, normal lanes.
RONDO_INLINE v16f log16(v16f x) {
  const v16i bits = (v16i)x - 0x3f3504f3;
  const v16i e = bits >> 23;
  const v16f m = (v16f)((bits & 0x007fffff) + 0x3f3504f3) - 1.f;
  const v16f z = m * m;
  v16f p = splat16(7.0376836292e-2f);
  p = fma16(p, m, splat16(-1.1514610310e-1f));
  p = fma16(p, m, splat16(1.1676998740e-1f));
  p = fma16(p, m, splat16(-1.2420140846e-1f));
  p = fma16(p, m, splat16(1.4249322787e-1f));
  p = fma16(p, m, splat16(-1.6668057665e-1f));
  p = fma16(p, m, splat16(2.0000714765e-1f));
  p = fma16(p, m, splat16(-2.4999993993e-1f));
  p = fma16(p, m, splat16(3.3333331174e-1f));
  const v16f n = to_float16(e);
  v16f y = p * m * z;
  y = fma16(n, splat16(-2.12194440e-4f), y);
  y = fma16(z, splat16(-0.5f), y);
  return fma16(n, splat16(0.693359375f), m + y);
}
// log(1 + u) for u >= 0: the part of u lost in 1 + u comes back through its derivative.
RONDO_INLINE v16f log1p16(v16f u) {
  const v16f w = u + 1.f;
  const v16f lost = select16((v16i)(u < 16777216.f), u - (w - 1.f), splat16(0.f));
  return log16(w) + lost / w;
}
RONDO_INLINE v16f sigmoid16(v16f x) {
  const v16f e = exp16(-abs16(x));
  const v16f y = select16((v16i)(x >= 0.f), splat16(1.f), e) / (e + 1.f);
  return select16((v16i)(x == x), y, x);
}
// x * sigmoid(x), with -infinity giving -0.
RONDO_INLINE v16f silu16(v16f x) {
  const v16f finite = maximum16(x, splat16(-3.4028235e38f));
  return select16((v16i)(x == x), finite * sigmoid16(finite), x);
}
// log(1 + e^x) = max(x, 0) + log1p(e^-|x|).
RONDO_INLINE v16f softplus16(v16f x) {
  const v16f y = maximum16(x, splat16(0.f)) + log1p16(exp16(-abs16(x)));
  return select16((v16i)(x == x), y, x);
}
