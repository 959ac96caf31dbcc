// The three loader warps: each fills one ring with rows of kv named by the indices.
//
// One warp, one ring, so no ring ever waits behind another one's full slots. A warp copies 64 rows, waits until they have
// landed, makes them visible to wgmma (proxy fence) and hands the slot over with one arrival.
#pragma once

#include <cstdint>

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/sm90/prefill_pair/barriers.cuh"
#include "cuda/sm90/prefill_pair/rows.cuh"
#include "cuda/sm90/prefill_pair/shared.h"
#include "cuda/sync/ring.h"
#include "cuda/tile/swizzle.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

// Two tokens of a lane: rows lane and lane + 32 of a tile. A token that is not valid is -1.
struct TilePair {
  std::int32_t low, high;
};

// `side` 0 or 1 picks the first or second 64 slots of the turn. Nothing at or past the row's length is read.
__device__ inline TilePair load_indices(const Args& args, const RowWalk& walk, std::uint32_t side, std::uint32_t lane) {
  const std::int32_t* row = args.indices + static_cast<std::int64_t>(walk.row / args.head_blocks) * args.indices_row_stride;
  const std::int32_t position = static_cast<std::int32_t>(walk.turn * kTurnTokens + side * kOwnTokens + lane);
  TilePair tokens{-1, -1};
  if (position < walk.length) tokens.low = __ldg(row + position);
  if (position + 32 < walk.length) tokens.high = __ldg(row + position + 32);
  return tokens;
}

__device__ inline TilePair only_valid(TilePair tokens, std::uint32_t s_kv) {
  if (static_cast<std::uint32_t>(tokens.low) >= s_kv) tokens.low = -1;
  if (static_cast<std::uint32_t>(tokens.high) >= s_kv) tokens.high = -1;
  return tokens;
}

// 256 bytes of each of 64 kv rows, from byte `column` on, into two 128-byte panels. Rows of tokens that are not valid
// become zero and nothing of kv is read for them.
__device__ inline void copy_half_rows(std::uint32_t to, const Args& args, std::uint32_t column, TilePair tokens,
                                      std::uint32_t lane) {
  const std::uint32_t chunk = lane & 7;
  const std::uint8_t* from = args.kv + column + chunk * 16;
#pragma unroll
  for (std::uint32_t four = 0; four < 16; ++four) {
    const std::uint32_t row = four * 4 + (lane >> 3);
    const std::int32_t token = __shfl_sync(0xFFFFFFFFu, four < 8 ? tokens.low : tokens.high, row & 31);
    const std::uint32_t bytes = token < 0 ? 0 : 16;
    const std::uint8_t* source = from + static_cast<std::uint64_t>(static_cast<std::uint32_t>(max(token, 0))) * args.kv_row_stride;
    const std::uint32_t target = to + swizzle_128b(row, chunk);
    ptx::cp_async_16(target, source, bytes);
    ptx::cp_async_16(target + kOwnTokens * 128, source + 128, bytes);
  }
}

// The last 64 bytes of each of 64 kv rows.
__device__ inline void copy_rope_rows(std::uint32_t to, const Args& args, TilePair tokens, std::uint32_t lane) {
  const std::uint32_t chunk = lane & 3;
  const std::uint8_t* from = args.kv + kValueDims + chunk * 16;
#pragma unroll
  for (std::uint32_t eight = 0; eight < 8; ++eight) {
    const std::uint32_t row = eight * 8 + (lane >> 2);
    const std::int32_t token = __shfl_sync(0xFFFFFFFFu, eight < 4 ? tokens.low : tokens.high, row & 31);
    const std::uint8_t* source = from + static_cast<std::uint64_t>(static_cast<std::uint32_t>(max(token, 0))) * args.kv_row_stride;
    ptx::cp_async_16(to + swizzle_64b(row, chunk), source, token < 0 ? 0 : 16);
  }
}

enum class Ring : std::uint8_t { rest, own, peer };

template <Policy P, Ring kRing>
struct Loader {
  static constexpr Edge kReady = kRing == Ring::peer ? Edge::values_ready : Edge::keys_ready;
  static constexpr Edge kFree = kRing == Ring::rest ? Edge::rest_free : kRing == Ring::own ? Edge::own_free : Edge::peer_free;
  static constexpr int kReadySlots = kRing == Ring::peer ? P.peer_stages : P.own_stages;
  static constexpr int kSlots = kRing == Ring::rest ? P.rest_stages : kRing == Ring::own ? P.own_stages : P.peer_stages;

  __device__ static void run(const Args& args, Shared<P>& shared, std::uint32_t rank, std::uint32_t cluster,
                             std::uint32_t clusters) {
    const std::uint32_t lane = threadIdx.x & 31;
    const std::uint32_t side = kRing == Ring::peer ? rank ^ 1 : rank;
    const std::uint32_t column = (kRing == Ring::rest ? rank ^ 1 : rank) * kHalfDims;
    const Barriers<P> barriers{ptx::shared_address(shared.barriers)};
    RowWalk walk(args, cluster, clusters);
    TilePair next = load_indices(args, walk, side, lane);
    for (std::uint32_t tile = 0; walk.inside(args); ++tile) {
      const RingPosition<kSlots> at(tile);
      const TilePair tokens = only_valid(next, args.s_kv);
      barriers.template wait<kFree>(at.slot, at.empty_parity());
      if constexpr (kRing == Ring::rest) {
        copy_half_rows(ptx::shared_address(shared.rest[at.slot].other_half), args, column, tokens, lane);
        if constexpr (kRope<P>) copy_rope_rows(ptx::shared_address(shared.rest[at.slot].rope), args, tokens, lane);
      } else if constexpr (kRing == Ring::own) {
        copy_half_rows(ptx::shared_address(shared.own[at.slot]), args, column, tokens, lane);
        const std::uint32_t low = __ballot_sync(0xFFFFFFFFu, tokens.low >= 0);
        const std::uint32_t high = __ballot_sync(0xFFFFFFFFu, tokens.high >= 0);
        if (lane == 0)
          ptx::st_shared_v4(ptx::shared_address(&shared.info[at.slot]), make_uint4(low, high, walk.last_turn() ? 1 : 0, 0));
      } else {
        copy_half_rows(ptx::shared_address(shared.peer[at.slot]), args, column, tokens, lane);
      }
      ptx::cp_async_commit_group();
      walk.advance(args);
      if (walk.inside(args)) next = load_indices(args, walk, side, lane);
      ptx::cp_async_wait_group<0>();
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (lane == 0) barriers.template arrive<kReady>(tile % kReadySlots);
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
