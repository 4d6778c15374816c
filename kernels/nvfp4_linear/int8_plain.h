// SPDX-License-Identifier: MIT OR Apache-2.0
// The NVFP4 product with 8-bit activations on any processor, in fp32: all sums of a group are whole numbers
// below 2^24, so exact. Included by int8.cpp, for its layout.
#pragma once

namespace {

// Twice the value of every code.
constexpr float kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct Nvfp4Int8 : Layout {
  template <int M>
  static constexpr int together() {
    return 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const uint32_t* x = static_cast<const uint32_t*>(a.x);
    if (a.first)
      for (int m = 0; m < M; m++) store16(a.sums + m * 16, as_float16(splat_bits((x - M)[m])));
    v16f w[16];  // in the order of the words of a row
    for (int64_t g = 0; g < a.k_count / 16; g++, x += rondo::kInt8Words * M) {
      for (int h = 0; h < 2; h++) look_up(load_vec<v16u>(a.weight + g * 2 * kUnit + h * 64), w + 8 * h);
      const v16u scale = widen16(load_vec<v16b>(a.scale + g * 2 * kScaleUnit)) << 20;
      for (int m = 0; m < M; m++) {
        v16f sum{};
        for (int j = 0; j < 4; j++) {
          int8_t inputs[4];
          memcpy(inputs, x + j * M + m, 4);
          for (int i = 0; i < 4; i++) sum += w[4 * j + i] * splat16(inputs[i]);
        }
        float* acc = a.sums + m * 16;
        const v16f factor = as_float16(scale + x[5 * M + m]);
        store16(acc, fma16(sum, factor, load16(acc)));
      }
    }
  }

 private:
  RONDO_INLINE v16u splat_bits(uint32_t word) { return v16u{} + word; }
  // Codes of eight inputs: those of the low halves of the bytes, then those of the high halves.
  RONDO_INLINE void look_up(v16u c, v16f* w) {
    for (int i = 0; i < 8; i++) {
      float values[16];
      for (int lane = 0; lane < 16; lane++) values[lane] = kCodes[c[lane] >> (i % 4 * 8 + i / 4 * 4) & 15];
      w[i] = load16(values);
    }
  }
};

}  // namespace
