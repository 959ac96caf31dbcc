// The kernel: sets up the handshakes and hands out the roles.
#pragma once

#include <cstdint>

#include "cuda/ptx/barrier.cuh"
#include "cuda/sm90/prefill_pair/courier.cuh"
#include "cuda/sm90/prefill_pair/loader.cuh"
#include "cuda/sm90/prefill_pair/mma.cuh"

namespace sparse_mla::cuda::sm90::prefill_pair {

__device__ inline float octaves_per_score(const Args& args) {
  const float q = args.q_scale == nullptr ? 1.0f : __ldg(args.q_scale);
  const float kv = args.kv_scale == nullptr ? 1.0f : __ldg(args.kv_scale);
  // Held where a product with the largest score (2^27) is still finite.
  const float scale = fminf(fmaxf(args.sm_scale * q * kv * kLog2E, -1e30f), 1e30f);
  return __uint_as_float(__reduce_or_sync(0xFFFFFFFFu, __float_as_uint(scale)));  // a uniform register
}

// nvcc 13.0 writes a host stub that does not compile for a kernel with a struct as template argument, hence the int.
template <int kDqk>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ Args args, const __grid_constant__ QueryMaps maps) {
  constexpr Policy P = kPolicyFor<kDqk>;
  static_assert(sizeof(Shared<P>) <= kMostShared, "the buffers pass the 227 KiB that a block can have on sm_90");
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  Shared<P>& shared = *reinterpret_cast<Shared<P>*>(bytes);
  const Barriers<P> barriers{ptx::shared_address(shared.barriers)};
  const std::uint32_t rank = ptx::cluster_ctarank();
  const std::uint32_t cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
  const std::uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    barriers.init();
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::cluster_arrive();
  ptx::cluster_wait();

  // Uniform registers, and nothing that the compiler would make anew from special registers.
  const std::uint32_t base = __reduce_or_sync(0xFFFFFFFFu, ptx::shared_address(bytes));
  if (group < kMmaGroups) {
    ptx::setmaxnreg_inc<P.mma_registers>();
    // Through a shuffle, because ptxas would rather read the thread's special register again (50 cycles) than keep it.
    const std::uint32_t thread = __shfl_sync(0xFFFFFFFFu, threadIdx.x % 128, threadIdx.x % 32);
    const std::uint32_t peer_base = __reduce_or_sync(0xFFFFFFFFu, ptx::mapa(base, rank ^ 1));
    const Barriers<P> by_base{base + static_cast<std::uint32_t>(offsetof(Shared<P>, barriers))};
    Mma<P> mma{args, shared, by_base, base, peer_base, rank, group, thread, octaves_per_score(args)};
    mma.run(cluster, clusters);
  } else {
    ptx::setmaxnreg_dec<P.loader_registers>();
    const std::uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32 % 4, 0);
    if (warp == 0) Loader<P, Ring::rest>::run(args, base, rank, cluster, clusters);
    if (warp == 1) Loader<P, Ring::own>::run(args, base, rank, cluster, clusters);
    if (warp == 2) Loader<P, Ring::peer>::run(args, base, rank, cluster, clusters);
    if (warp == 3) Courier<P>{args, maps, shared, barriers, rank}.run(cluster, clusters);
    __syncwarp();
  }
  // Neither CTA leaves while the other one may still write to it or read from it.
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace sparse_mla::cuda::sm90::prefill_pair
