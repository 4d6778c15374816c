// SPDX-License-Identifier: MIT OR Apache-2.0
// The NVFP4 product with 8-bit activations (product_int8.h); weights as in layout.h.
//
// One order for every row count and every instruction set: the sum of a group is exact, then
// acc = fma(group, scale * step, acc), groups ascending. A scale times a step is exact, and is an addition
// to its exponent: stored scales begin at 2^-126 as fp32, steps are stored by what is added. A group times
// both is exact, too, so that levels without fma have the same bits where it is within fp32.
#include "layout.h"
#include "product_int8.h"

namespace {

using rondo::TileArgs;

typedef rondo::Nvfp4Layout<rondo::Int8Activations> Layout;

}  // namespace

#if defined(__AVX2__)
#include "int8_avx.h"
#elif defined(RONDO_NEON)
#include "int8_neon.h"
#else
#include "int8_plain.h"
#endif

typedef rondo_linear_args rondo_nvfp4_linear_int8_args;
typedef rondo_linear_args rondo_nvfp4_linear_int8_pack_args;

RONDO_OP(nvfp4_linear_int8) { rondo::product<Nvfp4Int8>(a, worker, workers); }
RONDO_OP(nvfp4_linear_int8_pack) { rondo::pack_rows<Nvfp4Int8>(a, worker, workers); }
