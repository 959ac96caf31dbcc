// From scores to probabilities in e4m3: P = 2^(s * c - frame).
//
// Every head has a frame, a float. On some turns (Policy::agree_turns) both CTAs of the pair bring it to the maximum so
// far, so that the tokens that weigh most round to themselves; between those turns it rises by whole octaves, and only
// where a probability would pass the limit. A thread owns heads g and g + 8 of its warp's 16; a quad shares them.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/sm90/prefill_pair/shared.h"
#include "cuda/tile/swizzle.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

struct Softmax {
  float sum[2];             // of this lane's probabilities in the row so far
  std::int32_t maximum[2];  // bits of the largest log2 of them; 0 where none is positive
  float frame[2];
};

inline constexpr float kNoFrame = -1e30f;  // of a head that has had no valid token in the row

// Up to here 2^x is far from overflow, so that it may be taken before the frame is known.
inline constexpr float kSafeOctave = 60.0f;

constexpr float kMinusInfinity = -__builtin_huge_valf();

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ __forceinline__ std::int32_t quad_max(std::int32_t x) {
  x = max(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return max(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

// -inf at tokens that are not valid; bit t of `used` is own token t. Columns of scores[4n + i] are 8n + 2c + (i & 1).
__device__ __forceinline__ void mask_scores(float (&x)[32], uint2 used, std::uint32_t lane) {
  const std::uint32_t low = used.x >> ((lane & 3) * 2), high = used.y >> ((lane & 3) * 2);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t bits = i < 16 ? low : high;
    if ((bits >> ((i / 4 % 4) * 8 + (i & 1)) & 1) == 0) x[i] = kMinusInfinity;
  }
}

__device__ __forceinline__ bool all_used(uint2 used) { return (used.x & used.y) == 0xFFFFFFFFu; }

// What a head has so far, after its frame rises.
__device__ __forceinline__ void raise_frame(Softmax& soft, int r, float rise) {
  soft.frame[r] += rise;
  soft.sum[r] *= ptx::ex2(-rise);
  soft.maximum[r] = __float_as_int(fmaxf(__int_as_float(max(soft.maximum[r], 0)) - rise, 0.0f));
}

__device__ __forceinline__ void lower(float (&x)[32], int r, float rise) {
#pragma unroll
  for (int i = 0; i < 32; ++i)
    if ((i >> 1 & 1) == r) x[i] -= rise;
}

__device__ __forceinline__ void scale_down(float (&x)[32], int r, float factor) {
#pragma unroll
  for (int i = 0; i < 32; ++i)
    if ((i >> 1 & 1) == r) x[i] *= factor;
}

// The frames of this warp's heads rise so that nothing in `x` (log2 of probabilities) passes the limit. soft.maximum
// counts `x` already.
__device__ __forceinline__ void hold_limit(float (&x)[32], Softmax& soft) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float highest = __int_as_float(quad_max(soft.maximum[r]));
    const float rise = highest > kLimitOctave ? ceilf(highest) - kFirstOctave : 0.0f;
    raise_frame(soft, r, rise);
    lower(x, r, rise);
  }
}

// Largest scaled score of a tile for this lane's two heads, over the quad.
__device__ __forceinline__ void tile_maxima(float (&highest)[2], const float (&scores)[32], float scale, uint2 used,
                                            std::uint32_t lane) {
  highest[0] = highest[1] = kMinusInfinity;
  const std::uint32_t low = used.x >> ((lane & 3) * 2), high = used.y >> ((lane & 3) * 2);
  if (all_used(used)) {
#pragma unroll
    for (int i = 0; i < 32; ++i) highest[i >> 1 & 1] = fmaxf(highest[i >> 1 & 1], scores[i] * scale);
  } else {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t bits = i < 16 ? low : high;
      const bool valid = (bits >> ((i / 4 % 4) * 8 + (i & 1)) & 1) != 0;
      highest[i >> 1 & 1] = fmaxf(highest[i >> 1 & 1], valid ? scores[i] * scale : kMinusInfinity);
    }
  }
  highest[0] = quad_max(highest[0]);
  highest[1] = quad_max(highest[1]);
}

