// SPDX-License-Identifier: MIT OR Apache-2.0
// One device function an instruction: the only file of the CUDA kernels that holds PTX.
//
// A register of two 16-bit values (f16x2, bf16x2) is a u32 whose low half comes first. The host build of
// tests/kernels/simt replaces this file by one of the same functions in plain C++; everything that is more
// than one instruction lives elsewhere and is compiled by both.
#pragma once

#include <cuda_bf16.h>

using u32 = unsigned int;
using e4m3 = unsigned char;    // one FP8 value of 4 exponent and 3 mantissa bits
using e2m1x2 = unsigned char;  // two FP4 values, the even one in the low nibble

// The conversions from e2m1 exist on architecture-specific targets alone (the `a` of sm_121a): a plain sm_121
// build must not ask for them, so the architecture's number is not enough.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM110_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define RONDO_FP4_CONVERT 1
#else
#define RONDO_FP4_CONVERT 0
#endif

#define RONDO_DEVICE __device__ __forceinline__

namespace rondo {

// 16 bytes that this kernel reads once: they take no room in L1, and the line's other half comes along.
RONDO_DEVICE uint4 load_once(const void* at) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(at));
  return v;
}

// 16 bytes that other warps read as well.
RONDO_DEVICE uint4 load_shared_by_warps(const void* at) {
  uint4 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(at));
  return v;
}

RONDO_DEVICE u32 load_u32(const void* at) {
  u32 v;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}

RONDO_DEVICE u32 load_u8(const void* at) {
  unsigned short v;
  asm("ld.global.nc.u8 %0, [%1];" : "=h"(v) : "l"(at));
  return v;
}

RONDO_DEVICE u32 load_u16(const void* at) {
  unsigned short v;
  asm("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(at));
  return v;
}

RONDO_DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }

// The value that lane (own lane ^ mask) brings; all lanes of the warp meet here.
RONDO_DEVICE float shuffle_xor(float value, int mask) {
  float r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xFFFFFFFF;" : "=f"(r) : "f"(value), "r"(mask));
  return r;
}

RONDO_DEVICE void store_16_bytes(void* at, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Byte i of the result is byte (selector >> 4 i) & 7 of the eight bytes low | high << 32.
template <u32 kSelector>
RONDO_DEVICE u32 permute(u32 low, u32 high) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "n"(kSelector));
  return r;
}

#if RONDO_FP4_CONVERT
// Two e2m1 codes, byte kByte of `word`, as f16x2: exact.
template <int kByte>
RONDO_DEVICE u32 f16x2_of_e2m1x2(u32 word) {
  u32 r;
  if constexpr (kByte == 0) {
    asm("{.reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, a;}" : "=r"(r) : "r"(word));
  } else if constexpr (kByte == 1) {
    asm("{.reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, b;}" : "=r"(r) : "r"(word));
  } else if constexpr (kByte == 2) {
    asm("{.reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, c;}" : "=r"(r) : "r"(word));
  } else {
    asm("{.reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, d;}" : "=r"(r) : "r"(word));
  }
  return r;
}

// Two e4m3 values, the low 16 bits of `pair`, as f16x2: exact.
RONDO_DEVICE u32 f16x2_of_e4m3x2(u32 pair) {
  u32 r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(static_cast<unsigned short>(pair)));
  return r;
}

RONDO_DEVICE u32 multiply_f16x2(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

RONDO_DEVICE u32 bf16x2_of_f16x2(u32 pair) {
  u32 r;
  asm("{.reg .f16 a, b; .reg .f32 c, d; mov.b32 {a, b}, %1; cvt.f32.f16 c, a; cvt.f32.f16 d, b;"
      " cvt.rn.bf16x2.f32 %0, d, c;}"
      : "=r"(r)
      : "r"(pair));
  return r;
}
#endif

// a * b by halves, subnormals kept. Adding -0 leaves every product as it is; sm_80 has no plain product.
RONDO_DEVICE u32 multiply_bf16x2(u32 a, u32 b) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}

RONDO_DEVICE __nv_bfloat16 bf16_of_f32(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return __ushort_as_bfloat16(bits);
}

// sum[16 x 8] += A[16 x 16] * B[16 x 8] in bf16 with float32 sums. With g = lane / 4 and t = lane % 4:
//   a0: A[g][2t, 2t+1]        a1: A[g+8][2t, 2t+1]     a2: A[g][2t+8, 2t+9]   a3: A[g+8][2t+8, 2t+9]
//   b0: B[2t, 2t+1][g]        b1: B[2t+8, 2t+9][g]
//   sum[0, 1]: C[g][2t, 2t+1] sum[2, 3]: C[g+8][2t, 2t+1]
RONDO_DEVICE void mma_m16n8k16(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace rondo
