// SPDX-License-Identifier: MIT OR Apache-2.0
// BF16 weights for the library's product, which pays above some thousand rows: out[n][k] = e2m1[n][k] * e4m3[n][k /
// 16], exactly (nvfp4.cuh). scale_2 is left to the finished sum: in the weight it would cost a rounding.
//
// A thread expands eight codes. Grid: ceil(words / blockDim.x), words = N * K / 8; K a multiple of 16.
#include "nvfp4.cuh"

extern "C" __global__ void __launch_bounds__(256) rondo_nvfp4_expand(
    __nv_bfloat16* out, const e2m1x2* codes, const e4m3* scales, long long words) {
  using namespace rondo;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= words) return;
  const u32 word = load_u32(codes + 4 * i), scale = decode_scales(load_u8(scales + i / 2)).first;
  const u32 unit = 0x43804380u;  // 2^8, which decode_pair leaves out
  store_16_bytes(out + 8 * i, {multiply_bf16x2(decode_pair<0>(word, scale), unit),
                               multiply_bf16x2(decode_pair<1>(word, scale), unit),
                               multiply_bf16x2(decode_pair<2>(word, scale), unit),
                               multiply_bf16x2(decode_pair<3>(word, scale), unit)});
}
