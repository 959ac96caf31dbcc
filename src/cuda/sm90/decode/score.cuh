// S^T = K Q^T of one block, by one scoring warpgroup.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/decode/fragments.cuh"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
__device__ __forceinline__ void score_block(float (&s)[P.heads / 2], std::uint32_t base, int slot, int warp, int lane) {
  using S = Shared<P>;
  Keys<P> keys;
  keys.open(base, slot, warp, lane);
  const std::uint64_t q = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(base + S::q);
  std::uint32_t raw[2][Keys<P>::kRaw];
  Unit fragments[2];
  keys.load(0, raw[0]);
  keys.load(1, raw[1]);
  keys.convert(0, raw[0], fragments[0]);
#pragma unroll
  for (int unit = 0; unit < Keys<P>::kUnits; ++unit) {
    const int now = unit % 2;
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const std::uint32_t at = (unit / 2) * S::kPanel + (2 * now + step) * 32;
      multiply<P>(s, fragments[now].step[step], ptx::wgmma_descriptor_at(q, at), unit + step != 0);
    }
    ptx::wgmma_commit_group();
    if (unit + 2 < Keys<P>::kUnits) keys.load(unit + 2, raw[now]);
    if (unit + 1 < Keys<P>::kUnits) {
      ptx::wgmma_wait_group<1>();
      keys.convert(unit + 1, raw[1 - now], fragments[1 - now]);
    }
  }
  ptx::wgmma_wait_group<0>();
}

}  // namespace sparse_mla::cuda::sm90::decode
