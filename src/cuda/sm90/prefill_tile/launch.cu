#include "cuda/sm90/prefill_tile/launch.h"

#include <cuda_runtime.h>

#include "cuda/sm90/prefill_tile/instance.h"
#include "cuda/sm90/prefill_tile/plan.h"
#include "cuda/sm90/prefill_tile/policy.h"

namespace sparse_mla::cuda::sm90::prefill_tile {
namespace {

Args make_args(const PrefillProblem& problem, const Plan& plan) noexcept {
  const auto head_tiles = static_cast<std::uint32_t>((problem.h_q + plan.heads - 1) / plan.heads);
  return {.q = problem.q,
          .q_row_stride = problem.q_row_stride,
          .q_head_stride = problem.q_head_stride,
          .kv = problem.kv,
          .kv_row_stride = static_cast<std::uint32_t>(problem.kv_row_stride),
          .indices = problem.indices,
          .indices_row_stride = problem.indices_row_stride,
          .topk_length = problem.topk_length,
          .attn_sink = problem.attn_sink,
          .q_scale = problem.q_scale,
          .kv_scale = problem.kv_scale,
          .sm_scale = problem.sm_scale,
          .h_q = problem.h_q,
          .topk = static_cast<int>(problem.topk),
          .s_kv = problem.s_kv,
          .out = problem.out,
          .max_logits = problem.max_logits,
          .lse = problem.lse,
          .items = static_cast<std::uint32_t>(problem.s_q * head_tiles),
          .head_tiles = head_tiles,
          .splits = plan.splits};
}

template <int kDqk>
cudaError_t launch_width(const Args& args, int heads, const LaunchContext& context) noexcept {
  switch (heads) {
    case 8: return launch_tile<8, kDqk>(args, context);
    case 16: return launch_tile<16, kDqk>(args, context);
    case 32: return launch_tile<32, kDqk>(args, context);
    default: return launch_tile<64, kDqk>(args, context);
  }
}

}  // namespace

std::string declines(const PrefillProblem& problem) {
  if (problem.d_qk != 512 && problem.d_qk != 576) return "d_qk=" + std::to_string(problem.d_qk) + " is not 512 or 576";
  if (problem.d_v != kValueDims) return "d_v=" + std::to_string(problem.d_v) + " is not 512";
  if (problem.q_head_stride % 16 || problem.q_row_stride % 16 || reinterpret_cast<std::uintptr_t>(problem.q) % 16) {
    return "q's heads are not 16-byte aligned";
  }
  if (problem.kv_row_stride % 16 || reinterpret_cast<std::uintptr_t>(problem.kv) % 16) {
    return "kv's rows are not 16-byte aligned";
  }
  if (reinterpret_cast<std::uintptr_t>(problem.out) % 16) return "out is not 16-byte aligned";
  if (problem.kv_row_stride < 0 || problem.kv_row_stride >> 32) return "kv's row stride is negative or over 4 GiB";
  if (problem.s_q * ((problem.h_q + 7) / 8) * kMaxSplits >> 31) {
    return "s_q=" + std::to_string(problem.s_q) + " is too large";
  }
  if (problem.topk >> 30) return "topk=" + std::to_string(problem.topk) + " is 2^30 or more";
  return {};
}

std::size_t workspace_bytes(const PrefillProblem&, const LaunchContext&) { return 0; }

int launch(const PrefillProblem& problem, const LaunchContext& context) noexcept {
  return launch(problem, context,
                make_plan(problem.s_q, problem.h_q, problem.topk, context.multiprocessors, context.batch_invariant));
}

int launch(const PrefillProblem& problem, const LaunchContext& context, const Plan& plan) noexcept {
  if (problem.s_q == 0) return cudaSuccess;
  const Args args = make_args(problem, plan);
  return static_cast<int>(problem.d_qk == 512 ? launch_width<512>(args, plan.heads, context)
                                              : launch_width<576>(args, plan.heads, context));
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
