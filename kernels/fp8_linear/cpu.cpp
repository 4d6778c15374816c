// SPDX-License-Identifier: MIT OR Apache-2.0
// e4m3 weights, with one scale per 128 x 128 block or per output, against bf16 activations.
//
// A tile is 16 outputs; 64 bytes hold four neighbouring inputs of each output. Each quarter of 16
// bytes covers four outputs: bytes 0..7 are their inputs 0 and 1 (output 0: 0 1, output 1: 0 1, ..),
// bytes 8..15 inputs 2 and 3, so that interleaving two byte tables inside the quarters yields one
// pair of bf16 a lane. The units of two neighbouring tiles alternate. K is padded
// with zeros to a multiple of 32.
// One order for every row count: blocks of 32 inputs are summed from zero, pairs ascending; four of
// them are added in turn from zero, and acc = fma(those, block scale, acc). With AVX2 or AVX-512 and
// no bf16 dot product (avx.h) a lane holds the even or the odd inputs of an output: blocks of 64
// inputs are summed from zero, two of them are added, then even and odd inputs, and acc as before.
// The scale of an output multiplies the finished sum.
#include "e4m3_bytes.h"
#include "product.h"

namespace {

using rondo::TileArgs;

// The scale of 128-block b of this tile; one without block scales.
RONDO_INLINE float block_scale(const uint8_t* scale, int b) {
  float s = 1.f;
  if (scale) memcpy(&s, scale + int64_t(b) * 4, 4);
  return s;
}

struct Layout : rondo::Activations {
  static constexpr int kUnit = 64;
  static int64_t weight_offset(int32_t k) { return int64_t(k) / 4 * 2 * kUnit; }
  static int64_t scale_offset(int32_t k) { return k / 128 * 4; }
  static int64_t scale_second(int64_t stride) { return stride; }
};

#if defined(RONDO_BF16_DOT)

struct Fp8 : Layout {
  template <int M>
  static constexpr int together() {
    return M <= 4 ? 2 : 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const __m512i l0 = _mm512_load_si512(rondo::kE4m3.low), l1 = _mm512_load_si512(rondo::kE4m3.low + 64);
    const __m512i h0 = _mm512_load_si512(rondo::kE4m3.high), h1 = _mm512_load_si512(rondo::kE4m3.high + 64);
    const __m512i sign = _mm512_set1_epi8(char(0x80));
    const uint32_t* x = static_cast<const uint32_t*>(a.x);
    const uint8_t* p = a.weight;
    for (int b = 0, left = a.k_count / 32; left > 0; b++, left -= 4) {
      alignas(64) float held[T][M][16];
      const int parts = left < 4 ? left : 4;
      for (int part = 0; part < parts; part++, x += 16 * M, p += 8 * 2 * kUnit) {
        const int64_t ahead = a.weight_ahead(p - a.weight);
        __m512 sum[T][M];
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) sum[t][m] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
          __m512bh w[T][2];
#pragma GCC unroll 2
          for (int t = 0; t < T; t++) {
            const uint8_t* from = p + (2 * j + t) * kUnit;
            _mm_prefetch(reinterpret_cast<const char*>(from) + ahead, _MM_HINT_T0);
            const __m512i c = _mm512_load_si512(from);
            const __m512i low = _mm512_permutex2var_epi8(l0, c, l1);
            const __m512i mag = _mm512_permutex2var_epi8(h0, c, h1);
            const __m512i high = _mm512_ternarylogic_epi32(mag, c, sign, 0xF8);
            w[t][0] = (__m512bh)_mm512_unpacklo_epi8(low, high);
            w[t][1] = (__m512bh)_mm512_unpackhi_epi8(low, high);
          }
#pragma GCC unroll 2
          for (int i = 0; i < 2; i++)
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
              const uint32_t* pair = x + (j * 2 + i) * M + m;
              if constexpr (T == 1) {
                sum[0][m] = rondo::dot_broadcast(sum[0][m], w[0][i], pair);
              } else {
                const __m512bh v = (__m512bh)_mm512_set1_epi32(int(*pair));
#pragma GCC unroll 2
                for (int t = 0; t < T; t++) sum[t][m] = _mm512_dpbf16_ps(sum[t][m], w[t][i], v);
              }
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) {
            if (part) sum[t][m] = _mm512_add_ps(_mm512_load_ps(held[t][m]), sum[t][m]);
            _mm512_store_ps(held[t][m], sum[t][m]);
          }
      }
#pragma GCC unroll 2
      for (int t = 0; t < T; t++) {
        const uint8_t* q = a.scale ? a.scale + t * a.scale_stride : nullptr;
        const __m512 s = _mm512_set1_ps(block_scale(q, b));
        // The accumulators stay in memory: the registers belong to the chains.
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
          float* acc = a.sums + (t * M + m) * 16;
          const __m512 before = a.first && b == 0 ? _mm512_setzero_ps() : _mm512_load_ps(acc);
          _mm512_store_ps(acc, _mm512_fmadd_ps(_mm512_load_ps(held[t][m]), s, before));
        }
      }
    }
  }
};

