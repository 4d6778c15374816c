// SPDX-License-Identifier: MIT OR Apache-2.0
// Logits of 1 to 32 rows from an FP8 head: out[r][v] = scale[v] * sum_k x[r][k] * e4m3[v][k], in float32.
// skinny.cuh says how it runs. One order of the sum for every number of rows: a drafted row is verified with the
// bits it would have alone.
//
// An e4m3 byte has 4 significant bits and the range of BF16 holds it, so each is a BF16 operand as it stands: laid
// over BF16's low exponent bits it is 2^-120 times its value, subnormals included, and one product gives the
// power back.
#include "skinny.cuh"

namespace rondo {

struct Fp8Rows {
  static constexpr int kStep = 64;  // a lane's 16 bytes are 16 weights
  static constexpr float kUnit = 1;

  struct Slice {
    uint4 codes;

    RONDO_DEVICE void begin() {}

    template <int kPair>
    static RONDO_DEVICE u32 pair_of(u32 word) {
      constexpr u32 kLow = 2 * kPair, kHigh = 2 * kPair + 1;
      const u32 bytes = permute<kHigh << 12 | kHigh << 8 | kLow << 4 | kLow>(word, 0);
      const u32 two_to_120 = 0x7B807B80u;
      return multiply_bf16x2((bytes & 0x80008000u) | ((bytes >> 4) & 0x07F007F0u), two_to_120);
    }

    RONDO_DEVICE void decode(int, u32 (&b)[4]) {
      b[0] = pair_of<0>(codes.x);
      b[1] = pair_of<1>(codes.x);
      b[2] = pair_of<0>(codes.y);
      b[3] = pair_of<1>(codes.y);
      codes = {codes.z, codes.w, 0, 0};
    }
  };

  struct Lane {
    const e4m3* codes;
    int inputs;

    RONDO_DEVICE Slice load(int tile, int step) const {
      return {load_once(codes + step * kStep + 8 * tile * inputs)};
    }
  };

  const e4m3* codes;  // [V][K], no NaN

  RONDO_DEVICE Lane lane(int row, int t, int inputs) const {
    return {codes + static_cast<long long>(row) * inputs + 16 * t, inputs};
  }
};

}  // namespace rondo

#define HEAD(kTiles, kRows, kAhead)                                                                         \
  extern "C" __global__ void __launch_bounds__(512, 1) rondo_fp8_head_t##kTiles##_r##kRows(                 \
      float* out, const __nv_bfloat16* x, const e4m3* codes, const float* scale, int rows, int outputs,     \
      int inputs, int ldx, int ldo, int interleave) {                                                       \
    rondo::skinny<kTiles, kRows, kAhead>(out, x, rondo::Fp8Rows{codes}, scale,                              \
                                         {rows, outputs, inputs, ldx, ldo, interleave});                    \
  }

HEAD(1, 8, 1)
HEAD(1, 16, 1)
HEAD(1, 32, 1)
HEAD(4, 8, 1)
HEAD(4, 16, 1)
HEAD(4, 32, 0)
