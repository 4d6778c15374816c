// SPDX-License-Identifier: MIT OR Apache-2.0
// NVFP4 weights as operands of a BF16 matrix instruction: e2m1 code times e4m3 group scale, exactly.
//
// A code needs 2 significant bits and a scale 4, so their product needs 6 and lies between 2^-10 and 2688: it
// is exact in FP16 (11 bits) and in BF16 (8 bits). The operands are BF16 and not FP16 because the activations
// are: they enter the instruction as they are stored, with their whole range, and no row needs a scale of its
// own. What the instruction gets is the product times kWeightUnit; the caller gives the power of two back to
// the finished sum. Two decoders give the same bits:
//
// - with the FP4 conversions (sm_100a to sm_121a): codes and scales to FP16 by one conversion each, the
//   product in FP16, and the exact way from FP16 to BF16;
// - without: a code's three magnitude bits laid over BF16's lowest exponent bits and highest mantissa bit are
//   2^-126 times its value, an e4m3 byte laid there 2^-120 times its own. One BF16 product per pair of weights
//   gives both powers back. The smallest code passes through a BF16 subnormal, which fma.rn.bf16x2 keeps.
#pragma once

#include <ptx.cuh>  // angle brackets: the host build puts its own first

namespace rondo {

// Low enough for the second decoder: a scale of 448 times 2^126 would leave BF16, times 2^118 it does not.
constexpr float kWeightUnit = 1.0f / 256;

// The two scales of 32 neighbouring weights of one row, each in both halves of a register.
struct GroupScales {
  u32 first, second;
};

#if RONDO_FP4_CONVERT

RONDO_DEVICE GroupScales decode_scales(u32 pair) {
  const u32 both = multiply_f16x2(f16x2_of_e4m3x2(pair & 0x7F7Fu), 0x1C001C00u);  // times 2^-8, exact
  return {permute<0x1010>(both, 0), permute<0x3232>(both, 0)};
}

// Weights 2 kByte and 2 kByte + 1 of the eight codes in `word`, as bf16x2 times kWeightUnit.
template <int kByte>
RONDO_DEVICE u32 decode_pair(u32 word, u32 scale) {
  return bf16x2_of_f16x2(multiply_f16x2(f16x2_of_e2m1x2<kByte>(word), scale));
}

#else

RONDO_DEVICE u32 bf16_scale(u32 e4m3_in_both_halves) {
  // 2^-120 of the layout becomes 2^118 in two steps, either of which BF16 can hold.
  const u32 two_to_119 = 0x7B007B00u;
  const u32 laid = (e4m3_in_both_halves & 0x007F007Fu) << 4;
  return multiply_bf16x2(multiply_bf16x2(laid, two_to_119), two_to_119);
}

RONDO_DEVICE GroupScales decode_scales(u32 pair) {
  return {bf16_scale(permute<0x4040>(pair, 0)), bf16_scale(permute<0x4141>(pair, 0))};
}

template <int kByte>
RONDO_DEVICE u32 decode_pair(u32 word, u32 scale) {
  // Each half's top nibble is a code: the byte's low nibble in the low half, its high nibble in the high half.
  constexpr u32 kSelector = (4u + kByte) << 12 | (4u + kByte) << 8 | kByte << 4 | kByte;
  const u32 codes = permute<kSelector>(word << 4, word);
  return multiply_bf16x2((codes & 0x80008000u) | ((codes >> 6) & 0x01C001C0u), scale);
}

#endif

}  // namespace rondo
