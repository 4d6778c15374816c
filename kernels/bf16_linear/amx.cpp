// SPDX-License-Identifier: MIT OR Apache-2.0
// bf16 tiles for the matrix unit: 16 outputs x 32 inputs as they are.
#if defined(__AMX_BF16__)
#include "product_amx.h"

namespace {

struct Bf16 : rondo::Activations {
  static constexpr int kUnit = rondo::kTileBytes;
  static constexpr bool kStored = true, kScaledBlocks = false;
};

}  // namespace

typedef rondo_linear_args rondo_bf16_linear_amx_args;

RONDO_OP(bf16_linear_amx) { rondo::matrix_product<Bf16>(a, worker, workers); }
#endif
