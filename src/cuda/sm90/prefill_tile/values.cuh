// O^T += V^T P^T: 256 value dims of the group x the tile's heads.
#pragma once

#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"
#include "cuda/sm90/prefill_tile/heads.cuh"
#include "cuda/tile/swizzle.h"
#include "cuda/tile/value_fragment.cuh"

namespace sparse_mla::cuda::sm90::prefill_tile {

// O^T into the frames of block b: the factor of a head is 2^(frame before - frame of b).
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::rescale(std::uint32_t slot, std::uint32_t lane) {
  if (ptx::ld_shared_b32(shared + S::moved + slot * 4) == 0) return;
  ptx::wgmma_wait_group<0>();
#pragma unroll
  for (int m = 0; m < 4; ++m) ptx::wgmma_touch(o[m]);
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    const float2 alpha = ptx::ld_shared_f32x2(shared + S::alpha + (slot * 64 + n * 8 + (lane & 3) * 2) * 4);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      o[m][n * 4 + 0] *= alpha.x;
      o[m][n * 4 + 1] *= alpha.y;
      o[m][n * 4 + 2] *= alpha.x;
      o[m][n * 4 + 3] *= alpha.y;
    }
  }
}

// O^T (+)= V^T P^T of block b. The products are in flight on return; the kv slot is free.
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::weigh(std::uint32_t b) {
  const std::uint32_t lane = ptx::opaque(this->lane);
  const PRing at(b);
  const KvRing kv(b);
  ptx::mbarrier_wait(shared + S::p_full + at.slot * 8, at.full_parity());
  const std::uint32_t values = shared + S::kv + kv.slot * S::kTile + (2 * group + warp / 2) * S::kPanel +
                               swizzle_128b(lane, (warp & 1) * 4);
  const std::uint64_t p =
      ptx::wgmma_descriptor<ptx::Swizzle::k64B>(shared + S::p + at.slot * S::kProbabilityTile);
  const bool accumulate = b != begin;
  if (accumulate) rescale(at.slot, lane);
#pragma unroll
  for (int unit = 0; unit < 8 / kUnit; ++unit) {  // products 0-3: tiles 0-3 of the first k step, 4-7: of the second
    std::uint32_t(&fragment)[kUnit][4] = a[unit & 1];
    std::uint32_t raw[kUnit][4];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const auto m = static_cast<std::uint32_t>((unit * kUnit + i) % 4);
      ptx::ldmatrix_x4_trans(raw[i], (values ^ (m << 4)) + (unit * kUnit / 4) * 32 * 128);
    }
    ptx::wgmma_wait_group<1>();  // the products that read this half of `a` are complete
#pragma unroll
    for (int i = 0; i < kUnit; ++i) ptx::wgmma_touch(fragment[i]);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) value_fragment(fragment[i], raw[i]);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const int product = unit * kUnit + i;
      ptx::wgmma_e4m3_rs(o[product % 4], fragment[i], ptx::wgmma_descriptor_at(p, (product / 4) * 32),
                         product >= 4 || accumulate);
    }
    ptx::wgmma_commit_group();
  }
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(shared + S::empty + kv.slot * 8);
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
