// SPDX-License-Identifier: MIT OR Apache-2.0
// Where a position lives in the key and value cache of one layer.
//
// Keys: [Hkv][positions/32][D/2][32] of bf16 pairs. Inside a block of 32 positions the position is
// the lane, so a score needs no sum across lanes. Values: [Hkv][positions][D] bf16, rows as they
// come. The capacity is a multiple of 32 positions.
#ifndef RONDO_KV_LAYOUT_H
#define RONDO_KV_LAYOUT_H

#include <cstdint>

constexpr int kBlock = 32;

struct KvCache {
  uint32_t* keys;
  uint16_t* values;
  int64_t capacity;
  int64_t dim;

  uint32_t* key_block(int64_t head, int64_t block) const {
    return keys + (head * (capacity / kBlock) + block) * (dim / 2) * kBlock;
  }
  // Pair i of the position's key is at [i * 32].
  uint32_t* key(int64_t head, int64_t position) const {
    return key_block(head, position / kBlock) + position % kBlock;
  }
  uint16_t* value(int64_t head, int64_t position) const {
    return values + (head * capacity + position) * dim;
  }
};

#endif
