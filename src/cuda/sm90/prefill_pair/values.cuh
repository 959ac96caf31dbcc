// O^T += V^T P^T: 128 value dims of one MMA warpgroup by all 128 heads, 64 tokens at a time.
//
// Rows of the accumulator are dims, columns are heads: thread (g, c) of a warp holds, for column block n, heads 8n + 2c
// and 8n + 2c + 1 at dims 2g (registers 4n, 4n + 1) and 2g + 1 (4n + 2, 4n + 3) of its 16-dim slice. The two slices of
// a warp are neighbours: dims 32 * warp + 16 * slice.
#pragma once

#include <cstdint>

#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"
#include "cuda/sm90/prefill_pair/shared.h"
#include "cuda/tile/swizzle.h"
#include "cuda/tile/value_fragment.cuh"

namespace sparse_mla::cuda::sm90::prefill_pair {

using Accumulator = float[2][64];
using ValueFragments = std::uint32_t[2][2][4];  // [slice][32-token step]

// `panel` is the shared address of the group's 128-byte panel of 64 tokens.
__device__ __forceinline__ void load_values(ValueFragments& v, std::uint32_t panel, std::uint32_t thread) {
  const std::uint32_t lane = thread & 31, warp = thread >> 5;
#pragma unroll
  for (int slice = 0; slice < 2; ++slice)
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t raw[4];
      ptx::ldmatrix_x4_trans(raw, panel + step * 4096 + swizzle_128b(lane, warp * 2 + slice));
      value_fragment(v[slice][step], raw);
    }
}

// The fragments are made here, and not between products where ptxas would have to serialise (C7513).
__device__ __forceinline__ void settle(ValueFragments& v) {
#pragma unroll
  for (int slice = 0; slice < 2; ++slice)
#pragma unroll
    for (int step = 0; step < 2; ++step) ptx::wgmma_touch(v[slice][step]);
}

// Issues the products of half a turn; the caller fences, commits and waits.
__device__ __forceinline__ void issue_values(Accumulator& out, const ValueFragments& v, std::uint32_t probs,
                                             bool accumulate) {
  const std::uint64_t p = ptx::wgmma_descriptor<ptx::Swizzle::k64B>(probs);
#pragma unroll
  for (int step = 0; step < 2; ++step)
#pragma unroll
    for (int slice = 0; slice < 2; ++slice)
      ptx::wgmma_e4m3_rs(out[slice], v[slice][step], ptx::wgmma_descriptor_at(p, step * 32), step != 0 || accumulate);
}

// The frames of the accumulator's columns, the same in every warp: lane holds those of heads 2 * lane, + 1 and
// 64 + 2 * lane, + 1, so that the two heads of a thread in column block n come from one lane, 4 * (n % 8) + c.
using Frames = float[4];

__device__ __forceinline__ void load_frames(Frames& frames, std::uint32_t address, std::uint32_t lane) {
  const uint2 low = ptx::ld_shared_v2(address + lane * 8), high = ptx::ld_shared_v2(address + 256 + lane * 8);
  frames[0] = __uint_as_float(low.x);
  frames[1] = __uint_as_float(low.y);
  frames[2] = __uint_as_float(high.x);
  frames[3] = __uint_as_float(high.y);
}

__device__ __forceinline__ bool differ(const Frames& a, const Frames& b) {
  std::uint32_t bits = 0;  // together, which is shorter than four comparisons one after the other
#pragma unroll
  for (int i = 0; i < 4; ++i) bits |= __float_as_uint(a[i]) ^ __float_as_uint(b[i]);
  return bits != 0;
}

// Scaling up is bounded: a tile more than 60 octaves below the accumulator is nothing beside it in either frame.
inline constexpr float kMostOctavesUp = 60.0f;

// Brings the accumulator from `frames` to the frames `to`. Nothing may be in flight on it.
__device__ __forceinline__ void change_frames(Accumulator& out, Frames& frames, const Frames& to, std::uint32_t lane) {
  Frames factor;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float up = fminf(frames[i] - to[i], kMostOctavesUp);
    factor[i] = ptx::ex2(up);
    frames[i] = up < kMostOctavesUp ? to[i] : frames[i] - up;
  }
#pragma unroll
  for (int block = 0; block < 16; ++block) {
    const int source = (block % 8) * 4 + (lane & 3);
    const float first = __shfl_sync(0xFFFFFFFFu, factor[block / 8 * 2], source);
    const float second = __shfl_sync(0xFFFFFFFFu, factor[block / 8 * 2 + 1], source);
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
      out[slice][block * 4] *= first;
      out[slice][block * 4 + 1] *= second;
      out[slice][block * 4 + 2] *= first;
      out[slice][block * 4 + 3] *= second;
    }
  }
}

}  // namespace sparse_mla::cuda::sm90::prefill_pair
