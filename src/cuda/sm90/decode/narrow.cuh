// The MMA warpgroups of the narrow kernel (8, 16 or 32 heads): two score alternate blocks, two weigh half of the value
// dims of every block, with a ring of P buffers between them.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/score.cuh"
#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/decode/weigh.cuh"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
struct NarrowScore {
  using S = Shared<P>;

  std::uint32_t base;
  int group;
  int warp;
  int lane;
  Softmax<P> softmax;

  // Blocks first .. last - 1, counted through all parts of the CTA.
  __device__ void run(int first, int last) {
    float s[P.heads / 2];
    softmax.start();
    for (int block = first + ((first ^ group) & 1); block < last; block += 2) {
      const int slot = block % P.slots;
      const int buffer = block % P.p_buffers();
      ptx::mbarrier_wait(base + S::kv_full + 8 * slot, (block / P.slots) & 1);
      score_block<P>(s, base, slot, warp, lane);
      softmax.to_log2(s, slot);
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(base + S::kv_free + 8 * slot);
      // Before the frames move: the move factors of the block whose buffer this is are no longer needed either.
      ptx::mbarrier_wait(base + S::p_free + 8 * buffer, ((block / P.p_buffers()) & 1) ^ 1);
      softmax.settle_frames(s, block, block == first);
      weigh_all(s, base + S::p + buffer * S::kPanel);
      softmax.publish(buffer);
    }
    if (((last - 1) & 1) != group) {  // the other warpgroup scored the last block
      ptx::mbarrier_wait(base + S::frame_right + 8 * ((last - 1) % kFrames), ((last - 1) / kFrames) & 1);
      softmax.take_over(last - 1);
    }
  }

 private:
  __device__ void weigh_all(const float (&x)[P.heads / 2], std::uint32_t buffer) {
    if constexpr (P.heads == 8) {
      softmax.template weigh_columns<0, 1>(x, buffer);
    } else {
      softmax.template weigh_columns<0, 2>(x, buffer);
      if constexpr (P.heads == 32) softmax.template weigh_columns<2, 2>(x, buffer);
    }
  }
};

template <Policy P>
struct NarrowWeigh {
  using S = Shared<P>;

  std::uint32_t base;
  int lane;
  Weigh<P> weigh;

  struct Nothing {
    __device__ __forceinline__ void operator()(int) const {}
  };

  __device__ void run(int first, int last) {
    weigh.start();
    for (int block = first; block < last; ++block) {
      const int slot = block % P.slots;
      const int buffer = block % P.p_buffers();
      ptx::mbarrier_wait(base + S::kv_full + 8 * slot, (block / P.slots) & 1);
      typename Weigh<P>::Ahead ahead;
      weigh.open(slot, ahead);
      ptx::mbarrier_wait(base + S::p_full + 8 * buffer, (block / P.p_buffers()) & 1);
      weigh.follow_frames(block, block == first);
      weigh.weigh(ahead, base + S::p + buffer * S::kPanel, Nothing{});
      __syncwarp();
      if (lane == 0) {
        ptx::mbarrier_arrive(base + S::kv_free + 8 * slot);
        ptx::mbarrier_arrive(base + S::p_free + 8 * buffer);
      }
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
