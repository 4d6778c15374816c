// SPDX-License-Identifier: MIT OR Apache-2.0
// NVFP4 product for 1 to 32 rows: out[r][n] = bf16(scale_2[n] * sum_k x[r][k] * e2m1[n][k] * e4m3[n][k / 16]).
// skinny.cuh says how it runs and nvfp4.cuh why its operands are exact. The one rounding to BF16 follows the
// product of the finished float32 sum with scale_2; logits are left in float32.
#include "nvfp4.cuh"
#include "skinny.cuh"

namespace rondo {

struct Nvfp4 {
  static constexpr int kStep = 128;  // a lane's 16 bytes are 32 codes: two groups
  static constexpr float kUnit = kWeightUnit;

  // Sixteen bytes of codes and their two scales; decode takes the words in order and drops each.
  struct Slice {
    uint4 codes;
    u32 stored_scales;
    GroupScales scales;

    RONDO_DEVICE void begin() { scales = decode_scales(stored_scales); }

    RONDO_DEVICE void decode(int chunk, u32 (&b)[4]) {
      b[0] = decode_pair<0>(codes.x, scales.first);
      b[1] = decode_pair<1>(codes.x, scales.first);
      b[2] = decode_pair<2>(codes.x, scales.first);
      b[3] = decode_pair<3>(codes.x, scales.first);
      codes = {codes.y, codes.z, codes.w, 0};
      if (chunk == 1) scales.first = scales.second;
    }
  };

  struct Lane {
    const e2m1x2* codes;
    const e4m3* scales;
    int inputs;

    RONDO_DEVICE Slice load(int tile, int step) const {
      return {load_once(codes + step * (kStep / 2) + 8 * tile * (inputs / 2)),
              load_u16(scales + step * (kStep / 16) + 8 * tile * (inputs / 16)),
              {}};
    }
  };

  const e2m1x2* codes;  // [N][K / 2], the even input in the low nibble
  const e4m3* scales;   // [N][K / 16], not negative

  RONDO_DEVICE Lane lane(int row, int t, int inputs) const {
    return {codes + static_cast<long long>(row) * (inputs / 2) + 16 * t,
            scales + static_cast<long long>(row) * (inputs / 16) + 2 * t, inputs};
  }
};

}  // namespace rondo

#define SKINNY(kTiles, kRows, kAhead)                                                                       \
  extern "C" __global__ void __launch_bounds__(512, 1) rondo_nvfp4_skinny_t##kTiles##_r##kRows##_a##kAhead( \
      __nv_bfloat16* out, const __nv_bfloat16* x, const e2m1x2* codes, const e4m3* scales,                  \
      const float* scale_2, int rows, int outputs, int inputs, int ldx, int ldo, int interleave) {          \
    rondo::skinny<kTiles, kRows, kAhead>(out, x, rondo::Nvfp4{codes, scales}, scale_2,                      \
                                         {rows, outputs, inputs, ldx, ldo, interleave});                    \
  }

SKINNY(1, 8, 0)
SKINNY(1, 16, 0)
SKINNY(1, 32, 0)
SKINNY(1, 8, 1)
SKINNY(1, 16, 1)
SKINNY(1, 32, 1)
SKINNY(2, 8, 0)
SKINNY(2, 16, 0)
SKINNY(2, 32, 0)
SKINNY(2, 8, 1)
SKINNY(2, 16, 1)
SKINNY(2, 32, 1)
SKINNY(4, 8, 0)
SKINNY(4, 16, 0)
SKINNY(4, 32, 0)  // with the next step's weights as well, its registers would spill
SKINNY(4, 8, 1)
SKINNY(4, 16, 1)

// The same sums times scale_2 in float32, for a head: its logits are not rounded.
#define LOGITS(kTiles, kRows)                                                                               \
  extern "C" __global__ void __launch_bounds__(512, 1) rondo_nvfp4_logits_t##kTiles##_r##kRows(             \
      float* out, const __nv_bfloat16* x, const e2m1x2* codes, const e4m3* scales, const float* scale_2,    \
      int rows, int outputs, int inputs, int ldx, int ldo, int interleave) {                                \
    rondo::skinny<kTiles, kRows, 0>(out, x, rondo::Nvfp4{codes, scales}, scale_2,                           \
                                    {rows, outputs, inputs, ldx, ldo, interleave});                         \
  }

LOGITS(1, 8)
LOGITS(1, 16)
LOGITS(1, 32)
LOGITS(4, 8)
LOGITS(4, 16)
LOGITS(4, 32)
