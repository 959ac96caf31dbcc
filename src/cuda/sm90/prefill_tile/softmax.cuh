// From scores to probabilities in e4m3, in frames that follow the running maximum.
#pragma once

#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/sm90/prefill_tile/heads.cuh"
#include "cuda/tile/swizzle.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

// P = 2^(S scale - frame + kTopExponent), published as e4m3. S is in flight on entry; all products are complete after.
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::soften(std::uint32_t b) {
  const std::uint32_t lane = ptx::opaque(this->lane);
  const PRing at(b);
  const std::uint32_t head = warp * 16 + lane / 4;
  float before[2] = {kNoFrame, kNoFrame};
  if (scores_heads() && b > begin) {
    ptx::mbarrier_wait(shared + S::chain + (((b - 1) & 1) * 4 + warp) * 8, ((b - 1) >> 1) & 1);
    before[0] = ptx::ld_shared_f32(shared + S::frame + (((b - 1) & 1) * 64 + head) * 4);
    before[1] = ptx::ld_shared_f32(shared + S::frame + (((b - 1) & 1) * 64 + head + 8) * 4);
  }
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_touch(s);
  if (b + 2 >= end) release_q();
  if (scores_heads()) {
    mask(b, lane);
    if (negative) {
#pragma unroll
      for (float& x : s) x = -x;
    }
    float now[2] = {before[0], before[1]};
    const bool moved = adopt(b, now);
    if ((lane & 3) == 0) {
      ptx::st_shared_f32(shared + S::frame + ((b & 1) * 64 + head) * 4, now[0]);
      ptx::st_shared_f32(shared + S::frame + ((b & 1) * 64 + head + 8) * 4, now[1]);
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + S::chain + ((b & 1) * 4 + warp) * 8);

    const float offset[2] = {kTopExponent - now[0], kTopExponent - now[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = ptx::ex2(fmaf(s[i], scale, offset[(i / 2) & 1]));
    float add[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 32; ++i) add[i & 3] += s[i];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = fmaf(sum[r], ptx::ex2(frame[r] - now[r]), add[2 * r] + add[2 * r + 1]);
      frame[r] = now[r];
    }
    publish(b, lane, head, moved, before, now);
  }
  ptx::fence_proxy_async_shared();
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(shared + S::p_full + at.slot * 8);
}

// Lets the frames follow the running maximum, in the blocks of the schedule and wherever P would not fit e4m3.
// True where a frame of the warp moved.
template <Policy kPolicy>
__device__ inline bool Heads<kPolicy>::adopt(std::uint32_t b, float (&now)[2]) {
  float top[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
  for (int i = 4; i < 32; ++i) top[i & 3] = fmaxf(top[i & 3], s[i]);
  top[0] = fmaxf(top[0], top[1]);
  top[2] = fmaxf(top[2], top[3]);
  seen[0] = fmaxf(seen[0], top[0]);
  seen[1] = fmaxf(seen[1], top[2]);
  const bool over = fmaf(top[0], scale, -now[0]) > kHeadroom || fmaf(top[2], scale, -now[1]) > kHeadroom;
  if (!adopts(b - begin) && !__any_sync(0xFFFFFFFFu, over)) return false;
  const float before[2] = {now[0], now[1]};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    seen[r] = fmaxf(seen[r], __shfl_xor_sync(0xFFFFFFFFu, seen[r], 1));
    seen[r] = fmaxf(seen[r], __shfl_xor_sync(0xFFFFFFFFu, seen[r], 2));
    now[r] = fmaxf(now[r], seen[r] * scale);
  }
  return __any_sync(0xFFFFFFFFu, now[0] != before[0] || (kN > 8 && now[1] != before[1]));
}

template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::mask(std::uint32_t b, std::uint32_t lane) {
  const KvRing at(b);
  const uint2 valid = ptx::ld_shared_v2(shared + S::valid + at.slot * 8);
  if ((valid.x & valid.y) == 0xFFFFFFFFu) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t token = static_cast<std::uint32_t>(i / 4) * 8 + (lane & 3) * 2 + (i & 1);
    const std::uint32_t word = i < 16 ? valid.x : valid.y;
    if (!((word >> (token & 31)) & 1)) s[i] = negative ? __int_as_float(0x7F800000) : __int_as_float(0xFF800000);
  }
}

template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::publish(std::uint32_t b, std::uint32_t lane, std::uint32_t head, bool moved, const float (&before)[2], const float (&now)[2]) {
  const PRing at(b);
  ptx::mbarrier_wait(shared + S::p_empty + at.slot * 8, at.empty_parity());
  const std::uint32_t tile = shared + S::p + at.slot * S::kProbabilityTile;
  const std::uint32_t row = warp * 16 + (lane & 7);
  const std::uint32_t chunk = lane / 8;
  std::uint32_t packed[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // row i / 4, chunk i % 4
    const int at4 = (i % 4) * 8 + (i / 4) * 2;
    packed[i] = ptx::cvt_e4m3x2_f32(s[at4], s[at4 + 1]) |
                static_cast<std::uint32_t>(ptx::cvt_e4m3x2_f32(s[at4 + 4], s[at4 + 5])) << 16;
  }
  ptx::stmatrix_x4(tile + swizzle_64b(row, chunk), packed[0], packed[1], packed[2], packed[3]);
  if constexpr (kN > 8) {
    ptx::stmatrix_x4(tile + swizzle_64b(row + 8, chunk), packed[4], packed[5], packed[6], packed[7]);
  }
  if ((lane & 3) == 0) {
    ptx::st_shared_f32(shared + S::alpha + (at.slot * 64 + head) * 4, ptx::ex2(before[0] - now[0]));
    ptx::st_shared_f32(shared + S::alpha + (at.slot * 64 + head + 8) * 4, ptx::ex2(before[1] - now[1]));
  }
  if (lane == 0) ptx::st_shared_b8(shared + S::moved + at.slot * 4 + warp, moved);
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
