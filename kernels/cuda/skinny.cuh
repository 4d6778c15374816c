// SPDX-License-Identifier: MIT OR Apache-2.0
// The product of 1 to 32 rows with weights that are read once: out[r][n] = scale[n] * sum_k x[r][k] * w[n][k].
//
// Bound by reading the weights, so nothing of them goes through shared memory: a lane reads 16 bytes of a weight
// row, decodes them into registers of two BF16 weights, and such a register is a B operand of mma.m16n8k16. The
// activations are the A operand: 16 rows an instruction; 17 to 32 rows take two instructions a weight tile.
//
// Layout. A block owns 8 * kTiles weight rows; its warps split K in steps of Weights::kStep inputs. In a step lane
// (g, t), g = lane / 4 and t = lane % 4, holds 16 bytes of weight row g: the inputs from t * kStep / 4 on. They
// are taken eight at a time (a chunk), two instructions each. The K slots 2t, 2t+1, 2t+8, 2t+9 of an instruction
// are four neighbouring inputs; x is read in the same order, so which slot an input sits in does not matter.
//
// Order of the sum, a function of (K, warps, interleave) alone and never of the rows: within a warp its steps
// rising, chunk by chunk; then the warps' sums from warp 0 up. No atomics. Rows of A do not meet, so a row has
// the same bits alone and among 32, whichever entry computes it. Rows past the last repeat it and are not stored;
// where N is no multiple of 8 kTiles the last block starts early and repeats outputs of its neighbour with the
// same bits.
//
// Grid: N / (8 kTiles), rounded up. Block: 32 threads a warp, at most 512. Dynamic shared memory: warps * 16 *
// pitch floats. x and the weights are aligned to 16 bytes, ldx is a multiple of 8, K of kStep, N is at least
// 8 kTiles, rows * ldx is below 2^31.
#pragma once

#include <ptx.cuh>  // angle brackets: the host build puts its own first

namespace rondo {

struct Shape {
  int rows, outputs, inputs, ldx, ldo, interleave;
};

RONDO_DEVICE void store(float* at, float value) { *at = value; }
RONDO_DEVICE void store(__nv_bfloat16* at, float value) { *at = bf16_of_f32(value); }

// Floats between rows of a warp's partial sums; the pad puts the eight rows that a warp stores into other banks.
template <int kTiles>
RONDO_DEVICE constexpr int pitch() {
  return 8 * kTiles + (kTiles == 1 ? 0 : 8);
}

// kRows: 8, 16 or 32 rows are multiplied. kAhead: a step's weights are requested one step ahead. Weights says how
// a row is stored: kStep, kUnit (the sum is of weights times kUnit, a power of two), Slice (what a lane holds of a
// row in a step), load(row, t, step) and decode(slice, b): the four B registers of the slice's next chunk.
template <int kTiles, int kRows, int kAhead, class Weights, class Out>
RONDO_DEVICE void skinny(Out* out, const __nv_bfloat16* x, const Weights& weights, const float* scale, Shape shape) {
  constexpr int kBlocks = kRows == 32 ? 2 : 1;  // instructions a weight tile
  constexpr int kHalves = kRows == 8 ? 1 : 2;   // rows g, or rows g and g + 8, of an instruction
  constexpr int kChunks = Weights::kStep / 32;
  using Slice = typename Weights::Slice;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int first_output = min(static_cast<int>(blockIdx.x) * 8 * kTiles, shape.outputs - 8 * kTiles);

  int x_at[kBlocks * kHalves];
#pragma unroll
  for (int i = 0; i < kBlocks * kHalves; ++i) {
    x_at[i] = min(8 * i + g, shape.rows - 1) * shape.ldx + t * (Weights::kStep / 4);
  }

  const int steps = shape.inputs / Weights::kStep, each = (steps + warps - 1) / warps;
  const int stride = shape.interleave ? warps : 1;
  const int begin = shape.interleave ? warp : warp * each;
  const int end = shape.interleave ? steps : min(steps, begin + each);

  const typename Weights::Lane own = weights.lane(first_output + g, t, shape.inputs);
  float sum[kBlocks][kTiles][4] = {};
  Slice slice[kTiles] = {};
  if (kAhead && begin < end) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) slice[tile] = own.load(tile, begin);
  }
#pragma unroll 1
  for (int step = begin; step < end; step += stride) {
    Slice next[kTiles] = {};
    if (!kAhead || step + stride < end) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) next[tile] = own.load(tile, kAhead ? step + stride : step);
    }
    if constexpr (!kAhead) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) slice[tile] = next[tile];
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) slice[tile].begin();
    // Chunk by chunk where the activations of a whole step would not fit the registers.
#pragma unroll(kTiles * kBlocks == 8 ? 1 : kChunks)
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint4 a[kBlocks * kHalves];
#pragma unroll
      for (int i = 0; i < kBlocks * kHalves; ++i) {
        a[i] = load_shared_by_warps(x + (x_at[i] + step * Weights::kStep + 8 * chunk));
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        u32 b[4];
        slice[tile].decode(chunk, b);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          const uint4 low = a[m * kHalves];
          const uint4 high = kHalves == 2 ? a[m * kHalves + kHalves - 1] : uint4{0, 0, 0, 0};
          mma_m16n8k16(sum[m][tile], low.x, high.x, low.y, high.y, b[0], b[1]);
          mma_m16n8k16(sum[m][tile], low.z, high.z, low.w, high.w, b[2], b[3]);
        }
      }
    }
    if constexpr (kAhead) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) slice[tile] = next[tile];
    }
  }

  // Shared memory: float partials[warp][row 0..15][pitch]: a warp's 16 rows of 8 kTiles sums, padded.
  extern __shared__ float partials[];
  constexpr int kPitch = pitch<kTiles>(), kPlane = 16 * kPitch, kWidth = 8 * kTiles;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    if (m) __syncthreads();
    float* corner = partials + warp * kPlane + g * kPitch + 2 * t;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      *reinterpret_cast<float2*>(corner + 8 * tile) = {sum[m][tile][0], sum[m][tile][1]};
      if constexpr (kHalves == 2) {
        *reinterpret_cast<float2*>(corner + 8 * kPitch + 8 * tile) = {sum[m][tile][2], sum[m][tile][3]};
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 8 * kHalves * kWidth; i += blockDim.x) {
      const int row = 16 * m + i / kWidth, n = first_output + i % kWidth;
      if (row >= shape.rows) continue;
      const float* at = partials + (i / kWidth) * kPitch + i % kWidth;
      float total = at[0];
      for (int w = 1; w < warps; ++w) total += at[w * kPlane];
      store(out + static_cast<long long>(row) * shape.ldo + n, total * (scale[n] * (1 / Weights::kUnit)));
    }
  }
}

}  // namespace rondo