// Heads without a frame take one from the tile's own maximum. Nothing of theirs is in soft.sum yet.
__device__ __forceinline__ void find_frames(const float (&scores)[32], Softmax& soft, float scale, uint2 used,
                                            std::uint32_t lane) {
  float highest[2];
  tile_maxima(highest, scores, scale, used, lane);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (soft.frame[r] == kNoFrame && highest[r] > kMinusInfinity) soft.frame[r] = highest[r] - kFirstOctave;
}

// Scores become log2 of probabilities in the frames so far, and count in soft.maximum.
__device__ __forceinline__ void scale_scores(float (&x)[32], Softmax& soft, float scale, uint2 used,
                                             std::uint32_t lane) {
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = fmaf(x[i], scale, -soft.frame[i >> 1 & 1]);
  if (!all_used(used)) mask_scores(x, used, lane);
    // Floats compare as signed integers where it matters, above zero; three at a time.
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    soft.maximum[0] = __vimax3_s32(soft.maximum[0], __float_as_int(x[4 * n]), __float_as_int(x[4 * n + 1]));
    soft.maximum[1] = __vimax3_s32(soft.maximum[1], __float_as_int(x[4 * n + 2]), __float_as_int(x[4 * n + 3]));
  }
}

__device__ __forceinline__ bool passes_limit(const Softmax& soft) {
  return __any_sync(0xFFFFFFFFu, max(soft.maximum[0], soft.maximum[1]) > __float_as_int(kLimitOctave));
}

__device__ __forceinline__ void exponentiate(float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = ptx::ex2(x[i]);
}

// Probabilities, packed: chunk b of head g in packed[b], of head g + 8 in packed[4 + b]. They count in soft.sum.
__device__ __forceinline__ void pack_probabilities(const float (&x)[32], Softmax& soft, std::uint32_t (&packed)[8]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    std::uint32_t pair[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) pair[n] = ptx::cvt_f16x2_f32(x[4 * n + 2 * r], x[4 * n + 2 * r + 1]);
#pragma unroll
    for (int b = 0; b < 4; ++b) packed[4 * r + b] = ptx::cvt_e4m3x4_f16x2(pair[2 * b], pair[2 * b + 1]);
    const std::uint32_t eighth =
        ptx::add_f16x2(ptx::add_f16x2(ptx::add_f16x2(pair[0], pair[1]), ptx::add_f16x2(pair[2], pair[3])),
                       ptx::add_f16x2(ptx::add_f16x2(pair[4], pair[5]), ptx::add_f16x2(pair[6], pair[7])));
    const float2 halves = ptx::float2_from_f16x2(eighth);
    soft.sum[r] += halves.x + halves.y;
  }
}

// To the probabilities tile [128 heads][64 tokens] and its frames; `heads` is the first of the warp's 16 heads.
__device__ __forceinline__ void store_probabilities(const std::uint32_t (&packed)[8], const Softmax& soft,
                                                    std::uint32_t probs, std::uint32_t frames, std::uint32_t heads,
                                                    std::uint32_t lane) {
  const std::uint32_t at = probs + swizzle_64b(heads + (lane & 7), lane >> 3);
  ptx::stmatrix_x4(at, packed[0], packed[1], packed[2], packed[3]);
  ptx::stmatrix_x4(at + 8 * kOwnTokens, packed[4], packed[5], packed[6], packed[7]);
  // Two lanes of a quad write the same, which is shorter than a branch.
  ptx::st_shared_f32(frames + 4 * (heads + (lane >> 2) + (lane & 1) * 8),
                     (lane & 1) != 0 ? soft.frame[1] : soft.frame[0]);
}

}  // namespace sparse_mla::cuda::sm90::prefill_pair
