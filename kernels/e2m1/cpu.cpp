// SPDX-License-Identifier: MIT OR Apache-2.0
// FP32 to E2M1 codes, two a byte (the even element in the low nibble), and back.
#include "vec.h"

struct rondo_e2m1_args {
  const float* values;    // encode: read; null when decoding
  const uint8_t* packed;  // decode: read; null when encoding
  void* out;              // encode: uint8 [count / 2]; decode: fp32 [count]
  int64_t count;          // elements, even
};
typedef rondo_e2m1_args rondo_e2m1_encode_args;
typedef rondo_e2m1_args rondo_e2m1_decode_args;

namespace {

// Magnitude bits at which the code steps up: ties go to the even code.
const int32_t kThresholds[7] = {0x3E800001, 0x3F400000, 0x3FA00001, 0x3FE00000,
                                0x40200001, 0x40600000, 0x40A00001};
const float kValues[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                           -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

// Integer compares, so that a NaN passes every threshold whatever the floating-point mode.
RONDO_INLINE v16i encode16(v16f x) {
  const v16i bits = (v16i)x, magnitude = bits & 0x7fffffff;
  v16i code = {};
  for (int i = 0; i < 7; i++) code -= (v16i)(magnitude >= kThresholds[i]);
  return code | (v16i)((v16u)bits >> 31 << 3);
}

}  // namespace

RONDO_OP(e2m1_encode) {
  const rondo_range mine = rondo_share((a->count + 15) / 16, worker, workers);
  uint8_t* out = static_cast<uint8_t*>(a->out);
  for (int64_t i = mine.begin * 16; i < mine.end * 16; i += 16) {
    const int n = a->count - i < 16 ? int(a->count - i) : 16;
    const v16i code = encode16(load16_part(a->values + i, n));
    for (int j = 0; j < n; j += 2) out[(i + j) / 2] = uint8_t(code[j] | code[j + 1] << 4);
  }
}

RONDO_OP(e2m1_decode) {
  const rondo_range mine = rondo_share(a->count / 2, worker, workers);
  float* out = static_cast<float*>(a->out);
  for (int64_t i = mine.begin; i < mine.end; i++) {
    out[2 * i] = kValues[a->packed[i] & 15];
    out[2 * i + 1] = kValues[a->packed[i] >> 4];
  }
}
