// Where one row ends and the next begins: the CTAs of a pair tell each other what they know, once a row.
#pragma once

#include <cstdint>

#include "cuda/ptx/copy.cuh"
#include "cuda/sm90/prefill_pair/args.h"
#include "cuda/sm90/prefill_pair/barriers.cuh"
#include "cuda/sm90/prefill_pair/softmax.cuh"
#include "cuda/sm90/prefill_pair/values.cuh"

namespace sparse_mla::cuda::sm90::prefill_pair {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

// This lane's head of the two (head g for even lanes of a quad, g + 8 for odd ones).
__device__ __forceinline__ float pick(const float (&pair)[2], std::uint32_t lane) {
  return (lane & 1) != 0 ? pair[1] : pair[0];
}

// The largest over the quad; 0 where none is positive.
__device__ __forceinline__ float quad_top(std::int32_t maximum) { return __int_as_float(max(quad_max(maximum), 0)); }

// lse, max_logits and kv_scale / denominator of a finished row for one head. `here` is this CTA's part, `there` the
// peer's; `sink` and `kv_scale` point at one value each, or are null.
struct FinishedHead {
  float lse, max_logit, scale, frame;
};
__device__ __forceinline__ FinishedHead finish_head(const FrameMessage& here, const FrameMessage& there,
                                                    const float* sink, const float* kv_scale) {
  FinishedHead head;
  head.frame = fmaxf(here.frame, there.frame);
  const float sum = here.sum * ptx::ex2(here.frame - head.frame) + there.sum * ptx::ex2(there.frame - head.frame);
  if (!(sum > 0.0f)) {
    head.lse = -kMinusInfinity;
    head.max_logit = kMinusInfinity;
    head.scale = 0.0f;
    return head;
  }
  const float top = fmaxf(here.maximum + (here.frame - head.frame), there.maximum + (there.frame - head.frame));
  head.lse = (ptx::lg2(sum) + head.frame) * kLn2;
  head.max_logit = (top + head.frame) * kLn2;
  const float with_sink = sink == nullptr ? sum : sum + ptx::ex2(__ldg(sink) * kLog2E - head.frame);
  head.scale = (kv_scale == nullptr ? 1.0f : __ldg(kv_scale)) / with_sink;
  return head;
}

}  // namespace sparse_mla::cuda::sm90::prefill_pair
