// SPDX-License-Identifier: MIT OR Apache-2.0
// NVFP4 tiles for the matrix unit: 16 outputs x 32 inputs, 256 bytes of codes and 32 of scales.
//   codes: 64 bytes for four neighbouring outputs, the first group of inputs, then the second; a word
//     has one input of the four, the first output lowest.
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
  static constexpr int kCodes = 16 * 32 / 2, kUnit = kCodes + 16 * 32 / 16;  // AMX_UNIT_BYTES of pack.py
  static_assert(kUnit % 32 == 0, "codes are read by aligned vectors of 32 bytes");
  static constexpr bool kStored = false, kScaledBlocks = false;

  RONDO_INLINE void decode(const uint8_t* codes, uint8_t* tile) {
    const uint8_t* scales = codes + kCodes;
#pragma GCC unroll 4
    for (int n = 0; n < 16; n += 4) {
#pragma GCC unroll 2
      for (int g = 0; g < 2; g++) {
        const __m256i four = load(codes + 16 * n + 32 * g);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
          const __m256i code = i ? _mm256_srli_epi16(four, 4 * i) : four;  // in the low four bits
          const __m256i values = load(kProducts.value[scales[2 * (n + i) + g]]);
          _mm256_store_si256(reinterpret_cast<__m256i*>(tile + 64 * (n + i) + 32 * g),
                             _mm256_permutexvar_epi16(code, values));
        }
      }
    }
  }

 private:
  RONDO_INLINE __m256i load(const void* p) {
    return _mm256_load_si256(static_cast<const __m256i*>(p));
  }
};

}  // namespace

typedef rondo_linear_args rondo_nvfp4_linear_amx_args;

RONDO_OP(nvfp4_linear_amx) { rondo::matrix_product<Nvfp4>(a, worker, workers); }
#endif
