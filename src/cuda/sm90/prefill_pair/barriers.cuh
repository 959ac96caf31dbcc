// The handshakes of handshakes.h, on the device.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/prefill_pair/handshakes.h"

#ifdef SPARSE_MLA_TRAP_ON_HANG
#include <cstdio>
#endif

namespace sparse_mla::cuda::sm90::prefill_pair {

template <Policy P>
struct Barriers {
  std::uint32_t base;  // shared::cta address of the first mbarrier

  template <Edge kEdge>
  __device__ std::uint32_t at(std::uint32_t slot) const {
    return base + 8u * (kFirstBarrier<P, kEdge> + slot);
  }
  template <Edge kEdge>
  __device__ void wait(std::uint32_t slot, std::uint32_t parity) const {
#ifdef SPARSE_MLA_TRAP_ON_HANG
    const long long start = clock64();
    while (!ptx::mbarrier_try_wait_parity(at<kEdge>(slot), parity)) {
      if (clock64() - start > 200'000'000) {
        if (threadIdx.x % 32 == 0)
          printf("hang: block %d warp %d edge %d slot %u parity %u\n", blockIdx.x, threadIdx.x / 32, int(kEdge), slot,
                 parity);
        __nanosleep(100'000'000);
        __trap();
      }
    }
#else
    ptx::mbarrier_wait(at<kEdge>(slot), parity);
#endif
  }
  template <Edge kFirst, Edge kSecond>
  __device__ void wait_two(std::uint32_t first_slot, std::uint32_t first_parity, std::uint32_t second_slot,
                           std::uint32_t second_parity) const {
#ifdef SPARSE_MLA_TRAP_ON_HANG
    wait<kFirst>(first_slot, first_parity);
    wait<kSecond>(second_slot, second_parity);
#else
    ptx::mbarrier_wait_two(at<kFirst>(first_slot), first_parity, at<kSecond>(second_slot), second_parity);
#endif
  }
  template <Edge kEdge>
  __device__ void arrive(std::uint32_t slot) const {
    ptx::mbarrier_arrive(at<kEdge>(slot));
  }
  template <Edge kEdge>
  __device__ void arrive_at_peer(std::uint32_t slot, std::uint32_t peer_rank) const {
    ptx::mbarrier_arrive_cluster(ptx::mapa(at<kEdge>(slot), peer_rank));
  }

  template <int kEdge = 0>
  __device__ void init() const {
    if constexpr (kEdge < kEdges) {
      constexpr Edge kThis = static_cast<Edge>(kEdge);
      for (int slot = 0; slot < kHandshake<P, kThis>.slots; ++slot)
        ptx::mbarrier_init(at<kThis>(slot), kHandshake<P, kThis>.arrivals);
      init<kEdge + 1>();
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
