// SPDX-License-Identifier: MIT OR Apache-2.0
// e4m3 tiles for the matrix unit: 16 outputs x 32 inputs in 512 bytes. 64 bytes hold two neighbouring
// outputs; each quarter of 16 bytes has eight neighbouring inputs of the first, then of the second, so
// that interleaving two byte tables inside the quarters yields one output a vector.
#if defined(__AMX_BF16__)
#include "e4m3_bytes.h"
#include "product_amx.h"

namespace {

struct Fp8 : rondo::Activations {
  static constexpr int kUnit = 512;
  static constexpr bool kStored = false, kScaledBlocks = true;

  RONDO_INLINE void decode(const uint8_t* codes, uint8_t* tile) {
    const __m512i l0 = _mm512_load_si512(rondo::kE4m3.low), l1 = _mm512_load_si512(rondo::kE4m3.low + 64);
    const __m512i h0 = _mm512_load_si512(rondo::kE4m3.high), h1 = _mm512_load_si512(rondo::kE4m3.high + 64);
    const __m512i sign = _mm512_set1_epi8(char(0x80));
#pragma GCC unroll 8
    for (int n = 0; n < 16; n += 2) {
      const __m512i c = _mm512_load_si512(codes + 32 * n);
      const __m512i low = _mm512_permutex2var_epi8(l0, c, l1);
      const __m512i magnitude = _mm512_permutex2var_epi8(h0, c, h1);
      const __m512i high = _mm512_ternarylogic_epi32(magnitude, c, sign, 0xF8);
      _mm512_store_si512(tile + 64 * n, _mm512_unpacklo_epi8(low, high));
      _mm512_store_si512(tile + 64 * n + 64, _mm512_unpackhi_epi8(low, high));
    }
  }
};

}  // namespace

typedef rondo_linear_args rondo_fp8_linear_amx_args;

RONDO_OP(fp8_linear_amx) { rondo::matrix_product<Fp8>(a, worker, workers); }
#endif
