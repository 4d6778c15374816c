// SPDX-License-Identifier: MIT OR Apache-2.0
// NVFP4 tiles for the matrix unit: 16 outputs x 32 inputs, 256 bytes of codes and 32 of scales.
//   codes: 32 bytes for two neighbouring outputs; byte i has input i of the first in its low half and
//     of the second in its high half.
//   scales: the two e4m3 bytes of each output.
// A code times its scale is exact in bf16: three bits of significand times four.
#if defined(__AMX_BF16__)
#include "product_amx.h"

namespace {

// bf16 of every code times every scale that is a number: a load gives the 16 values of one scale.
struct Products {
  alignas(64) uint16_t value[127][16];
  constexpr Products() : value() {
    constexpr int doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int scale = 0; scale < 127; scale++) {
      const int exponent = scale >> 3 ? scale >> 3 : 1;
      const int significand = (scale >> 3 ? 8 : 0) + (scale & 7);
      for (int code = 0; code < 16; code++) {
        int product = significand * doubled[code & 7], shift = 0;
        while (product && product < 128) product <<= 1, shift++;
        const int power = 127 + 7 + exponent - 11 - shift;  // of the leading one, biased
        const int bits = product ? power << 7 | (product & 127) : 0;
        value[scale][code] = uint16_t(bits | (code & 8) << 12);
      }
    }
  }
};
constexpr Products kProducts;

struct Nvfp4 : rondo::Activations {
  static constexpr int kUnit = 256, kScaleUnit = 32;
  static constexpr bool kStored = false, kScaledBlocks = false;

  RONDO_INLINE __m512i values_of(const uint8_t* scales) {
    const __m256i first = _mm256_load_si256(reinterpret_cast<const __m256i*>(kProducts.value[scales[0]]));
    const __m256i second = _mm256_load_si256(reinterpret_cast<const __m256i*>(kProducts.value[scales[1]]));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  }

  static void decode(const uint8_t* codes, const uint8_t* scales, uint8_t* tile) {
    const __m512i low = _mm512_set1_epi16(15);
    // The inputs 16 .. 31 look into the second table.
    const __m512i table = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
#pragma GCC unroll 8
    for (int n = 0; n < 16; n += 2) {
      const __m512i both =
          _mm512_cvtepu8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(codes + 16 * n)));
      const __m512i first = _mm512_ternarylogic_epi32(table, both, low, 0xF8);
      const __m512i second = _mm512_or_si512(table, _mm512_srli_epi16(both, 4));
      _mm512_store_si512(tile + 64 * n, _mm512_permutexvar_epi16(first, values_of(scales + 2 * n)));
      _mm512_store_si512(tile + 64 * n + 64,
                         _mm512_permutexvar_epi16(second, values_of(scales + 2 * n + 2)));
    }
  }
};

}  // namespace

typedef rondo_linear_args rondo_nvfp4_linear_amx_args;

RONDO_OP(nvfp4_linear_amx) { rondo::matrix_product<Nvfp4>(a, worker, workers); }
#endif
