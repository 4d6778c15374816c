// SPDX-License-Identifier: MIT OR Apache-2.0
// bf16 weights against bf16 activations.
//
// A tile is 16 outputs; 64 bytes hold two neighbouring inputs of each output, the even one in the
// low half of the lane; these units of two neighbouring tiles alternate. K is padded with zeros to a multiple of 32.
// One order for every row count: blocks of 32 inputs are summed from zero, pairs ascending, and
// added to the accumulator, blocks ascending.
#include "product.h"

namespace {

using rondo::TileArgs;

struct Bf16 {
  static constexpr int kUnit = 64;
  static int64_t weight_offset(int32_t k) { return int64_t(k) / 2 * 2 * kUnit; }
  static int64_t scale_offset(int32_t) { return 0; }
  static int64_t scale_second(int64_t) { return 0; }

#if defined(RONDO_BF16_DOT)
  template <int M>
  static constexpr int together() {
    return M <= 12 ? 2 : 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const uint32_t* x = static_cast<const uint32_t*>(a.x);
    const uint8_t* p = a.weight;
    bool first = a.first;
    for (int k = 0; k < a.k_count; k += 32, x += 16 * M, p += 16 * 2 * kUnit, first = false) {
      const int64_t ahead = a.weight_ahead(weight_offset(k));
      __m512 sum[T][M];
#pragma GCC unroll 2
      for (int t = 0; t < T; t++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) sum[t][m] = _mm512_setzero_ps();
#pragma GCC unroll 16
      for (int j = 0; j < 16; j++) {
        __m512bh w[T];
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
          const uint8_t* from = p + (2 * j + t) * kUnit;
          _mm_prefetch(reinterpret_cast<const char*>(from) + ahead, _MM_HINT_T0);
          w[t] = (__m512bh)_mm512_load_si512(from);
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
          if constexpr (T == 1) {
            sum[0][m] = rondo::dot_broadcast(sum[0][m], w[0], x + j * M + m);
          } else {
            const __m512bh v = (__m512bh)_mm512_set1_epi32(int(x[j * M + m]));
#pragma GCC unroll 2
            for (int t = 0; t < T; t++) sum[t][m] = _mm512_dpbf16_ps(sum[t][m], w[t], v);
          }
        }
      }
      // The accumulators stay in memory: the registers belong to the chains.
#pragma GCC unroll 2
      for (int t = 0; t < T; t++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
          float* acc = a.sums + (t * M + m) * 16;
          const __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(acc);
          _mm512_store_ps(acc, _mm512_add_ps(before, sum[t][m]));
        }
    }
  }
#else
  template <int M>
  static constexpr int together() {
    return 1;
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const float* x = static_cast<const float*>(a.x);
    v16f acc[M];
    for (int m = 0; m < M; m++) acc[m] = a.first ? v16f{} : load16(a.sums + m * 16);
    alignas(64) float w[32 * 16];
    for (int k = 0; k < a.k_count; k += 32, x += 32 * M) {
      for (int j = 0; j < 16; j++) {
        const v16u pair = load_vec<v16u>(a.weight + int64_t(k / 2 + j) * 2 * kUnit);
        store16(w + j * 32, (v16f)(pair << 16));
        store16(w + j * 32 + 16, (v16f)(pair & 0xffff0000u));
      }
      v16f sum[M] = {};
      rondo::add_columns<M>(w, x, 32, sum);
      for (int m = 0; m < M; m++) acc[m] += sum[m];
    }
    for (int m = 0; m < M; m++) store16(a.sums + m * 16, acc[m]);
  }
#endif
};

}  // namespace

typedef rondo_linear_args rondo_bf16_linear_args;

RONDO_OP(bf16_linear) { rondo::product<Bf16>(a, worker, workers); }
