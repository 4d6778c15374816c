// SPDX-License-Identifier: MIT OR Apache-2.0
// Sixteen lanes as pieces of the machine's own vector width, for machines without 64-byte vectors.
//
// GCC keeps a vector wider than the machine's in memory and moves it about in general registers.
// An aggregate of two or four native vectors stays in vector registers, and every operator here is
// the lane-wise operator of the built-in 64-byte vector, so one source serves both.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

#include "rondo.h"

namespace rondo {

#if defined(__AVX2__)
constexpr size_t kPieceBytes = 32;
#else
constexpr size_t kPieceBytes = 16;
#endif

template <typename E>
struct Lanes {
  static constexpr size_t kPieces = 16 * sizeof(E) / kPieceBytes;
  static constexpr size_t kEach = kPieceBytes / sizeof(E);
  typedef E piece __attribute__((vector_size(kPieceBytes)));
  typedef std::make_index_sequence<kPieces> All;
  // What a comparison of these lanes yields.
  typedef Lanes<std::conditional_t<sizeof(E) == 4, int32_t, int16_t>> Mask;

  piece p[kPieces];

  Lanes() = default;
  template <typename... T, std::enable_if_t<sizeof...(T) == 16, int> = 0>
  RONDO_MEMBER Lanes(T... values) {
    const E each[16] = {E(values)...};
    __builtin_memcpy(p, each, sizeof p);
  }
  // The same bits as lanes of another kind.
  template <typename F>
  RONDO_MEMBER explicit Lanes(const Lanes<F>& other) : Lanes(other, All()) {}

  template <typename Op>
  RONDO_MEMBER static Lanes each(Op op) {
    return each(op, All());
  }
  RONDO_MEMBER static Lanes splat(E x) {
    return each([x](size_t) __attribute__((always_inline)) { return piece{} + x; });
  }
  RONDO_MEMBER static Lanes load(const void* from) {
    typedef piece loose __attribute__((aligned(1), may_alias));
    return each([from](size_t i) __attribute__((always_inline)) {
      return piece(static_cast<const loose*>(from)[i]);
    });
  }
  RONDO_MEMBER void store(void* to) const { store(to, All()); }
  RONDO_MEMBER E operator[](int lane) const { return p[size_t(lane) / kEach][size_t(lane) % kEach]; }

#define RONDO_LANES(op)                                                                            \
  RONDO_MEMBER friend Lanes operator op(const Lanes& a, const Lanes& b) {                          \
    return each([&](size_t i) __attribute__((always_inline)) { return piece(a.p[i] op b.p[i]); }); \
  }                                                                                                \
  RONDO_MEMBER friend Lanes operator op(const Lanes& a, E b) { return a op splat(b); }             \
  RONDO_MEMBER friend Lanes operator op(E a, const Lanes& b) { return splat(a) op b; }             \
  template <typename B>                                                                            \
  RONDO_MEMBER Lanes& operator op##=(const B& b) {                                                 \
    return *this = *this op b;                                                                     \
  }
  RONDO_LANES(+)
  RONDO_LANES(-)
  RONDO_LANES(*)
  RONDO_LANES(/)
  RONDO_LANES(&)
  RONDO_LANES(|)
  RONDO_LANES(^)
#undef RONDO_LANES
#define RONDO_LANES(op)                                                                            \
  RONDO_MEMBER friend Mask operator op(const Lanes& a, const Lanes& b) {                           \
    return Mask::each([&](size_t i) __attribute__((always_inline)) {                               \
      return typename Mask::piece(a.p[i] op b.p[i]);                                               \
    });                                                                                            \
  }                                                                                                \
  RONDO_MEMBER friend Mask operator op(const Lanes& a, E b) { return a op splat(b); }
  RONDO_LANES(==)
  RONDO_LANES(!=)
  RONDO_LANES(<)
  RONDO_LANES(<=)
  RONDO_LANES(>)
  RONDO_LANES(>=)
#undef RONDO_LANES
  RONDO_MEMBER friend Lanes operator<<(const Lanes& a, int n) {
    return each([&](size_t i) __attribute__((always_inline)) { return piece(a.p[i] << n); });
  }
  RONDO_MEMBER friend Lanes operator>>(const Lanes& a, int n) {
    return each([&](size_t i) __attribute__((always_inline)) { return piece(a.p[i] >> n); });
  }
  RONDO_MEMBER friend Lanes operator-(const Lanes& a) {
    return each([&](size_t i) __attribute__((always_inline)) { return piece(-a.p[i]); });
  }
  RONDO_MEMBER friend Lanes operator~(const Lanes& a) {
    return each([&](size_t i) __attribute__((always_inline)) { return piece(~a.p[i]); });
  }
  // Lanes of a where the mask is all ones, of b where it is zero.
  RONDO_MEMBER friend Lanes choose(const Mask& mask, const Lanes& a, const Lanes& b) {
    return each([&](size_t i) __attribute__((always_inline)) {
      return piece(mask.p[i] ? a.p[i] : b.p[i]);
    });
  }

 private:
  template <typename F, size_t... I>
  RONDO_MEMBER Lanes(const Lanes<F>& other, std::index_sequence<I...>) : p{piece(other.p[I])...} {}
  template <typename Op, size_t... I>
  RONDO_MEMBER static Lanes each(Op op, std::index_sequence<I...>) {
    Lanes r;
    ((r.p[I] = op(I)), ...);
    return r;
  }
  template <size_t... I>
  RONDO_MEMBER void store(void* to, std::index_sequence<I...>) const {
    typedef piece loose __attribute__((aligned(1), may_alias));
    ((static_cast<loose*>(to)[I] = p[I]), ...);
  }
};

// Lane-wise conversion between float and int32.
template <typename To, typename From>
RONDO_INLINE Lanes<To> convert(const Lanes<From>& v) {
  typedef typename Lanes<To>::piece piece;
  return Lanes<To>::each(
      [&](size_t i) __attribute__((always_inline)) { return __builtin_convertvector(v.p[i], piece); });
}

}  // namespace rondo
