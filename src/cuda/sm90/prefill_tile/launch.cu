#include "cuda/sm90/prefill_tile/launch.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

#include "cuda/sm90/prefill_tile/kernel.cuh"

namespace sparse_mla::cuda::sm90::prefill_tile {
#ifdef PT_STAMPS
extern "C" void dump_stamps() {
  static unsigned long long h[2][4096];
  cudaMemcpyFromSymbol(h, stamps, sizeof h);
  for (int i = 0; i < 2; ++i)
    for (int k = 200; k < 560; ++k) printf("S %d %d %lld\n", i, (int)(h[i][k] >> 48), (long long)(h[i][k] & 0xFFFFFFFFFFFFull));
}
#else
extern "C" void dump_stamps() {}
#endif
namespace {

int tile_heads(int h_q) { return h_q <= 8 ? 8 : h_q <= 16 ? 16 : h_q <= 32 ? 32 : 64; }

template <int kHeads, int kDqk>
cudaError_t launch_instance(const PrefillProblem& problem, const LaunchContext& context) noexcept {
  Args args{.q = problem.q,
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
            .items = 0,
            .head_tiles = static_cast<std::uint32_t>((problem.h_q + kHeads - 1) / kHeads)};
  args.items = static_cast<std::uint32_t>(problem.s_q * args.head_tiles);
  if (args.items == 0) return cudaSuccess;
  constexpr int kBytes = static_cast<int>(Shared<policy(kHeads, kDqk)>::bytes);
  cudaError_t error = cudaFuncSetAttribute(prefill_tile<kHeads, kDqk>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(args.items, context.multiprocessors));
  prefill_tile<kHeads, kDqk><<<grid, kThreads, kBytes, static_cast<cudaStream_t>(context.stream)>>>(args);
  return cudaGetLastError();
}

template <int kDqk>
cudaError_t launch_width(const PrefillProblem& problem, const LaunchContext& context) noexcept {
#ifdef PT_ONLY
  if constexpr (kDqk == 576) {
    if (tile_heads(problem.h_q) == 16) return launch_instance<16, kDqk>(problem, context);
    return launch_instance<64, kDqk>(problem, context);
  }
  return cudaErrorInvalidValue;
#else
  switch (tile_heads(problem.h_q)) {
    case 8: return launch_instance<8, kDqk>(problem, context);
    case 16: return launch_instance<16, kDqk>(problem, context);
    case 32: return launch_instance<32, kDqk>(problem, context);
    default: return launch_instance<64, kDqk>(problem, context);
  }
#endif
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
  if (problem.kv_row_stride < 0 || problem.kv_row_stride >> 32) return "kv's row stride is negative or over 4 GiB";
  if (problem.s_q * ((problem.h_q + 7) / 8) >> 31) return "s_q=" + std::to_string(problem.s_q) + " is too large";
  if (problem.topk >= std::int64_t{1} << 30) return "topk=" + std::to_string(problem.topk) + " is 2^30 or more";
  return {};
}

std::size_t workspace_bytes(const PrefillProblem&, const LaunchContext&) { return 0; }

int launch(const PrefillProblem& problem, const LaunchContext& context) noexcept {
  return static_cast<int>(problem.d_qk == 512 ? launch_width<512>(problem, context)
                                              : launch_width<576>(problem, context));
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
