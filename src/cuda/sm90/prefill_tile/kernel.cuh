// One persistent CTA: hands out the roles.
#pragma once

#include "cuda/ptx/barrier.cuh"
#include "cuda/sm90/prefill_tile/heads.cuh"
#include "cuda/sm90/prefill_tile/handshakes.h"
#include "cuda/sm90/prefill_tile/loader.cuh"
#include "cuda/sm90/prefill_tile/row_end.cuh"
#include "cuda/sm90/prefill_tile/scores.cuh"
#include "cuda/sm90/prefill_tile/softmax.cuh"
#include "cuda/sm90/prefill_tile/values.cuh"

namespace sparse_mla::cuda::sm90::prefill_tile {

template <Policy kPolicy>
__device__ inline void prepare_shared(std::uint32_t shared) {
  using S = Shared<kPolicy>;
  for (std::uint32_t i = threadIdx.x; i < S::kTile / 16; i += kThreads) {  // heads past the tile's score zeros
    ptx::st_shared_v4(shared + S::q + i * 16, make_uint4(0, 0, 0, 0));
  }
  if (threadIdx.x < kProbabilitySlots) ptx::st_shared_b32(shared + S::moved + threadIdx.x * 4, 0);
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < kPolicy.slots; ++i) {
      ptx::mbarrier_init(shared + S::full + i * 8, kFullArrivals);
      ptx::mbarrier_init(shared + S::empty + i * 8, kEmptyArrivals);
    }
    for (std::uint32_t i = 0; i < kProbabilitySlots; ++i) {
      ptx::mbarrier_init(shared + S::p_full + i * 8, kPFullArrivals);
      ptx::mbarrier_init(shared + S::p_empty + i * 8, kPEmptyArrivals);
    }
    for (std::uint32_t i = 0; i < 8; ++i) ptx::mbarrier_init(shared + S::chain + i * 8, kChainArrivals);
    ptx::mbarrier_init(shared + S::q_full, kQFullArrivals);
    ptx::mbarrier_init(shared + S::q_empty, kQEmptyArrivals);
    ptx::mbarrier_init(shared + S::sums_full, kSumsFullArrivals);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

// nvcc 13.0 writes a host stub that does not compile for a kernel with a struct as template argument, hence the plain values.
template <int kHeads, int kDqk, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1) prefill_tile(const __grid_constant__ Args args) {
  constexpr Policy kPolicy = kPolicyOf<kHeads, kDqk, kSplit>;
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const std::uint32_t shared = ptx::shared_address(memory);
  prepare_shared<kPolicy>(shared);
  const std::uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (warp < 8) {
    ptx::setmaxnreg_inc<kPolicy.mma_registers>();
    Heads<kPolicy> role{.args = args, .shared = shared, .group = warp / 4, .warp = warp % 4, .lane = threadIdx.x % 32};
    role.run();
  } else {
    ptx::setmaxnreg_dec<kPolicy.loader_registers>();
    Loader<kPolicy> role{.args = args, .shared = shared, .warp = warp % 4, .lane = threadIdx.x % 32};
    role.run();
  }
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
