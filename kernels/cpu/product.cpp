// SPDX-License-Identifier: MIT OR Apache-2.0
// The pack step: workers repack the activation blocks of a long run of rows together, once for all
// products that read them.
#include "product.h"

typedef rondo_linear_args rondo_pack_rows_args;

RONDO_OP(pack_rows) {
  const int32_t blocks = rondo::row_blocks(a->rows);
  const int64_t row_bytes = int64_t(a->k_padded) * rondo::kActivationBytes;
  const rondo_range mine = rondo_share(blocks, worker, workers);
  for (int64_t b = mine.begin; b < mine.end; b++) {
    const int32_t row = rondo::block_begin(a->rows, blocks, int32_t(b));
    const int32_t end = rondo::block_begin(a->rows, blocks, int32_t(b) + 1);
    rondo::pack_block(a, row, end - row, a->packed + row * row_bytes);
  }
}

// Bytes of one repacked activation.
RONDO_API int64_t rondo_activation_bytes(void) { return rondo::kActivationBytes; }
