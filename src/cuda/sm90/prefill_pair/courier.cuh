// The courier warp: carries probabilities to the peer CTA and queries from global memory, and fences what others wrote.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/sm90/prefill_pair/barriers.cuh"
#include "cuda/sm90/prefill_pair/rows.cuh"
#include "cuda/sm90/prefill_pair/shared.h"
#include "cuda/sync/ring.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

// q as [s_q, h_q, d_qk] bytes: boxes of 64 heads by 128 (swizzle 128) and by 64 bytes (swizzle 64).
struct QueryMaps {
  CUtensorMap wide;
  CUtensorMap narrow;
};

template <Policy P>
struct Courier {
  const Args& args;
  const QueryMaps& maps;
  Shared<P>& shared;
  Barriers<P> barriers;
  std::uint32_t rank;

  static constexpr std::uint32_t kGroupHeads = kHeads / kMmaGroups;
  static constexpr std::uint32_t kQueryBytes = kGroupHeads * (kHalfDims + 128 + (kRope<P> ? kRopeDims : 0));
  static constexpr std::uint32_t kProbsBytes = kHeads * kOwnTokens;
  static constexpr std::uint32_t kFrameBytes = kHeads * sizeof(float);

  __device__ void run(std::uint32_t cluster, std::uint32_t clusters) const {
    RowWalk walk(args, cluster, clusters);
    load_query(walk.row, 0);
    prefetch_query(walk.row + clusters);
    std::uint32_t rows_begun = 1;
    for (std::uint32_t tile = 0; walk.inside(args); ++tile) {
      if (walk.last_turn() && walk.row + clusters < args.rows) {
        load_query(walk.row + clusters, rows_begun++);
        prefetch_query(walk.row + 2 * clusters);
      }
      carry_probabilities(tile);
      walk.advance(args);
    }
  }

 private:
  // Own half, tail and rope of the row's 128 heads, each WG's 64 as soon as that WG is done with the row before.
  // `number` counts the rows of this CTA.
  __device__ void load_query(std::uint32_t row, std::uint32_t number) const {
    const RingPosition<1> at(number);
    const std::int32_t query = static_cast<std::int32_t>(args.query_of(row));
    for (std::uint32_t group = 0; group < kMmaGroups; ++group) {
      const std::int32_t head = static_cast<std::int32_t>(args.head_block_of(row) * kHeads + group * kGroupHeads);
      barriers.template wait<Edge::q_free>(group, at.empty_parity());
      if (ptx::elect_sync()) copy_query(query, head, group);
      __syncwarp();
    }
  }

  __device__ void copy_query(std::int32_t query, std::int32_t head, std::uint32_t group) const {
    const std::uint32_t ready = barriers.template at<Edge::q_ready>(group);
    const std::uint32_t wide = group * (kGroupHeads * 128), narrow = group * (kGroupHeads * 64);
    const std::int32_t own = static_cast<std::int32_t>(rank * kHalfDims);
    const std::int32_t tail = static_cast<std::int32_t>((rank ^ 1) * kHalfDims) + 128;
    ptx::mbarrier_arrive_expect_tx(ready, kQueryBytes);
    for (int panel = 0; panel < 2; ++panel)
      ptx::cp_async_bulk_tensor_3d(ptx::shared_address(shared.q_own[panel]) + wide, &maps.wide, own + panel * 128, head,
                                   query, ready);
    ptx::cp_async_bulk_tensor_3d(ptx::shared_address(shared.q_tail) + wide, &maps.wide, tail, head, query, ready);
    if constexpr (kRope<P>)
      ptx::cp_async_bulk_tensor_3d(ptx::shared_address(shared.q_rope) + narrow, &maps.narrow, kValueDims, head, query,
                                   ready);
  }

  // Half of a coming row's q each CTA of the pair, into L2.
  __device__ void prefetch_query(std::uint32_t row) const {
    if (row >= args.rows) return;
    const std::int32_t query = static_cast<std::int32_t>(args.query_of(row));
    if (ptx::elect_sync()) {
      for (std::uint32_t group = 0; group < kMmaGroups; ++group) {
        const std::int32_t head = static_cast<std::int32_t>(args.head_block_of(row) * kHeads + group * kGroupHeads);
        for (int panel = 0; panel < 2; ++panel)
          ptx::cp_async_bulk_prefetch_tensor_3d(&maps.wide, static_cast<std::int32_t>(rank * kHalfDims) + panel * 128,
                                                head, query);
        if (kRope<P> && rank == 0) ptx::cp_async_bulk_prefetch_tensor_3d(&maps.narrow, kValueDims, head, query);
      }
    }
    __syncwarp();
  }

  // P and frames of own tokens: to wgmma in this CTA, and to the peer CTA.
  __device__ void carry_probabilities(std::uint32_t tile) const {
    const RingPosition<P.probs_own_stages> own(tile);
    const RingPosition<P.probs_peer_stages> peer(tile);
    barriers.template wait<Edge::probs_written>(own.slot, own.full_parity());
    ptx::fence_proxy_async_shared();
    __syncwarp();
    const std::uint32_t ready = barriers.template at<Edge::values_ready>(peer.slot);
    if (ptx::elect_sync()) ptx::mbarrier_arrive_expect_tx(ready, kProbsBytes + kFrameBytes);
    barriers.template wait<Edge::peer_probs_free>(peer.slot, peer.empty_parity());
    if (ptx::elect_sync()) {
      // That the peer is done with tile - 2 also says that the copy of tile - 2 has been read out of probs_own.
      if (tile >= P.probs_peer_stages)
        barriers.template arrive<Edge::probs_free>((tile - P.probs_peer_stages) % P.probs_own_stages);
      const std::uint32_t to_rank = rank ^ 1;
      const std::uint32_t ready_there = ptx::mapa(ready, to_rank);
      ptx::cp_async_bulk_to_peer(ptx::mapa(ptx::shared_address(shared.probs_peer[peer.slot]), to_rank),
                                 ptx::shared_address(shared.probs_own[own.slot]), kProbsBytes, ready_there);
      ptx::cp_async_bulk_to_peer(ptx::mapa(ptx::shared_address(shared.frame_peer[peer.slot]), to_rank),
                                 ptx::shared_address(shared.frame_own[own.slot]), kFrameBytes, ready_there);
    }
    __syncwarp();
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
