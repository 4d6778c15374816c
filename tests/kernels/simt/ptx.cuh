// SPDX-License-Identifier: MIT OR Apache-2.0
// The functions of kernels/cuda/ptx.cuh in plain C++, for the host build: every conversion by the definition of
// its format, the matrix instruction by its fragment layout. RONDO_FP4_CONVERT comes from the compiler's command
// line, so that both decoders are built.
#pragma once

#include "simt.h"

using u32 = unsigned int;
using e4m3 = unsigned char;
using e2m1x2 = unsigned char;

struct __nv_bfloat16 {
  uint16_t bits;
};

#define RONDO_DEVICE inline

namespace rondo {

inline float float_of_bits(u32 bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

inline u32 bits_of_float(float v) {
  u32 bits;
  memcpy(&bits, &v, 4);
  return bits;
}

// A value of `exponent_bits` and `mantissa_bits` with subnormals, no infinities asked for.
inline float small_float(u32 bits, int exponent_bits, int mantissa_bits) {
  const u32 mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const float magnitude = exponent ? __builtin_ldexpf(float(mantissa | 1u << mantissa_bits), exponent - bias - mantissa_bits)
                                   : __builtin_ldexpf(float(mantissa), 1 - bias - mantissa_bits);
  return bits >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

inline u32 f16_of_float(float value) {  // to nearest, ties to even; by search, so without a shortcut to share a fault
  const u32 sign = bits_of_float(value) >> 31 << 15;
  const float magnitude = __builtin_fabsf(value);
  u32 low = 0, high = 0x7C00;  // codes rise with their values
  while (low + 1 < high) {
    const u32 middle = (low + high) / 2;
    (small_float(middle, 5, 10) <= magnitude ? low : high) = middle;
  }
  const double below = double(magnitude) - small_float(low, 5, 10);
  const double above = (high == 0x7C00 ? 65536.0 : small_float(high, 5, 10)) - double(magnitude);
  return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

inline u32 bf16_bits(float value) {  // to nearest, ties to even
  const u32 bits = bits_of_float(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

inline float bf16_value(u32 bits) { return float_of_bits(bits << 16); }

template <class F>
u32 by_halves(u32 a, u32 b, F f) {
  return f(a & 0xFFFF, b & 0xFFFF) | f(a >> 16, b >> 16) << 16;
}

template <class T>
T read_as(const void* at) {
  T v;
  memcpy(&v, simt::readable(at, sizeof v, sizeof v), sizeof v);
  return v;
}

inline uint4 load_once(const void* at) { return read_as<uint4>(at); }
inline uint4 load_shared_by_warps(const void* at) { return read_as<uint4>(at); }
inline u32 load_u32(const void* at) { return read_as<u32>(at); }
inline u32 load_u16(const void* at) { return read_as<uint16_t>(at); }
inline u32 load_u8(const void* at) { return read_as<uint8_t>(at); }
inline void store_16_bytes(void* at, uint4 v) { memcpy(at, &v, sizeof v); }

template <u32 kSelector>
u32 permute(u32 low, u32 high) {
  static_assert(!(kSelector & 0x8888), "sign replication is not used");
  const uint64_t bytes = uint64_t(high) << 32 | low;
  u32 r = 0;
  for (int i = 0; i < 4; ++i) r |= u32(bytes >> 8 * (kSelector >> 4 * i & 7) & 0xFF) << 8 * i;
  return r;
}

template <int kByte>
u32 f16x2_of_e2m1x2(u32 word) {
  const u32 byte = word >> 8 * kByte & 0xFF;
  return f16_of_float(small_float(byte & 15, 2, 1)) | f16_of_float(small_float(byte >> 4, 2, 1)) << 16;
}

inline u32 f16x2_of_e4m3x2(u32 pair) {
  return f16_of_float(small_float(pair & 0xFF, 4, 3)) | f16_of_float(small_float(pair >> 8 & 0xFF, 4, 3)) << 16;
}

inline u32 multiply_f16x2(u32 a, u32 b) {
  return by_halves(a, b, [](u32 p, u32 q) { return f16_of_float(small_float(p, 5, 10) * small_float(q, 5, 10)); });
}

inline u32 bf16x2_of_f16x2(u32 pair) {
  return by_halves(pair, 0, [](u32 p, u32) { return bf16_bits(small_float(p, 5, 10)); });
}

inline u32 multiply_bf16x2(u32 a, u32 b) {
  return by_halves(a, b, [](u32 p, u32 q) { return bf16_bits(bf16_value(p) * bf16_value(q)); });
}

inline __nv_bfloat16 bf16_of_f32(float value) { return {uint16_t(bf16_bits(value))}; }

inline void compute_shuffle_xor(simt::Meeting& m) {
  for (unsigned lane = 0; lane < simt::kWarp; ++lane) {
    if (m.in[lane][1] != m.in[0][1]) simt::fail("lanes that exchange by different masks");
    m.out[lane][0] = m.in[lane ^ (m.in[lane][1] % simt::kWarp)][0];
  }
}

inline float shuffle_xor(float value, int mask) {
  const u32 in[2] = {bits_of_float(value), static_cast<u32>(mask)};
  return float_of_bits(*simt::meet(in, 2, compute_shuffle_xor));
}

// A chain of float64 products in the order of K, one rounding of the chain and the sum so far to float32. The
// hardware's own order inside an instruction is not documented; the twin of the tests has this one.
inline void compute_mma(simt::Meeting& m) {
  const auto a = [&](int row, int k) {
    const u32 word = m.in[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
    return bf16_value(k % 2 ? word >> 16 : word & 0xFFFF);
  };
  const auto b = [&](int k, int column) {
    const u32 word = m.in[column * 4 + k % 8 / 2][4 + k / 8];
    return bf16_value(k % 2 ? word >> 16 : word & 0xFFFF);
  };
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      const int lane = row % 8 * 4 + column / 2, place = row / 8 * 2 + column % 2;
      double chain = float_of_bits(m.in[lane][6 + place]);
      for (int k = 0; k < 16; ++k) chain += double(a(row, k)) * b(k, column);
      m.out[lane][place] = bits_of_float(float(chain));
    }
  }
}

inline void mma_m16n8k16(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 in[10] = {a0, a1, a2, a3, b0, b1, bits_of_float(sum[0]), bits_of_float(sum[1]), bits_of_float(sum[2]),
                      bits_of_float(sum[3])};
  const u32* out = simt::meet(in, 10, compute_mma);
  for (int i = 0; i < 4; ++i) sum[i] = float_of_bits(out[i]);
}

}  // namespace rondo