#elif defined(RONDO_AVX)

}  // namespace
#include "avx.h"
namespace {

#else

// e4m3 in the low byte of each lane, exact; subnormals as 2^-6 (1 + m/8) - 2^-6.
RONDO_INLINE v16f e4m3_values(v16u lanes) {
  const v16u mag = lanes & 0x7fu;
  const v16i small = (v16i)(mag < 8u);
  const v16f normal = (v16f)((mag << 20) + uint32_t(120 << 23));
  const v16f tiny = (v16f)((mag << 20) + uint32_t(121 << 23)) - 0.015625f;
  const v16i nan = (v16i)(mag == 0x7fu);
  const v16u bits = (v16u)select16(small, tiny, normal) | (v16u)(nan & 0x7fc00000);
  return (v16f)(bits | (lanes & 0x80u) << 24);
}
// Lanes of input pair i (0 or 1) of a 64-byte vector: the even input in byte 0, the odd in byte 1.
RONDO_INLINE v16u pair_lanes(const uint8_t* p, int i) {
  typedef uint16_t quarter __attribute__((vector_size(8)));
  v16u r;
#pragma GCC unroll 4
  for (int q = 0; q < 4; q++)
    r.p[q] = __builtin_convertvector(load_vec<quarter>(p + q * 16 + i * 8), v16u::piece);
  return r;
}

struct Fp8 : Layout {
  template <int M>
  static constexpr int together() {
    return 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const float* x = static_cast<const float*>(a.x);
    const uint8_t* p = a.weight;
    v16f acc[M];
    for (int m = 0; m < M; m++) acc[m] = a.first ? v16f{} : load16(a.sums + m * 16);
    alignas(64) float w[32 * 16];
    for (int b = 0, left = a.k_count / 32; left > 0; b++, left -= 4) {
      v16f held[M] = {};
      const int parts = left < 4 ? left : 4;
      for (int part = 0; part < parts; part++, x += 32 * M, p += 8 * 2 * kUnit) {
        for (int j = 0; j < 16; j++) {
          const v16u pair = pair_lanes(p + j / 2 * 2 * kUnit, j % 2);
          store16(w + j * 32, e4m3_values(pair));
          store16(w + j * 32 + 16, e4m3_values(pair >> 8));
        }
        v16f sum[M] = {};
        rondo::add_columns<M>(w, x, 32, sum);
        for (int m = 0; m < M; m++) held[m] = part ? held[m] + sum[m] : sum[m];
      }
      const v16f s = splat16(block_scale(a.scale, b));
      for (int m = 0; m < M; m++) acc[m] = fma16(held[m], s, acc[m]);
    }
    for (int m = 0; m < M; m++) store16(a.sums + m * 16, acc[m]);
  }
};

#endif

}  // namespace

typedef rondo_linear_args rondo_fp8_linear_args;

RONDO_OP(fp8_linear) { rondo::product<Fp8>(a, worker, workers); }
