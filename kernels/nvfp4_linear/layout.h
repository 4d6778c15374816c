// SPDX-License-Identifier: MIT OR Apache-2.0
// How NVFP4 weights lie in memory for the vector units, for products that read rows as `Activations` do.
//
// A tile is 16 outputs; a group of 16 inputs is 128 bytes of codes in the first plane and 16 bytes
// of scales in the second, and the groups of two neighbouring tiles alternate in both:
//   codes: two vectors of 16 lanes, one lane an output. Vector h covers inputs 8h..8h+7; the low
//     half of a lane holds the codes of the four even inputs (lowest first), the high half those of
//     the odd ones: (lane >> 4j) indexes the pair (8h+2j, 8h+2j+1) in both halves at once.
//   scales: the e4m3 value with a normalised exponent, (exponent + 10) << 3 | mantissa, so that
//     byte << 20 plus a constant is its fp32 form; subnormal e4m3 needs no special case. A zero
//     scale is stored as zero codes.
#pragma once
#include <stdint.h>

namespace rondo {

template <class Activations>
struct Nvfp4Layout : Activations {
  static constexpr int kUnit = 128;
  static constexpr int kScaleUnit = 16;
  static int64_t weight_offset(int32_t k) { return int64_t(k) / 16 * 2 * kUnit; }
  static int64_t scale_offset(int32_t k) { return int64_t(k) / 16 * 2 * kScaleUnit; }
  static int64_t scale_second(int64_t) { return kScaleUnit; }
};

}  // namespace rondo
