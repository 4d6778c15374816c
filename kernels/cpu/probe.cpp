// SPDX-License-Identifier: MIT OR Apache-2.0
// What the machine can give: the read rate of memory, its copy rate, and the rate of the dot
// product that the kernels of this library are made of.
#if defined(__AMX_BF16__)
#include "product_amx.h"
#else
#include "product.h"
#endif
#if defined(__AVX2__)
#include "registers.h"
#endif

struct rondo_probe_args {
  const uint8_t* from;  // bytes, a multiple of 256 for each worker
  uint8_t* to;          // copy only
  uint32_t* sink;       // 16 a worker; keeps the loops from being removed
  int64_t bytes;
  int64_t rounds;  // dot only: each does kDotFlops operations
  int64_t ahead;   // read only: bytes from a load to its prefetch; 0: none
};
typedef rondo_probe_args rondo_probe_read_args;
typedef rondo_probe_args rondo_probe_copy_args;
typedef rondo_probe_args rondo_probe_dot_args;
typedef rondo_probe_args rondo_probe_dot_int8_args;

namespace {

#if defined(__AMX_BF16__)
constexpr int kChains = 4;
constexpr int64_t kDotFlops = kChains * 16 * 16 * 32 * 2;
#else
constexpr int kChains = 12;
#if defined(RONDO_BF16_DOT)
constexpr int64_t kDotFlops = kChains * 16 * 4;
#elif defined(RONDO_AVX)
constexpr int64_t kDotFlops = kChains * rondo::kRegLanes * 4;
#else
constexpr int64_t kDotFlops = kChains * 16 * 2;
#endif
#endif

[[maybe_unused]] constexpr int kInt8Chains = 12;
#if defined(__AVX2__)
constexpr int64_t kInt8Flops = kInt8Chains * rondo::kRegLanes * 8;
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int64_t kInt8Flops = kInt8Chains * 16 * 2;
#elif defined(RONDO_NEON)
constexpr int64_t kInt8Flops = kInt8Chains * 8 * 2;
#else
constexpr int64_t kInt8Flops = kDotFlops;  // portable products of bytes are of fp32, too
#endif

RONDO_INLINE rondo_range share_of(const rondo_probe_args* a, int32_t worker, int32_t workers) {
  const rondo_range r = rondo_share(a->bytes / 256, worker, workers);
  return {r.begin * 256, r.end * 256};
}

}  // namespace

RONDO_OP(probe_read) {
  const rondo_range mine = share_of(a, worker, workers);
  v16u s0{}, s1{}, s2{}, s3{};
  for (int64_t i = mine.begin; i < mine.end; i += 256) {
    const uint8_t* p = a->from + i;
    for (int line = 0; a->ahead && line < 256; line += 64)
      __builtin_prefetch(p + a->ahead + line, 0, 3);
    s0 ^= load_vec<v16u>(p);
    s1 ^= load_vec<v16u>(p + 64);
    s2 ^= load_vec<v16u>(p + 128);
    s3 ^= load_vec<v16u>(p + 192);
  }
  store_vec(a->sink + worker * 16, s0 ^ s1 ^ s2 ^ s3);
}

RONDO_OP(probe_copy) {
  const rondo_range mine = share_of(a, worker, workers);
  memcpy(a->to + mine.begin, a->from + mine.begin, size_t(mine.end - mine.begin));
}

RONDO_OP(probe_dot) {
  (void)workers;
  float* sink = reinterpret_cast<float*>(a->sink) + worker * 16;
  v16f total{};
#if defined(__AMX_BF16__)
  rondo::TileSizes sizes;
  sizes.set(16, 16);
  rondo::zero_accumulators();
  _tile_loadd(4, a->from, 0);
  _tile_loadd(5, a->from, 0);
  _tile_loadd(6, a->from, 0);
  _tile_loadd(7, a->from, 0);
  for (int64_t i = 0; i < a->rounds; i++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[2][2 * 256];
  rondo::store_accumulators<true>(sums[0], sums[1]);
  for (const auto& tile : sums)
    for (int n = 0; n < 512; n += 16) total += load16(tile + n);
#elif defined(RONDO_BF16_DOT)
  __m512 acc[kChains];
  for (int c = 0; c < kChains; c++) acc[c] = _mm512_loadu_ps(sink);
  __m512bh w = (__m512bh)_mm512_loadu_si512(a->from), x = (__m512bh)_mm512_loadu_si512(a->from + 64);
  for (int64_t i = 0; i < a->rounds; i++) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; c++) acc[c] = _mm512_dpbf16_ps(acc[c], w, x);
  }
  for (int c = 0; c < kChains; c++) total += (v16f)acc[c];
