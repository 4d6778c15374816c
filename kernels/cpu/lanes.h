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
  typedef piece loose __attribute__((aligned(1), may_alias));
  // What a comparison of these lanes yields.
  typedef Lanes<std::conditional_t<sizeof(E) == 4, int32_t, int16_t>> Mask;

  piece p[kPieces];

  // Returns the Result whose pieces i are `value`.
#define RONDO_PIECES(Result, value)             \
  Result r;                                     \
  {                                             \
    constexpr size_t i = 0;                     \
    r.p[i] = (typename Result::piece)(value);   \
  }                                             \
  if constexpr (Result::kPieces > 1) {          \
    constexpr size_t i = 1;                     \
    r.p[i] = (typename Result::piece)(value);   \
  }                                             \
  if constexpr (Result::kPieces > 2) {          \
    {                                           \
      constexpr size_t i = 2;                   \
      r.p[i] = (typename Result::piece)(value); \
    }                                           \
    constexpr size_t i = 3;                     \
    r.p[i] = (typename Result::piece)(value);   \
  }                                             \
  return r

  Lanes() = default;
  template <typename... T, std::enable_if_t<sizeof...(T) == 16, int> = 0>
  RONDO_MEMBER Lanes(T... values) {
    const E each[16] = {E(values)...};
    __builtin_memcpy(p, each, sizeof p);
  }
  // The same bits as lanes of another kind.
  template <typename F>
  RONDO_MEMBER explicit Lanes(const Lanes<F>& other) : Lanes(cast(other)) {}

  RONDO_MEMBER static Lanes splat(E x) { RONDO_PIECES(Lanes, x - piece{}); }
  RONDO_MEMBER static Lanes load(const void* from) {
    RONDO_PIECES(Lanes, static_cast<const loose*>(from)[i]);
  }
  RONDO_MEMBER void store(void* to) const {
    loose* pieces = static_cast<loose*>(to);
    pieces[0] = p[0];
    if constexpr (kPieces > 1) pieces[1] = p[1];
    if constexpr (kPieces > 2) pieces[2] = p[2], pieces[3] = p[3];
  }
  RONDO_MEMBER E operator[](int lane) const { return p[size_t(lane) / kEach][size_t(lane) % kEach]; }

#define RONDO_LANES(op)                                                                 \
  RONDO_MEMBER friend Lanes operator op(Lanes a, Lanes b) {                             \
    RONDO_PIECES(Lanes, a.p[i] op b.p[i]);                                              \
  }                                                                                     \
  RONDO_MEMBER friend Lanes operator op(Lanes a, E b) { RONDO_PIECES(Lanes, a.p[i] op b); } \
  RONDO_MEMBER friend Lanes operator op(E a, Lanes b) { RONDO_PIECES(Lanes, a op b.p[i]); } \
  template <typename B>                                                                 \
  RONDO_MEMBER Lanes& operator op##=(B b) {                                             \
    return *this = *this op b;                                                          \
  }
  RONDO_LANES(+)
  RONDO_LANES(-)
  RONDO_LANES(*)
  RONDO_LANES(/)
  RONDO_LANES(&)
  RONDO_LANES(|)
  RONDO_LANES(^)
#undef RONDO_LANES
#define RONDO_LANES(op)                                                                  \
  RONDO_MEMBER friend Mask operator op(Lanes a, Lanes b) {                               \
    RONDO_PIECES(Mask, a.p[i] op b.p[i]);                                                \
  }                                                                                      \
  RONDO_MEMBER friend Mask operator op(Lanes a, E b) { RONDO_PIECES(Mask, a.p[i] op b); }
  RONDO_LANES(==)
  RONDO_LANES(!=)
  RONDO_LANES(<)
  RONDO_LANES(<=)
  RONDO_LANES(>)
  RONDO_LANES(>=)
#undef RONDO_LANES
  RONDO_MEMBER friend Lanes operator<<(Lanes a, int n) { RONDO_PIECES(Lanes, a.p[i] << n); }
  RONDO_MEMBER friend Lanes operator>>(Lanes a, int n) { RONDO_PIECES(Lanes, a.p[i] >> n); }
  RONDO_MEMBER friend Lanes operator-(Lanes a) { RONDO_PIECES(Lanes, -a.p[i]); }
  RONDO_MEMBER friend Lanes operator~(Lanes a) { RONDO_PIECES(Lanes, ~a.p[i]); }
  // Lanes of a where the mask is all ones, of b where it is zero.
  RONDO_MEMBER friend Lanes choose(Mask mask, Lanes a, Lanes b) {
    RONDO_PIECES(Lanes, mask.p[i] ? a.p[i] : b.p[i]);
  }

 private:
  template <typename F>
  RONDO_MEMBER static Lanes cast(Lanes<F> other) {
    RONDO_PIECES(Lanes, other.p[i]);
  }
};

// Lane-wise conversion between float and int32.
template <typename To, typename From>
RONDO_INLINE Lanes<To> convert(Lanes<From> v) {
  typedef typename Lanes<To>::piece piece;
  RONDO_PIECES(Lanes<To>, __builtin_convertvector(v.p[i], piece));
}
#undef RONDO_PIECES

}  // namespace rondo
