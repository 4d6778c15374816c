// SPDX-License-Identifier: MIT OR Apache-2.0
// e4m3 to bf16 by bytes: a table look-up for each half of the result.
#pragma once
#include <stdint.h>

namespace rondo {

// Low and high bytes of the bf16 form of the 128 non-negative e4m3 codes.
struct E4m3Bytes {
  alignas(64) uint8_t low[128], high[128];
  constexpr E4m3Bytes() : low(), high() {
    for (int c = 0; c < 128; c++) {
      int exponent = c >> 3, mantissa = c & 7;
      uint32_t bits = 0;
      if (c == 127) {
        bits = 0x7FC0;
      } else if (exponent) {
        bits = uint32_t(exponent + 120) << 7 | uint32_t(mantissa) << 4;
      } else if (mantissa) {
        int e = 121;
        while (!(mantissa & 8)) mantissa <<= 1, e--;
        bits = uint32_t(e) << 7 | uint32_t(mantissa & 7) << 4;
      }
      low[c] = uint8_t(bits & 255), high[c] = uint8_t(bits >> 8);
    }
  }
};
static constexpr E4m3Bytes kE4m3;

}  // namespace rondo
