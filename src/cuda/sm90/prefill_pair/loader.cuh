// The three loader warps: each fills one ring with rows of kv named by the indices.
//
// One warp, one ring, so no ring ever waits behind another one's full slots. A warp copies 64 rows, waits until they
// have landed, makes them visible to wgmma (proxy fence) and hands the slot over with one arrival.
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

// `first` is the tile's first index slot of the row. Nothing at or past the row's length is read.
__device__ inline TilePair load_indices(const std::int32_t* row, std::int32_t length, std::uint32_t first,
                                        std::uint32_t lane) {
  const std::int32_t position = static_cast<std::int32_t>(first + lane);
  TilePair tokens{-1, -1};
  if (position < length) tokens.low = __ldg(row + position);
  if (position + 32 < length) tokens.high = __ldg(row + position + 32);
  return tokens;
}

__device__ inline TilePair only_valid(TilePair tokens, std::uint32_t s_kv) {
  if (static_cast<std::uint32_t>(tokens.low) >= s_kv) tokens.low = -1;
  if (static_cast<std::uint32_t>(tokens.high) >= s_kv) tokens.high = -1;
  return tokens;
}
__device__ inline bool all_valid(TilePair tokens) {
  return __all_sync(0xFFFFFFFFu, tokens.low >= 0 && tokens.high >= 0);
}

// One 16-byte chunk of a kv row; zero where the token is not valid, and nothing of kv is read then.
template <bool kAllValid>
__device__ __forceinline__ void copy_chunk(std::uint32_t to, const std::uint8_t* from, std::int32_t token) {
  if constexpr (kAllValid)
    ptx::cp_async_16(to, from);
  else
    ptx::cp_async_16(to, from, token < 0 ? 0 : 16);
}

template <bool kAllValid>
__device__ __forceinline__ const std::uint8_t* kv_row(const std::uint8_t* column, std::int32_t token,
                                                      std::uint32_t stride) {
  const std::uint32_t row = kAllValid ? token : max(token, 0);
  return column + static_cast<std::uint64_t>(row) * stride;
}

// 256 bytes of each of 64 kv rows into two 128-byte panels: eight lanes a row, four rows at a time.
struct HalfRows {
  const std::uint8_t* from;  // this lane's chunk of kv row 0
  std::uint32_t to[2];       // where it goes in the tile: in rows 0-3 and 4-7 of each eight
  std::uint32_t row;         // of the four

  __device__ HalfRows(const std::uint8_t* column, std::uint32_t lane)
      : from(ptx::opaque(column + (lane & 7) * 16)),
        to{ptx::opaque(swizzle_128b(lane >> 3, lane & 7)), ptx::opaque(swizzle_128b(4 + (lane >> 3), lane & 7))},
        row(lane >> 3) {}

  template <bool kAllValid>
  __device__ __forceinline__ void copy(std::uint32_t tile, std::uint32_t stride, TilePair tokens) const {
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      std::int32_t token[4];  // asked for together: a shuffle takes 20 cycles
#pragma unroll
      for (int i = 0; i < 4; ++i)
        token[i] = __shfl_sync(0xFFFFFFFFu, sixteen < 2 ? tokens.low : tokens.high, (sixteen & 1) * 16 + i * 4 + row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t target = tile + to[i & 1] + sixteen * 2048 + (i >> 1) * 1024;
        const std::uint8_t* source = kv_row<kAllValid>(from, token[i], stride);
        copy_chunk<kAllValid>(target, source, token[i]);
        copy_chunk<kAllValid>(target + kOwnTokens * 128, source + 128, token[i]);
      }
    }
  }
};

// The last 64 bytes of each of 64 kv rows: four lanes a row, eight rows at a time.
struct RopeRows {
  const std::uint8_t* from;
  std::uint32_t to;
  std::uint32_t row;  // of the eight

  __device__ RopeRows(const std::uint8_t* kv, std::uint32_t lane)
      : from(ptx::opaque(kv + kValueDims + (lane & 3) * 16)),
        to(ptx::opaque(swizzle_64b(lane >> 2, lane & 3))),
        row(lane >> 2) {}

  template <bool kAllValid>
  __device__ __forceinline__ void copy(std::uint32_t tile, std::uint32_t stride, TilePair tokens) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t token[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        token[i] = __shfl_sync(0xFFFFFFFFu, half == 0 ? tokens.low : tokens.high, i * 8 + row);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        copy_chunk<kAllValid>(tile + to + half * 2048 + i * 512, kv_row<kAllValid>(from, token[i], stride), token[i]);
    }
  }
};

