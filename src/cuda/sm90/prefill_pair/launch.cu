#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/sm90/prefill_pair/kernel.cuh"
#include "cuda/sm90/prefill_pair/launch.h"

namespace sparse_mla::cuda::sm90::prefill_pair {
namespace {

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

Args make_args(const PrefillProblem& problem) {
  Args args;
  args.q = problem.q;
  args.q_row_stride = problem.q_row_stride;
  args.q_head_stride = problem.q_head_stride;
  args.kv = problem.kv;
  args.kv_row_stride = static_cast<std::uint32_t>(problem.kv_row_stride);
  args.s_kv = static_cast<std::uint32_t>(std::min<std::int64_t>(problem.s_kv, std::int64_t{1} << 31));
  args.indices = problem.indices;
  args.indices_row_stride = problem.indices_row_stride;
  args.topk_length = problem.topk_length;
  args.topk = static_cast<std::int32_t>(problem.topk);
  args.head_blocks = static_cast<std::uint32_t>(problem.h_q / kHeads);
  args.rows = static_cast<std::uint32_t>(problem.s_q * args.head_blocks);
  args.attn_sink = problem.attn_sink;
  args.q_scale = problem.q_scale;
  args.kv_scale = problem.kv_scale;
  args.sm_scale = problem.sm_scale;
  args.out = problem.out;
  args.max_logits = problem.max_logits;
  args.lse = problem.lse;
  return args;
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

cudaError_t find_encoder(EncodeTiled& encode) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  encode = reinterpret_cast<EncodeTiled>(function);
  return cudaSuccess;
}

// q as bytes [s_q, h_q, d_qk], boxes of 64 heads by `width` bytes.
bool make_map(CUtensorMap& map, EncodeTiled encode, const PrefillProblem& problem, std::uint32_t width,
              CUtensorMapSwizzle swizzle) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(problem.d_qk), static_cast<cuuint64_t>(problem.h_q),
                               static_cast<cuuint64_t>(problem.s_q)};
  // One query may come with any row stride, which the encoder would judge.
  const std::int64_t row_stride = problem.s_q == 1 ? problem.q_head_stride * problem.h_q : problem.q_row_stride;
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(problem.q_head_stride), static_cast<cuuint64_t>(row_stride)};
  const cuuint32_t box[3] = {width, kHeads / kMmaGroups, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<std::uint8_t*>(problem.q), sizes, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int kDqk>
int launch_for(const PrefillProblem& problem, const LaunchContext& context) noexcept {
  EncodeTiled encode = nullptr;
  if (const cudaError_t error = find_encoder(encode); error != cudaSuccess) return error;
  QueryMaps maps;
  if (!make_map(maps.wide, encode, problem, 128, CU_TENSOR_MAP_SWIZZLE_128B) ||
      !make_map(maps.narrow, encode, problem, kRopeDims, CU_TENSOR_MAP_SWIZZLE_64B))
    return cudaErrorInvalidValue;
  const Args args = make_args(problem);
  constexpr int kBytes = static_cast<int>(sizeof(Shared<kPolicyFor<kDqk>>));
  const cudaError_t error = cudaFuncSetAttribute(attend<kDqk>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto pairs = static_cast<std::uint32_t>(std::max(context.multiprocessors / 2, 1));
  const dim3 grid(2 * std::min(args.rows, pairs));
  attend<kDqk><<<grid, kThreads, kBytes, static_cast<cudaStream_t>(context.stream)>>>(args, maps);
  return cudaGetLastError();
}

}  // namespace

std::string declines(const PrefillProblem& problem) {
  if (problem.h_q % kHeads != 0 || problem.h_q == 0)
    return "h_q=" + std::to_string(problem.h_q) + " is not a multiple of 128";
  if (problem.d_qk != 512 && problem.d_qk != 576) return "d_qk=" + std::to_string(problem.d_qk) + " is not 512 or 576";
  if (problem.d_v != kValueDims) return "d_v=" + std::to_string(problem.d_v) + " is not 512";
  if (!aligned(problem.q) || (problem.s_q > 1 && problem.q_row_stride % 16 != 0) || problem.q_head_stride % 16 != 0)
    return "q's rows are not 16-byte aligned";
  if (problem.q_row_stride < 0 || problem.q_head_stride < 0) return "q has a negative stride";
  if (!aligned(problem.kv) || problem.kv_row_stride % 16 != 0) return "kv's rows are not 16-byte aligned";
  if (problem.kv_row_stride < 0 || problem.kv_row_stride >= (std::int64_t{1} << 32))
    return "kv's row stride is not below 4 GiB";
  if (problem.topk < 1 || problem.topk >= (std::int64_t{1} << 30)) return "topk is not in [1, 2^30)";
  if (problem.s_q * (problem.h_q / kHeads) >= (std::int64_t{1} << 31)) return "s_q * h_q / 128 is not below 2^31";
  return {};
}

std::size_t workspace_bytes(const PrefillProblem&, const LaunchContext&) { return 0; }

int launch(const PrefillProblem& problem, const LaunchContext& context) noexcept {
  if (problem.s_q == 0) return cudaSuccess;
  return problem.d_qk == 576 ? launch_for<576>(problem, context) : launch_for<512>(problem, context);
}

}  // namespace sparse_mla::cuda::sm90::prefill_pair
