// SPDX-License-Identifier: MIT OR Apache-2.0
// One vector register: 8 lanes with AVX2, 16 with AVX-512. For the products whose inner loops say what
// each register holds; a lane gets the same operations at either width.
#pragma once
#include "vec.h"

#if defined(__AVX512VNNI__)
#define RONDO_VNNI 1
#elif defined(__AVXVNNI__)
#define RONDO_VNNI 1
// Without it the assembler would take the encoding of AVX-512, which processors of this level lack.
#if !defined(RONDO_VEX)
#define RONDO_VEX "%{vex%} "
#endif
#endif

namespace rondo {

#if defined(__AVX512F__)
typedef __m512 regf;
typedef __m512i regi;
RONDO_INLINE regf reg_zero() { return _mm512_setzero_ps(); }
RONDO_INLINE regf reg_splat(float x) { return _mm512_set1_ps(x); }
RONDO_INLINE regf reg_splat_pair(double pair) { return _mm512_castpd_ps(_mm512_set1_pd(pair)); }
RONDO_INLINE regf reg_load(const float* p) { return _mm512_load_ps(p); }
RONDO_INLINE void reg_store(float* p, regf v) { _mm512_store_ps(p, v); }
RONDO_INLINE regf reg_add(regf a, regf b) { return _mm512_add_ps(a, b); }
RONDO_INLINE regf reg_fma(regf a, regf b, regf c) { return _mm512_fmadd_ps(a, b, c); }
RONDO_INLINE regi reg_load_bits(const uint8_t* p) { return _mm512_load_si512(p); }
RONDO_INLINE regi reg_splat_bits(uint32_t x) { return _mm512_set1_epi32(int32_t(x)); }
RONDO_INLINE regi reg_add_bits(regi a, regi b) { return _mm512_add_epi32(a, b); }
RONDO_INLINE regf reg_of_bits(regi v) { return _mm512_castsi512_ps(v); }
RONDO_INLINE regf reg_of_int32(regi v) { return _mm512_cvtepi32_ps(v); }
RONDO_INLINE regf reg_low_bf16(regi v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
RONDO_INLINE regf reg_high_bf16(regi v) {
  return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int32_t(0xffff0000u))));
}
#else
typedef __m256 regf;
typedef __m256i regi;
RONDO_INLINE regf reg_zero() { return _mm256_setzero_ps(); }
RONDO_INLINE regf reg_splat(float x) { return _mm256_set1_ps(x); }
RONDO_INLINE regf reg_splat_pair(double pair) { return _mm256_castpd_ps(_mm256_set1_pd(pair)); }
RONDO_INLINE regf reg_load(const float* p) { return _mm256_load_ps(p); }
RONDO_INLINE void reg_store(float* p, regf v) { _mm256_store_ps(p, v); }
RONDO_INLINE regf reg_add(regf a, regf b) { return _mm256_add_ps(a, b); }
RONDO_INLINE regf reg_fma(regf a, regf b, regf c) { return _mm256_fmadd_ps(a, b, c); }
RONDO_INLINE regi reg_load_bits(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
RONDO_INLINE regi reg_splat_bits(uint32_t x) { return _mm256_set1_epi32(int32_t(x)); }
RONDO_INLINE regi reg_add_bits(regi a, regi b) { return _mm256_add_epi32(a, b); }
RONDO_INLINE regf reg_of_bits(regi v) { return _mm256_castsi256_ps(v); }
RONDO_INLINE regf reg_of_int32(regi v) { return _mm256_cvtepi32_ps(v); }
RONDO_INLINE regf reg_low_bf16(regi v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
RONDO_INLINE regf reg_high_bf16(regi v) {
  return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(int32_t(0xffff0000u))));
}
#endif

constexpr int kRegLanes = sizeof(regf) / sizeof(float);

// Two fp32 activations of one row, in every pair of lanes.
RONDO_INLINE regf broadcast_pair(const float* x) {
  double pair;
  memcpy(&pair, x, sizeof pair);
  return reg_splat_pair(pair);
}
// Adds the products of int16, those of two neighbours in one sum of int32.
RONDO_INLINE void reg_add_pairs(regi* sum, regi a, regi b) {
#if defined(__AVX512VNNI__)
  *sum = _mm512_dpwssd_epi32(*sum, a, b);
#elif defined(RONDO_VNNI)
  regi value = *sum;
  asm(RONDO_VEX "vpdpwssd %2, %1, %0" : "+x"(value) : "x"(a), "x"(b));
  *sum = value;
#else
  // The compiler would regroup the sum of all products and keep them in memory meanwhile; and one of an
  // array of sums that is itself an operand would stay there.
  regi value = *sum, product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(value), "=&v"(product) : "v"(a), "v"(b));
  *sum = value;
#endif
}
#if defined(RONDO_VNNI)
// Adds the products of bytes without a sign and with one, those of four neighbours in one sum of int32.
RONDO_INLINE void reg_add_fours(regi* sum, regi a, regi b) {
#if defined(__AVX512VNNI__)
  *sum = _mm512_dpbusd_epi32(*sum, a, b);
#else
  regi value = *sum;
  asm(RONDO_VEX "vpdpbusd %2, %1, %0" : "+x"(value) : "x"(a), "x"(b));
  *sum = value;
#endif
}
#else
// Adds the products of bytes without a sign and with one, those of two neighbours in one sum of int16.
RONDO_INLINE void reg_add_twos(regi* sum, regi a, regi b) {
  regi value = *sum, product;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(value), "=&v"(product) : "v"(a), "v"(b));
  *sum = value;
}
#endif
// A value that several instructions use: without this each of them would read it from memory.
RONDO_INLINE regf in_register(regf v) {
  asm("" : "+v"(v));
  return v;
}
RONDO_INLINE void prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

}  // namespace rondo
