// SPDX-License-Identifier: MIT OR Apache-2.0
// Rotation of head vectors: out[n] = bf16(second * H (first * x[n])), H the orthonormal Walsh-Hadamard transform.
//
// A warp takes a vector: lane t holds the kDim / 32 elements from t * kDim / 32 on. Butterflies of strides below
// kDim / 32 are in its registers, those above between lanes, by five exchanges. Every sum is one float32 addition,
// in the order of the strides, and the result is rounded once: reference.py has the same bits. Nothing depends on
// the other vectors, nothing goes through shared memory.
//
// Grid: vectors / 4, rounded up. Block: 4 warps. x and out are contiguous and aligned to 16 bytes.
#include <ptx.cuh>  // angle brackets: the host build puts its own first

namespace rondo {

template <int kDim>
RONDO_DEVICE void rotate(__nv_bfloat16* out, const __nv_bfloat16* x, const float* first, const float* second,
                         float unit, int vectors) {
  constexpr int kOwn = kDim / 32;
  const int lane = threadIdx.x % 32, vector = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (vector >= vectors) return;
  const long long at = static_cast<long long>(vector) * kDim + lane * kOwn;
  float v[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; i += 2) {
    const u32 pair = load_u32(x + at + i);
    v[i] = float_of_bits(pair << 16) * float_of_bits(load_u32(first + lane * kOwn + i));
    v[i + 1] = float_of_bits(pair & 0xFFFF0000u) * float_of_bits(load_u32(first + lane * kOwn + i + 1));
  }
#pragma unroll
  for (int stride = 1; stride < kOwn; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i & stride) continue;
      const float low = v[i], high = v[i + stride];
      v[i] = low + high;
      v[i + stride] = low - high;
    }
  }
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float other = shuffle_xor(v[i], mask);
      v[i] = lane & mask ? other - v[i] : v[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    out[at + i] = bf16_of_f32(v[i] * (float_of_bits(load_u32(second + lane * kOwn + i)) * unit));
  }
}

}  // namespace rondo

#define HADAMARD(kDim)                                                                                       \
  extern "C" __global__ void __launch_bounds__(128) rondo_hadamard_d##kDim(                                  \
      __nv_bfloat16* out, const __nv_bfloat16* x, const float* first, const float* second, float unit, int vectors) { \
    rondo::rotate<kDim>(out, x, first, second, unit, vectors);                                               \
  }

HADAMARD(64)
HADAMARD(128)
HADAMARD(256)
HADAMARD(512)
