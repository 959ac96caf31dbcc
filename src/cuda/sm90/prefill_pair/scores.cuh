// S = Q K^T: 64 heads of one MMA warpgroup by 64 own tokens, in units of 32 dims.
//
// Of the other half's 256 dims of Q, 160 are A fragments in registers; the last 96, the own half and rope lie in shared
// memory. Register and shared operands alternate, which spreads the load on shared memory.
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"
#include "cuda/sm90/prefill_pair/args.h"
#include "cuda/sm90/prefill_pair/shared.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

inline constexpr int kHalfSteps = kHalfDims / 32;
inline constexpr int kQuerySteps = kHalfSteps - kQueryTailDims / 32;  // in registers
using QueryFragments = std::uint32_t[kQuerySteps][4];

// The A fragments (m64k32: rows g and g + 8 of the warp's 16, bytes 4c and 16 + 4c) of the other half's dims.
__device__ __forceinline__ void load_query_fragments(QueryFragments& q, const Args& args, std::uint32_t row,
                                                     std::uint32_t rank, std::uint32_t group, std::uint32_t thread) {
  const std::uint32_t lane = thread & 31;
  const std::uint32_t head = args.head_block_of(row) * kHeads + group * 64 + (thread >> 5) * 16 + (lane >> 2);
  const std::uint8_t* low = args.q + static_cast<std::int64_t>(args.query_of(row)) * args.q_row_stride +
                            static_cast<std::int64_t>(head) * args.q_head_stride + (rank ^ 1) * kHalfDims +
                            (lane & 3) * 4;
  const std::uint8_t* high = low + 8 * args.q_head_stride;
#pragma unroll
  for (int step = 0; step < kQuerySteps; ++step) {
    q[step][0] = __ldg(reinterpret_cast<const std::uint32_t*>(low + step * 32));
    q[step][1] = __ldg(reinterpret_cast<const std::uint32_t*>(high + step * 32));
    q[step][2] = __ldg(reinterpret_cast<const std::uint32_t*>(low + step * 32 + 16));
    q[step][3] = __ldg(reinterpret_cast<const std::uint32_t*>(high + step * 32 + 16));
  }
}

// Issues the products of one tile; the caller fences, commits and waits. Addresses are shared::cta; q_own, q_tail and
// q_rope are those of the group's 64 heads.
template <Policy P>
__device__ __forceinline__ void issue_scores(float (&scores)[32], const QueryFragments& q, std::uint32_t q_own,
                                             std::uint32_t q_tail, std::uint32_t q_rope, std::uint32_t rest,
                                             std::uint32_t rest_rope, std::uint32_t own) {
  using ptx::Swizzle;
  const std::uint64_t q_tile = ptx::wgmma_descriptor<Swizzle::k128B>(q_own);
  const std::uint64_t q_tail_tile = ptx::wgmma_descriptor<Swizzle::k128B>(q_tail);
  const std::uint64_t rest_tile = ptx::wgmma_descriptor<Swizzle::k128B>(rest);
  const std::uint64_t own_tile = ptx::wgmma_descriptor<Swizzle::k128B>(own);
#pragma unroll
  for (int step = 0; step < kHalfSteps; ++step) {
    const std::uint32_t panel = step / 4, inside = (step % 4) * 32;
    const std::uint32_t k_offset = panel * (kOwnTokens * 128) + inside;
    static_assert(kQuerySteps >= 4, "q_tail is the second panel");
    if (step < kQuerySteps)
      ptx::wgmma_e4m3_rs(scores, q[step], ptx::wgmma_descriptor_at(rest_tile, k_offset), step != 0);
    else
      ptx::wgmma_e4m3_ss(scores, ptx::wgmma_descriptor_at(q_tail_tile, inside),
                         ptx::wgmma_descriptor_at(rest_tile, k_offset), true);
    ptx::wgmma_e4m3_ss(scores, ptx::wgmma_descriptor_at(q_tile, panel * (kHeads * 128) + inside),
                       ptx::wgmma_descriptor_at(own_tile, k_offset), true);
  }
  if constexpr (kRope<P>) {
    const std::uint64_t q_rope_tile = ptx::wgmma_descriptor<Swizzle::k64B>(q_rope);
    const std::uint64_t k_rope_tile = ptx::wgmma_descriptor<Swizzle::k64B>(rest_rope);
#pragma unroll
    for (int step = 0; step < 2; ++step)
      ptx::wgmma_e4m3_ss(scores, ptx::wgmma_descriptor_at(q_rope_tile, step * 32),
                         ptx::wgmma_descriptor_at(k_rope_tile, step * 32), true);
  }
}

}  // namespace sparse_mla::cuda::sm90::prefill_pair