enum class Ring : std::uint8_t { rest, own, peer };

template <Policy P, Ring kRing>
struct Loader {
  static constexpr Edge kReady = kRing == Ring::peer ? Edge::values_ready : Edge::keys_ready;
  static constexpr Edge kFree = kRing == Ring::rest  ? Edge::rest_free
                                : kRing == Ring::own ? Edge::own_free
                                                     : Edge::peer_free;
  static constexpr int kReadySlots = kRing == Ring::peer ? P.peer_stages : P.own_stages;
  static constexpr int kSlots = kRing == Ring::rest ? P.rest_stages : kRing == Ring::own ? P.own_stages : P.peer_stages;

  __device__ static void run(const Args& args, std::uint32_t base, std::uint32_t rank, std::uint32_t cluster,
                             std::uint32_t clusters) {
    // Through a shuffle, because ptxas would rather read the thread's special register again than keep it.
    const std::uint32_t lane = __shfl_sync(0xFFFFFFFFu, threadIdx.x & 31, threadIdx.x & 31);
    const std::uint32_t column = (kRing == Ring::rest ? rank ^ 1 : rank) * kHalfDims;
    const std::uint32_t side = (kRing == Ring::peer ? rank ^ 1 : rank) * kOwnTokens;
    const HalfRows half(args.kv + column, lane);
    const RopeRows rope(args.kv, lane);
    const Barriers<P> barriers{base + static_cast<std::uint32_t>(offsetof(Shared<P>, barriers))};
    RowWalk walk(args, cluster, clusters);
    const std::int32_t* row = index_row(args, walk.row);
    TilePair next = load_indices(row, walk.length, side, lane);
    std::uint32_t slot = 0, parity = 1;  // the first lap finds every slot free
    std::uint32_t ready_slot = 0;
    while (walk.inside(args)) {
      const TilePair tokens = only_valid(next, args.s_kv);
      barriers.template wait<kFree>(slot, parity);
      const std::uint32_t to = base + slot_offset(slot);
      if (all_valid(tokens))
        copy<true>(to, args.kv_row_stride, tokens, half, rope);
      else
        copy<false>(to, args.kv_row_stride, tokens, half, rope);
      ptx::cp_async_commit_group();
      if constexpr (kRing == Ring::own) {
        const std::uint32_t low = __ballot_sync(0xFFFFFFFFu, tokens.low >= 0);
        const std::uint32_t high = __ballot_sync(0xFFFFFFFFu, tokens.high >= 0);
        if (lane == 0)
          ptx::st_shared_v4(base + static_cast<std::uint32_t>(offsetof(Shared<P>, info)) + slot * sizeof(TileInfo),
                            make_uint4(low, high, walk.last_turn() ? 1 : 0, 0));
      }
      walk.advance(args);
      if (walk.inside(args)) {
        if (walk.turn == 0) row = index_row(args, walk.row);
        next = load_indices(row, walk.length, walk.turn * kTurnTokens + side, lane);
      }
      ptx::cp_async_wait_group<0>();
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (lane == 0) barriers.template arrive<kReady>(ready_slot);
      if (++slot == kSlots) {
        slot = 0;
        parity ^= 1;
      }
      if (++ready_slot == kReadySlots) ready_slot = 0;
    }
  }

 private:
  __device__ static const std::int32_t* index_row(const Args& args, std::uint32_t row) {
    return args.indices + static_cast<std::int64_t>(args.query_of(row)) * args.indices_row_stride;
  }
  __device__ static std::uint32_t slot_offset(std::uint32_t slot) {
    if constexpr (kRing == Ring::rest)
      return offsetof(Shared<P>, rest) + slot * sizeof(typename Shared<P>::Rest);
    else if constexpr (kRing == Ring::own)
      return offsetof(Shared<P>, own) + slot * Shared<P>::kHalfTile;
    else
      return offsetof(Shared<P>, peer) + slot * Shared<P>::kHalfTile;
  }
  template <bool kAllValid>
  __device__ static __forceinline__ void copy(std::uint32_t to, std::uint32_t stride, TilePair tokens,
                                              const HalfRows& half, const RopeRows& rope) {
    half.copy<kAllValid>(to, stride, tokens);
    if constexpr (kRing == Ring::rest && kRope<P>)
      rope.copy<kAllValid>(to + static_cast<std::uint32_t>(offsetof(typename Shared<P>::Rest, rope)), stride, tokens);
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
