// SPDX-License-Identifier: MIT OR Apache-2.0
// Where a position lives in the key and value cache of one layer.
//
// Keys: [Hkv][positions/32][D/2][32] of pairs. Inside a block of 32 positions the position is the
// lane, so a score needs no sum across lanes. Values: [Hkv][positions][D], rows as they come. The
// capacity is a multiple of 32 positions. Elements are bf16, or e4m3 with a scale a position and
// head, float32 [Hkv][positions] for keys and for values: an element is its code times its scale.
#ifndef RONDO_KV_LAYOUT_H
#define RONDO_KV_LAYOUT_H

#include <cstdint>

constexpr int kBlock = 32;
constexpr int kMaxDim = 256;

// Pair: two neighbouring elements of a key; Element: one of a value.
template <typename Pair, typename Element>
struct KvPlanes {
  Pair* keys;
  Element* values;
  int64_t capacity;
  int64_t dim;

  Pair* key_block(int64_t head, int64_t block) const {
    return keys + (head * (capacity / kBlock) + block) * (dim / 2) * kBlock;
  }
  // Pair i of the position's key is at [i * 32].
  Pair* key(int64_t head, int64_t position) const {
    return key_block(head, position / kBlock) + position % kBlock;
  }
  Element* value(int64_t head, int64_t position) const {
    return values + (head * capacity + position) * dim;
  }
  // `pairs` holds D/2 pairs, `row` D elements.
  void get(int64_t head, int64_t position, Pair* pairs, Element* row) const {
    const Pair* column = key(head, position);
    for (int64_t i = 0; i < dim / 2; i++) pairs[i] = column[i * kBlock];
    const Element* from = value(head, position);
    for (int64_t c = 0; c < dim; c++) row[c] = from[c];
  }
  void put(int64_t head, int64_t position, const Pair* pairs, const Element* row) const {
    Pair* column = key(head, position);
    for (int64_t i = 0; i < dim / 2; i++) column[i * kBlock] = pairs[i];
    Element* to = value(head, position);
    for (int64_t c = 0; c < dim; c++) to[c] = row[c];
  }
  void copy(int64_t head, int64_t from, int64_t to) const {
    Pair pairs[kMaxDim / 2];
    Element row[kMaxDim];
    get(head, from, pairs, row);
    put(head, to, pairs, row);
  }
};

// The cache as kernels are handed it: the planes of one of the two kinds of elements.
struct KvCache {
  void* keys;
  void* values;
  float* key_scales;  // null: bf16
  float* value_scales;
  int64_t capacity;
  int64_t dim;

  bool scaled() const { return key_scales != nullptr; }
  KvPlanes<uint32_t, uint16_t> bf16() const {
    return {static_cast<uint32_t*>(keys), static_cast<uint16_t*>(values), capacity, dim};
  }
  KvPlanes<uint16_t, uint8_t> e4m3() const {
    return {static_cast<uint16_t*>(keys), static_cast<uint8_t*>(values), capacity, dim};
  }
  int64_t scale_at(int64_t head, int64_t position) const { return head * capacity + position; }
};

#endif
