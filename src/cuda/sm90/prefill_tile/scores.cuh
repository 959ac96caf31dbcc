// S = Q K^T: 64 heads (rows past the tile's are padding) x 64 tokens.
#pragma once

#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"
#include "cuda/sm90/prefill_tile/heads.cuh"
#include "cuda/tile/swizzle.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

// The A fragment of a k step: rows g and g + 8 of the warp's 16 heads, bytes 4c .. 4c + 3 of each half of 32.
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::load_q() {
  const std::uint32_t head = warp * 16 + (lane & 15);
#pragma unroll
  for (int step = 0; step < kPolicy.q_steps; ++step) {
    ptx::ldmatrix_x4(q[step],
                     shared + S::q + (step / 4) * S::kPanel + swizzle_128b(head, (step % 4) * 2 + lane / 16));
  }
}

// S = Q K^T, 64 heads x 64 tokens.
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::score(std::uint32_t b) {
  const KvRing at(b);
  ptx::mbarrier_wait(shared + S::full + at.slot * 8, at.full_parity());
  // The rows came by cp.async, a generic-proxy write; wgmma reads them by the async proxy.
  ptx::fence_proxy_async_shared();
  const std::uint32_t k_tile = shared + S::kv + at.slot * S::kTile;
  const std::uint64_t q_tile_at = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(shared + S::q);
  const std::uint64_t k = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(k_tile);
  ptx::wgmma_touch(s);
  ptx::wgmma_fence();
#pragma unroll
  for (std::uint32_t i = 0; i < 16; ++i) {
    const std::uint32_t step = order(i);
    const std::uint32_t bytes = (step / 4) * S::kPanel + (step % 4) * 32;
    if (static_cast<int>(step) < kPolicy.q_steps) {
      ptx::wgmma_e4m3_rs(s, q[step], ptx::wgmma_descriptor_at(k, bytes), i > 0);
    } else {
      ptx::wgmma_e4m3_ss(s, ptx::wgmma_descriptor_at(q_tile_at, bytes), ptx::wgmma_descriptor_at(k, bytes), i > 0);
    }
  }
  if constexpr (kPolicy.d_qk > kValueDims) {
    const std::uint64_t q_rope = ptx::wgmma_descriptor<ptx::Swizzle::k64B>(shared + S::q + S::kRope);
    const std::uint64_t k_rope = ptx::wgmma_descriptor<ptx::Swizzle::k64B>(k_tile + S::kRope);
#pragma unroll
    for (std::uint32_t step = 0; step < 2; ++step) {
      ptx::wgmma_e4m3_ss(s, ptx::wgmma_descriptor_at(q_rope, step * 32), ptx::wgmma_descriptor_at(k_rope, step * 32),
                         true);
    }
  }
  ptx::wgmma_commit_group();
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
