// SPDX-License-Identifier: MIT OR Apache-2.0
// bf16 weights against bf16 activations.
//
// A tile is 16 outputs; 64 bytes hold two neighbouring inputs of each output, the even one in the
// low half of the lane; these units of two neighbouring tiles alternate. K is padded
// with zeros to a multiple of 32.
// One order for every row count: blocks of 32 inputs are summed from zero, pairs ascending, and
// added to the accumulator, blocks ascending.
#include "product.h"

#include <utility>

namespace {

using rondo::TileArgs;

struct Bf16 : rondo::Activations {
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
#elif defined(RONDO_AVX)
  typedef rondo::regf regf;
  static constexpr int kRegs = 16 / rondo::kRegLanes;  // of 16 outputs
#if defined(__AVX512F__)
  static constexpr int kRowsTogether = 12, kFewRows = 4, kRowsSideBySide = 4;
#else
  static constexpr int kRowsTogether = 5, kFewRows = 4, kRowsSideBySide = 1;
#endif

  template <int M>
  static constexpr int together() {
    return 2;
  }

  // The even and the odd input of a register of outputs.
  RONDO_INLINE void split(const uint8_t* p, regf* w) {
    const rondo::regi both = rondo::reg_load_bits(p);
    w[0] = rondo::reg_low_bf16(both), w[1] = rondo::reg_high_bf16(both);
  }
  RONDO_INLINE void add_sum(float* acc, bool first, regf sum) {
    const regf before = first ? rondo::reg_zero() : rondo::reg_load(acc);
    rondo::reg_store(acc, rondo::reg_add(before, sum));
  }

  // 32 inputs of 16 outputs, widened, against N of the M rows at x. A function of its own, so that
  // nothing else takes its registers. With Fetch it asks for the lines from `later` on, one by one: all at
  // once nothing would come while the rows are multiplied.
  template <int M, int N, bool Fetch>
  __attribute__((noinline)) static void add_rows(const regf (*w)[kRegs], const float* x, float* acc,
                                                 bool first, const uint8_t* later) {
    regf sum[N][kRegs];
#pragma GCC unroll 12
    for (int r = 0; r < N; r++)
#pragma GCC unroll 2
      for (int v = 0; v < kRegs; v++) sum[r][v] = rondo::reg_zero();
#pragma GCC unroll 1
    for (int j = 0; j < 16; j++, w += 2, x += 2 * M) {
      if (Fetch) rondo::prefetch(later + j * kUnit);
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++) {
        regf weight[kRegs];
#pragma GCC unroll 2
        for (int v = 0; v < kRegs; v++) weight[v] = rondo::in_register(w[odd][v]);
#pragma GCC unroll 12
        for (int r = 0; r < N; r++) {
          // For one register of outputs the multiplication itself reads the input.
          regf value = rondo::reg_splat(x[2 * r + odd]);
          if (kRegs > 1) value = rondo::in_register(value);
#pragma GCC unroll 2
          for (int v = 0; v < kRegs; v++) sum[r][v] = rondo::reg_fma(weight[v], value, sum[r][v]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < N; r++)
#pragma GCC unroll 2
      for (int v = 0; v < kRegs; v++)
        add_sum(acc + r * 16 + v * rondo::kRegLanes, first, sum[r][v]);
  }
  template <int M, int... Part>
  RONDO_INLINE void add_parts(const regf (*w)[kRegs], const float* x, float* acc, bool first,
                              const uint8_t* later, std::integer_sequence<int, Part...>) {
    constexpr int parts = sizeof...(Part);
    (add_rows<M, M * (Part + 1) / parts - M * Part / parts, Part == 0>(
         w, x + M * Part / parts * 2, acc + M * Part / parts * 16, first, later),
     ...);
  }

  // 32 inputs of T tiles against few rows: the tiles side by side.
  template <int M, int T>
  RONDO_INLINE void few_rows(const uint8_t* p, int64_t ahead, const float* x, float* acc, bool first) {
    regf sum[kRegs * T][M];
#pragma GCC unroll 4
    for (int v = 0; v < kRegs * T; v++)
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) sum[v][m] = rondo::reg_zero();
#pragma GCC unroll 4
    for (int j = 0; j < 16; j++) {
      regf w[kRegs * T][2];
#pragma GCC unroll 4
      for (int v = 0; v < kRegs * T; v++) {
        const uint8_t* from = p + (2 * j + v / kRegs) * kUnit + v % kRegs * 32;
        if (v % kRegs == 0) rondo::prefetch(from + ahead);
        split(from, w[v]);
      }
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const regf value = rondo::reg_splat(x[(j * M + m) * 2 + odd]);
#pragma GCC unroll 4
          for (int v = 0; v < kRegs * T; v++) sum[v][m] = rondo::reg_fma(w[v][odd], value, sum[v][m]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kRegs * T; v++)
#pragma GCC unroll 4
      for (int m = 0; m < M; m++)
        add_sum(acc + (v / kRegs * M + m) * 16 + v % kRegs * rondo::kRegLanes, first, sum[v][m]);
  }
  // 32 inputs of a tile against many rows: the weights widened once, then some rows at a time. Each tile of
  // a pair asks for half of the lines of both.
  template <int M>
  RONDO_INLINE void many_rows(const uint8_t* p, const uint8_t* later, const float* x, float* acc,
                              bool first) {
    alignas(64) regf w[32][kRegs];
    for (int j = 0; j < 16; j++) {
#pragma GCC unroll 2
      for (int v = 0; v < kRegs; v++) {
        regf both[2];
        split(p + 2 * j * kUnit + v * 32, both);
        w[2 * j][v] = both[0], w[2 * j + 1][v] = both[1];
      }
    }
    add_parts<M>(w, x, acc, first, later,
                 std::make_integer_sequence<int, (M - 1) / kRowsTogether + 1>());
  }

  template <int M, int T>
  static void tiles(const TileArgs& a) {
    const float* x = static_cast<const float*>(a.x);
    const uint8_t* p = a.weight;
    bool first = a.first;
    for (int k = 0; k < a.k_count; k += 32, x += 32 * M, p += 16 * 2 * kUnit, first = false) {
      const int64_t ahead = a.weight_ahead(weight_offset(k));
      if constexpr (M <= kRowsSideBySide) {
        few_rows<M, T>(p, ahead, x, a.sums, first);
      } else {
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
          float* acc = a.sums + t * M * 16;
          if constexpr (M <= kFewRows) few_rows<M, 1>(p + t * kUnit, ahead, x, acc, first);
          else many_rows<M>(p + t * kUnit, p + ahead + 16 * t * kUnit, x, acc, first);
        }
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