#elif defined(RONDO_AVX)
  // Of int16, as in the products of NVFP4; those of fp32 do no more.
  rondo::regi acc[kChains];
  for (int c = 0; c < kChains; c++) memcpy(&acc[c], sink, sizeof acc[c]);
  const rondo::regi w = rondo::reg_load_bits(a->from), x = rondo::reg_load_bits(a->from + 64);
  for (int64_t i = 0; i < a->rounds; i++) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; c++) rondo::reg_add_pairs(&acc[c], w, x);
  }
  for (int c = 0; c < kChains; c++) {
    v16f wide{};
    memcpy(&wide, &acc[c], sizeof acc[c]);
    total += wide;
  }
#else
  // Chains in registers: pieces of 4 lanes.
  typedef float piece __attribute__((vector_size(16)));
  constexpr int pieces = sizeof(v16f) / sizeof(piece);
  const piece w = load_vec<piece>(a->from), x = load_vec<piece>(a->from + 64);
  piece acc[kChains];
  for (int c = 0; c < kChains; c++) acc[c] = load_vec<piece>(sink);
  for (int64_t i = 0; i < a->rounds * pieces; i++) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; c++) acc[c] = w * x + acc[c];
  }
  for (int c = 0; c < kChains; c++) {
    v16f wide{};
    memcpy(&wide, &acc[c], sizeof(piece));
    total += wide;
  }
#endif
  store16(sink, total);
}

// Of 8-bit integers, as in the products of product_int8.h.
RONDO_OP(probe_dot_int8) {
#if defined(__AVX2__)
  (void)workers;
  uint32_t* sink = a->sink + worker * 16;
  rondo::regi acc[kInt8Chains], w, x;
  memcpy(&w, a->from, sizeof w), memcpy(&x, a->from + 64, sizeof x);
  for (int c = 0; c < kInt8Chains; c++) memcpy(&acc[c], sink, sizeof acc[c]);
  for (int64_t i = 0; i < a->rounds; i++) {
#pragma GCC unroll 12
    for (int c = 0; c < kInt8Chains; c++) {
#if defined(RONDO_VNNI)
      rondo::reg_add_fours(&acc[c], w, x);
#else
      rondo::reg_add_twos(&acc[c], w, x);
#endif
    }
  }
  for (int c = 1; c < kInt8Chains; c++) acc[0] = acc[0] ^ acc[c];
  memcpy(sink, &acc[0], sizeof acc[0]);
#elif defined(RONDO_NEON)
  (void)workers;
  uint32_t* sink = a->sink + worker * 16;
  const int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(a->from + 64));
  int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(a->from));
#if defined(__ARM_FEATURE_DOTPROD)
  int32x4_t acc[kInt8Chains];
#else
  int16x8_t acc[kInt8Chains];
#endif
  for (int c = 0; c < kInt8Chains; c++) memcpy(&acc[c], sink, sizeof acc[c]);
  for (int64_t i = 0; i < a->rounds; i++) {
#pragma GCC unroll 12
    for (int c = 0; c < kInt8Chains; c++) {
      asm("" : "+w"(w));  // without it one product would serve every chain
#if defined(__ARM_FEATURE_DOTPROD)
      acc[c] = vdotq_s32(acc[c], w, x);
#else
      acc[c] = vmlal_s8(acc[c], vget_low_s8(w), vget_low_s8(x));
#endif
    }
  }
  for (int c = 1; c < kInt8Chains; c++) acc[0] = acc[0] ^ acc[c];
  memcpy(sink, &acc[0], sizeof acc[0]);
#else
  rondo_probe_dot(a, worker, workers);
#endif
}

RONDO_API int64_t rondo_probe_dot_int8_flops(void) { return kInt8Flops; }
RONDO_API int64_t rondo_probe_dot_flops(void) { return kDotFlops; }
