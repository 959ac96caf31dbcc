// Q into shared memory, once per CTA: [64-value panel][head][128 bytes], 128-byte swizzle, as the B operand of
// S^T = K Q^T.
//
// For an e4m3 pool, Q becomes f16. One power of two per CTA puts its largest value just under 2^14, so that a value is
// exact unless it is 2^-28 of the largest. Inside sixteen values the order is the one in which an A fragment made from
// e4m3 rows comes out (fragments.cuh): position 2c + j holds value 4c + j, position 8 + 2c + j holds value 4c + 2 + j.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/handshakes.h"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"

namespace sparse_mla::cuda::sm90::decode {

// The rows of one head tile of a token into the L2, by `threads` threads (a multiple of 4), four to a row.
template <Policy P>
__device__ __forceinline__ void prefetch_query(const Args& args, std::int32_t token, int first_head, int thread,
                                               int threads) {
  for (int head = thread / 4; head < P.heads && first_head + head < args.h; head += threads / 4) {
    const std::uint16_t* row = args.q + token * args.q_row_stride + (first_head + head) * args.q_head_stride;
    for (int value = 64 * (thread % 4); value < args.d; value += 256) ptx::prefetch_l2(row + value);
  }
}

template <Policy P>
struct Query {
  using S = Shared<P>;
  static constexpr int kAllPieces = P.heads * P.key_groups * 8;                         // of eight values
  static constexpr int kPieces = (kAllPieces + P.mma_threads() - 1) / P.mma_threads();  // of one thread

  const Args& args;
  std::uint32_t base;
  int thread;  // of the MMA threads
  int token;
  int first_head;

  // A warp takes four heads by one panel: 128 bytes of each row, and no bank conflict in the swizzled stores.
  struct Place {
    int head, panel, eighth;
  };
  __device__ Place place_of(int piece) const {
    const int flat = piece * P.mma_threads() + thread;
    const int rest = flat >> 5;
    return {(flat >> 3 & 3) + 4 * (rest % (P.heads / 4)), rest / (P.heads / 4), flat & 7};
  }
  __device__ static bool exists(const Place& place) {
    return kAllPieces % P.mma_threads() == 0 || place.panel < P.key_groups;
  }

  __device__ bool is_inside(const Place& place) const {
    return first_head + place.head < args.h && 64 * place.panel + 8 * place.eighth < args.d;
  }
  __device__ const std::uint16_t* address(const Place& place) const {
    return args.q + token * args.q_row_stride + (first_head + place.head) * args.q_head_stride + 64 * place.panel +
           8 * place.eighth;
  }
  __device__ std::uint32_t slot(const Place& at) const {
    return base + S::q + at.panel * S::kPanel + at.head * 128 + ((at.eighth ^ (at.head & 7)) << 4);
  }

  // All loads before the first use. Past the last head or value: zeros.
  __device__ void load(uint4 (&pieces)[kPieces]) const {
    if (args.q_is_aligned == 0) {
      load_unaligned(pieces);
      return;
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const Place at = place_of(i);
      pieces[i] = {0, 0, 0, 0};
      if (is_inside(at)) pieces[i] = __ldg(reinterpret_cast<const uint4*>(address(at)));
    }
  }
  // Rows that start anywhere.
  __device__ void load_unaligned(uint4 (&pieces)[kPieces]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const Place at = place_of(i);
      std::uint32_t words[4] = {0, 0, 0, 0};
      if (is_inside(at)) {
#pragma unroll
        for (int j = 0; j < 8; ++j)
          words[j / 2] |= static_cast<std::uint32_t>(__ldg(address(at) + j)) << (16 * (j % 2));
      }
      pieces[i] = {words[0], words[1], words[2], words[3]};
    }
  }

  template <bool kF16>
  __device__ static float2 to_float(std::uint32_t pair) {
    if constexpr (kF16) return ptx::float2_from_f16x2(pair);
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  }
  // The larger magnitude of a packed pair, as bits of its 16-bit format: they order like the values.
  __device__ static std::uint32_t larger_magnitude(std::uint32_t a, std::uint32_t b) {
    return __vmaxu2(a & 0x7FFF7FFFu, b & 0x7FFF7FFFu);
  }

  // Loads, normalises and stores; returns what turns a product of the stored values into log2 units. Ends with a
  // barrier of the MMA threads.
  __device__ float store() const {
    uint4 pieces[kPieces];
    load(pieces);
    float factor = args.scale_log2;
    if constexpr (P.has_scales()) {
      const int exponent = args.q_is_f16 != 0 ? store_normalised<true>(pieces) : store_normalised<false>(pieces);
      // 2^-6 undoes the gather's factors; 2^(exponent - 14) the normalisation.
      factor *= __uint_as_float(static_cast<std::uint32_t>(exponent - 20 + 127) << 23);
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const Place at = place_of(i);
        if (exists(at)) ptx::st_shared_v4(slot(at), pieces[i]);
      }
    }
    ptx::fence_proxy_async_shared();
    ptx::bar_sync(kMma<P>.id, kMma<P>.threads);
    return factor;
  }

 private:
  template <bool kF16>
  __device__ int store_normalised(const uint4 (&pieces)[kPieces]) const {
    const int exponent = exponent_of_largest<kF16>(pieces);
    const float normalise = __uint_as_float(static_cast<std::uint32_t>(14 - exponent + 127) << 23);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (exists(place_of(i))) store_f16<kF16>(place_of(i), pieces[i], normalise);
    }
    return exponent;
  }

  // e with max |q| < 2^e, clamped so that 2^(14 - e) and 2^(e - 20) are normal numbers.
  template <bool kF16>
  __device__ int exponent_of_largest(const uint4 (&pieces)[kPieces]) const {
    std::uint32_t largest = 0;
#pragma unroll
    for (const uint4& piece : pieces) {
      largest = larger_magnitude(largest, piece.x);
      largest = larger_magnitude(largest, piece.y);
      largest = larger_magnitude(largest, piece.z);
      largest = larger_magnitude(largest, piece.w);
    }
    const float2 both = to_float<kF16>(largest);
    std::uint32_t bits = __float_as_uint(fmaxf(both.x, both.y));
    bits = __reduce_max_sync(0xFFFFFFFFu, bits);
    const std::uint32_t scratch = base + S::scratch;
    if ((thread & 31) == 0) ptx::st_shared_b32(scratch + 4 * (thread >> 5), bits);
    ptx::bar_sync(kMma<P>.id, kMma<P>.threads);
#pragma unroll
    for (int warp = 0; warp < P.mma_threads() / 32; ++warp) {
      bits = max(bits, ptx::ld_shared_b32(scratch + 4 * warp));
    }
    return max(-100, min(110, static_cast<int>(bits >> 23) - 126));
  }

  template <bool kF16>
  __device__ void store_f16(const Place& at, const uint4& piece, float normalise) const {
    const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
    std::uint32_t halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = to_float<kF16>(words[i]);
      halves[i] = ptx::cvt_f16x2_f32(pair.x * normalise, pair.y * normalise);
    }
    // Sixteen values are two pieces; this one is the lower or upper half and fills 8 bytes of both 16-byte chunks.
    const int step = at.eighth >> 1;
    const int half = at.eighth & 1;
    const std::uint32_t row = base + S::q + at.panel * S::kPanel + at.head * 128 + 8 * half;
    const int swizzle = at.head & 7;
    ptx::st_shared_v2(row + (((2 * step) ^ swizzle) << 4), {halves[0], halves[2]});
    ptx::st_shared_v2(row + (((2 * step + 1) ^ swizzle) << 4), {halves[1], halves[3]});
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
