// The MMA warpgroups of the wide kernel (64 heads): warpgroup w scores blocks w, w + 2, .. and weighs its half of the
// value dims of every block. The softmax of block j runs between the products of block j - 1.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/score.cuh"
#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/decode/weigh.cuh"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
struct Wide {
  using S = Shared<P>;
  static constexpr int kScores = P.heads / 2;

  std::uint32_t base;
  int group;
  int warp;
  int lane;
  Softmax<P> softmax;
  Weigh<P> weigh;

  __device__ std::uint32_t p_buffer(int block) const { return base + S::p + (block & 1) * S::kPanel; }

  // Two column blocks of P after every second unit of the products beside which they run.
  struct SoftmaxBetween {
    Softmax<P>& softmax;
    const float (&x)[kScores];
    std::uint32_t buffer;
    __device__ __forceinline__ void operator()(int unit) const {
      if (unit == 0) softmax.template weigh_columns<0, 2>(x, buffer);
      if (unit == 2) softmax.template weigh_columns<2, 2>(x, buffer);
      if (unit == 4) softmax.template weigh_columns<4, 2>(x, buffer);
      if (unit == 6) softmax.template weigh_columns<6, 2>(x, buffer);
    }
  };
  __device__ __forceinline__ static void weigh_all(const SoftmaxBetween& between) {
#pragma unroll
    for (int unit = 0; unit < 8; unit += 2) between(unit);
  }
  struct Nothing {
    __device__ __forceinline__ void operator()(int) const {}
  };

  __device__ __forceinline__ void release(int block) const {
    __syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(base + S::kv_free + 8 * (block % P.slots));
      if ((block & 1) != group) ptx::mbarrier_arrive(base + S::p_free + 8 * (block & 1));
    }
  }
  __device__ __forceinline__ void wait_p(int block) const {
    ptx::mbarrier_wait(base + S::p_full + 8 * (block & 1), (block >> 1) & 1);
  }
  __device__ __forceinline__ void wait_kv(int block) const {
    ptx::mbarrier_wait(base + S::kv_full + 8 * (block % P.slots), (block / P.slots) & 1);
  }

  // Blocks first .. last - 1, counted through all parts of the CTA: ring slots and parities follow from the count.
  __device__ void run(int first, int last) {
    float s[kScores];
    typename Weigh<P>::Ahead ahead;
    softmax.start();
    weigh.start();
    for (int block = first + ((first ^ group) & 1); block < last; block += 2) {
      const int slot = block % P.slots;
      wait_kv(block);
      score_block<P>(s, base, slot, warp, lane);
      softmax.to_log2(s, slot);
      softmax.settle_frames(s, block, block == first);
      // The other warpgroup has weighed the block whose P this one replaces.
      ptx::mbarrier_wait(base + S::p_free + 8 * group, ((block >> 1) & 1) ^ 1);
      const SoftmaxBetween between{softmax, s, p_buffer(block)};
      if (block > first) {
        wait_kv(block - 1);
        weigh.open((block - 1) % P.slots, ahead);
        wait_p(block - 1);
        weigh.follow_frames(block - 1, block - 1 == first);
        weigh.weigh(ahead, p_buffer(block - 1), between);
        softmax.publish(group);
        release(block - 1);
      } else {
        weigh_all(between);
        softmax.publish(group);
      }
      weigh.open(slot, ahead);
      wait_p(block);
      weigh.follow_frames(block, block == first);
      weigh.weigh(ahead, p_buffer(block), Nothing{});
      release(block);
    }
    if (((last - 1) & 1) != group) {  // the other warpgroup scored the last block
      wait_kv(last - 1);
      weigh.open((last - 1) % P.slots, ahead);
      wait_p(last - 1);
      softmax.take_over(last - 1);
      weigh.follow_frames(last - 1, last - 1 == first);
      weigh.weigh(ahead, p_buffer(last - 1), Nothing{});
      release(last - 1);
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
