// O^T += V^T P^T for one weighing warpgroup: the accumulators, one block's products, the rescale.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/decode/fragments.cuh"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"
#include "cuda/sm90/decode/softmax.cuh"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
struct Weigh {
  using S = Shared<P>;
  static constexpr int kTiles = P.value_tiles();
  static constexpr int kUnits = 2 * kTiles;  // of one block
  static constexpr int kScores = P.heads / 2;

  std::uint32_t base;
  int half;  // which half of the value groups
  int warp;  // in the warpgroup
  int lane;

  // Tile t: groups (or, past the last group, the last one again: its result is not stored).
  float out[kTiles][kScores];

  __device__ void start() {
#pragma unroll
    for (auto& tile : out) {
#pragma unroll
      for (float& o : tile) o = 0.0f;
    }
  }
  __device__ int group_of(int tile) const {
    const int group = half * kTiles + tile;
    if constexpr (P.value_groups % 2 != 0) return group < P.value_groups ? group : P.value_groups - 1;
    return group;
  }

  // Into the frames that the scores of `block` moved to.
  __device__ void follow_frames(int block, bool is_first) {
    if (is_first || ptx::ld_shared_b32(base + S::moved + 4 * (block % kFrames)) == 0) return;
    const std::uint32_t moves = Softmax<P>::moves(base, block);
#pragma unroll
    for (int i = 0; i < P.heads / 8; ++i) {
      const uint2 pair = ptx::ld_shared_v2(moves + (8 * i + 2 * (lane & 3)) * 4);
      const float2 f{__uint_as_float(pair.x), __uint_as_float(pair.y)};
#pragma unroll
      for (auto& tile : out) {
        tile[4 * i] *= f.x;
        tile[4 * i + 1] *= f.y;
        tile[4 * i + 2] *= f.x;
        tile[4 * i + 3] *= f.y;
      }
    }
  }

  // The first two units of a block, in flight: loaded before P is waited for.
  struct Ahead {
    Values<P> values;
    std::uint32_t raw[2][Values<P>::kRaw];
    uint4 factors[2];
  };
  __device__ __forceinline__ void open(int slot, Ahead& ahead) const {
    ahead.values.open(base, slot, warp, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) load(i, ahead);
  }
  __device__ __forceinline__ void load(int unit, Ahead& ahead) const {
    ahead.values.load(group_of(unit / 2), unit % 2, ahead.raw[unit % 2]);
    ahead.factors[unit % 2] = ahead.values.load_factors(group_of(unit / 2), unit % 2);
  }

  // The products of one block, with `between(unit)` called after the issue of each unit. Rows travel one unit ahead of
  // the conversion, and the conversion one unit ahead of the products.
  template <class Between>
  __device__ __forceinline__ void weigh(Ahead& ahead, std::uint32_t p_buffer, Between&& between) {
    const std::uint64_t p = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(p_buffer);
    Unit fragments[2];
    Values<P>::convert(ahead.raw[0], ahead.factors[0], fragments[0]);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int now = unit % 2;
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        multiply<P>(out[unit / 2], fragments[now].step[step], ptx::wgmma_descriptor_at(p, (2 * now + step) * 32), true);
      }
      ptx::wgmma_commit_group();
      // Behind the products: the compiler uses what it loads at once, and the wait for it then costs nothing.
      if (unit + 2 < kUnits) load(unit + 2, ahead);
      between(unit);
      if (unit + 1 < kUnits) {
        ptx::wgmma_wait_group<1>();
        Values<P>::convert(ahead.raw[1 - now], ahead.factors[1 - now], fragments[1 - now]);
      }
    }
    ptx::wgmma_wait_group<0>();
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
