// SPDX-License-Identifier: MIT OR Apache-2.0
// Gather of embedding rows by token ids that are read when the tape runs.
#include "rondo.h"

#include <cstdint>
#include <cstring>

struct rondo_embedding_args {
  const uint16_t* table;  // [vocabulary][width] bf16
  const int32_t* ids;     // [rows]
  uint16_t* out;
  int64_t out_stride;
  int32_t rows;
  int32_t vocabulary;
  int32_t width;
};

// An id outside the table gives a row of NaN, which the argmax reports; memory is never misread.
RONDO_OP(embedding) {
  for (int64_t row = worker; row < a->rows; row += workers) {
    const int32_t id = a->ids[row];
    uint16_t* out = a->out + row * a->out_stride;
    if (id < 0 || id >= a->vocabulary) {
      for (int c = 0; c < a->width; c++) out[c] = 0x7fc0;
    } else {
      std::memcpy(out, a->table + int64_t(id) * a->width, size_t(a->width) * 2);
    }
  }
}
