// SPDX-License-Identifier: MIT OR Apache-2.0
// The inner step of the NVFP4 product with AVX2: pairs of codes against several rows.
//
// In assembler, because the compiler would regroup the sums of all pairs and copy them about. Twelve
// sums, two vectors of codes, the row's pair and a product fill the sixteen registers.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "registers.h"

namespace rondo {

// Rows whose sums fit the registers.
constexpr int kRowsTogether = 6;

// A row's pair against the codes in ymm12 and ymm13: begins its sums, or adds to them.
#define RONDO_BEGIN(at, i)                         \
  "vpbroadcastd " at "4*" #i "(%[x]), %%ymm14\n\t" \
  "vpmaddwd %%ymm14, %%ymm12, %[low" #i "]\n\t"    \
  "vpmaddwd %%ymm14, %%ymm13, %[high" #i "]\n\t"
#if defined(RONDO_VNNI)
#define RONDO_ADD(at, i)                                     \
  "vpbroadcastd " at "4*" #i "(%[x]), %%ymm14\n\t"           \
  RONDO_VEX "vpdpwssd %%ymm14, %%ymm12, %[low" #i "]\n\t"    \
  RONDO_VEX "vpdpwssd %%ymm14, %%ymm13, %[high" #i "]\n\t"
#else
#define RONDO_ADD(at, i)                           \
  "vpbroadcastd " at "4*" #i "(%[x]), %%ymm14\n\t" \
  "vpmaddwd %%ymm14, %%ymm12, %%ymm15\n\t"         \
  "vpaddd %%ymm15, %[low" #i "], %[low" #i "]\n\t" \
  "vpmaddwd %%ymm14, %%ymm13, %%ymm15\n\t"         \
  "vpaddd %%ymm15, %[high" #i "], %[high" #i "]\n\t"
#endif
#define RONDO_ROWS_2(each, at) each(at, 0) each(at, 1)
#define RONDO_ROWS_3(each, at) RONDO_ROWS_2(each, at) each(at, 2)
#define RONDO_ROWS_4(each, at) RONDO_ROWS_3(each, at) each(at, 3)
#define RONDO_ROWS_5(each, at) RONDO_ROWS_4(each, at) each(at, 4)
#define RONDO_ROWS_6(each, at) RONDO_ROWS_5(each, at) each(at, 5)
#define RONDO_SUMS(how, i) [low##i] how(sum[i][0]), [high##i] how(sum[i][1])
#define RONDO_SUMS_2(how) RONDO_SUMS(how, 0), RONDO_SUMS(how, 1)
#define RONDO_SUMS_3(how) RONDO_SUMS_2(how), RONDO_SUMS(how, 2)
#define RONDO_SUMS_4(how) RONDO_SUMS_3(how), RONDO_SUMS(how, 3)
#define RONDO_SUMS_5(how) RONDO_SUMS_4(how), RONDO_SUMS(how, 4)
#define RONDO_SUMS_6(how) RONDO_SUMS_5(how), RONDO_SUMS(how, 5)

// Codes as int16 in ymm12 and ymm13: those of the low bytes, then those of the high bytes. Up to four
// rows leave registers for the codes; beyond, they are read from memory.
#define RONDO_HELD_LOW "vpsllw $8, %[c0], %%ymm12\n\tvpsllw $8, %[c1], %%ymm13\n\t"
#define RONDO_HELD_HIGH "vpand %[upper], %[c0], %%ymm12\n\tvpand %[upper], %[c1], %%ymm13\n\t"
#define RONDO_STORED_LOW                                     \
  "vmovdqa %[c0], %%ymm12\n\tvmovdqa %[c1], %%ymm13\n\t"     \
  "vpsllw $8, %%ymm12, %%ymm12\n\tvpsllw $8, %%ymm13, %%ymm13\n\t"
#define RONDO_STORED_HIGH             \
  "vmovdqa %[upper], %%ymm13\n\t"     \
  "vpand %[c0], %%ymm13, %%ymm12\n\t" \
  "vpand %[c1], %%ymm13, %%ymm13\n\t"

#define RONDO_PAIRS(rows, are, place, each, how)                                        \
  asm(RONDO_##are##_LOW RONDO_ROWS_##rows(each, "")                                     \
      RONDO_##are##_HIGH RONDO_ROWS_##rows(RONDO_ADD, "%c[next]+")                      \
      : RONDO_SUMS_##rows(how)                                                          \
      : [c0] place(codes[0]), [c1] place(codes[1]), [upper] place(upper), [x] "r"(x),   \
        [next] "i"(8 * M), "m"(*reinterpret_cast<const uint8_t(*)[8 * M + 4 * rows]>(x)) \
      : "xmm12", "xmm13", "xmm14", "xmm15")
#define RONDO_CODES(rows, are, place)                                   \
  if constexpr (Begin) RONDO_PAIRS(rows, are, place, RONDO_BEGIN, "=&x"); \
  else RONDO_PAIRS(rows, are, place, RONDO_ADD, "+x")

// Two pairs of inputs of 16 outputs against N of M rows.
//   codes: [2] vectors of bytes, of outputs 0..7 and 8..15; a lane's low bytes are one pair of codes,
//     its high bytes the second next.
//   x: the first row's first pair of int16; rows lie 4 bytes apart, pairs 4 * M.
//   sum: [N][2], begun or added to: 2^8 times the products of the bytes.
template <int M, int N, bool Begin>
RONDO_INLINE void add_codes(const __m256i* codes, const uint8_t* x, __m256i (*sum)[2]) {
  static_assert(N >= 2 && N <= kRowsTogether, "rows whose sums fit the registers");
  const __m256i upper = _mm256_set1_epi16(-256);
  if constexpr (N == 2) { RONDO_CODES(2, HELD, "x"); }
  else if constexpr (N == 3) { RONDO_CODES(3, HELD, "x"); }
  else if constexpr (N == 4) { RONDO_CODES(4, HELD, "x"); }
  else if constexpr (N == 5) { RONDO_CODES(5, STORED, "m"); }
  else { RONDO_CODES(6, STORED, "m"); }
}

#undef RONDO_CODES
#undef RONDO_PAIRS
#undef RONDO_STORED_HIGH
#undef RONDO_STORED_LOW
#undef RONDO_HELD_HIGH
#undef RONDO_HELD_LOW
#undef RONDO_SUMS_6
#undef RONDO_SUMS_5
#undef RONDO_SUMS_4
#undef RONDO_SUMS_3
#undef RONDO_SUMS_2
#undef RONDO_SUMS
#undef RONDO_ROWS_6
#undef RONDO_ROWS_5
#undef RONDO_ROWS_4
#undef RONDO_ROWS_3
#undef RONDO_ROWS_2
#undef RONDO_ADD
#undef RONDO_BEGIN

}  // namespace rondo
