// The entry points: check the call, pick the backend, run it.
#include "sparse_mla/attention.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "cuda/from_host.h"
#include "dispatch/options.h"
#include "dispatch/problems.h"
#include "sparse_mla/contract.h"

namespace sparse_mla {
namespace {

// The launch with a workspace from options.allocate, where it needs one that the caller has not passed.
template <class Problem>
cuda::Launch with_workspace(cuda::Launch launch, const Problem& problem, const RunOptions& options,
                            std::size_t (*bytes_of)(const Problem&, const cuda::Launch&)) {
  if (launch.workspace != nullptr || options.allocate == nullptr) return launch;
  const std::size_t bytes = bytes_of(problem, launch);
  if (bytes == 0) return launch;
  launch.workspace = options.allocate(bytes, options.allocate_context);
  launch.workspace_bytes = bytes;
  return launch;
}

Backend resolve(Device device, Backend asked) {
  if (asked == Backend::kAuto) return device.is_cuda() ? Backend::kCuda : Backend::kCpu;
  if (asked == Backend::kCpu && !device.is_cpu()) {
    throw std::invalid_argument("backend cpu takes tensors on cpu, got tensors on " + to_string(device));
  }
  return asked;
}

template <class Call>
void check_call(const Call& call, bool contract, const RunOptions& options) {
  enforce(call, dispatch::check_options(call.q.device.is_cpu(), contract, options));
}

void run(const PrefillCall& call, const RunOptions& options) {
  const PrefillProblem problem = dispatch::prefill_problem(call);
  if (resolve(call.q.device, options.backend) == Backend::kCpu) {
    cpu::prefill(problem, options.threads);
  } else if (call.q.device.is_cuda()) {
    cuda::prefill(problem, with_workspace(dispatch::cuda_launch(call.q.device, options), problem, options,
                                          &cuda::prefill_workspace_bytes));
  } else {
    cuda::prefill_from_host(problem, options.batch_invariant);
  }
}

// Backends read kv_scales row by row without gaps. Where the last dimension has gaps, `problem` is pointed at a copy,
// which the caller keeps until the call is over.
std::vector<float> pack_scales(const PagedPool& pool, PoolProblem& problem) {
  const Tensor* scales = pool.kv_scales.tensor();
  if (scales == nullptr || scales->shape[1] <= 1 || scales->strides[1] == 1) return {};
  if (!scales->device.is_cpu()) {
    throw std::runtime_error("kv_scales has strides " +
                             shape_string({scales->strides.data(), static_cast<std::size_t>(scales->rank)}) +
                             "; on a CUDA device its last stride must be 1, since this call does not allocate there");
  }
  std::vector<float> packed;
  packed.reserve(static_cast<std::size_t>(scales->elements()));
  for (std::int64_t row = 0; row < scales->shape[0]; ++row) {
    const float* first = scales->as<const float>() + row * scales->strides[0];
    for (std::int64_t group = 0; group < scales->shape[1]; ++group) packed.push_back(first[group * scales->strides[1]]);
  }
  problem.kv_scales = packed.data();
  problem.kv_scales_row_stride = scales->shape[1];
  return packed;
}

void run(const DecodeCall& call, const RunOptions& options) {
  DecodeProblem problem = dispatch::decode_problem(call);
  const std::vector<float> scales = pack_scales(call.pool, problem.pool);
  const std::vector<float> second_scales =
      call.second_pool ? pack_scales(*call.second_pool, problem.second_pool) : std::vector<float>();
  if (resolve(call.q.device, options.backend) == Backend::kCpu) {
    cpu::decode(problem, options.threads);
  } else if (call.q.device.is_cuda()) {
    cuda::decode(problem, with_workspace(dispatch::cuda_launch(call.q.device, options), problem, options,
                                         &cuda::decode_workspace_bytes));
  } else {
    cuda::decode_from_host(problem, options.batch_invariant);
  }
}

}  // namespace

std::string_view backend_name(Backend backend) noexcept {
  switch (backend) {
    case Backend::kCpu:
      return "cpu";
    case Backend::kCuda:
      return "cuda";
    case Backend::kAuto:
      break;
  }
  return "auto";
}

Backend backend_from_name(std::string_view name) {
  for (Backend backend : {Backend::kAuto, Backend::kCpu, Backend::kCuda}) {
    if (backend_name(backend) == name) return backend;
  }
  throw std::invalid_argument("unknown backend \"" + std::string(name) + "\", expected auto, cpu or cuda");
}

Backend best_backend() { return cuda::unavailable_reason().empty() ? Backend::kCuda : Backend::kCpu; }

void sparse_mla_q8kv8_prefill_fwd(const PrefillCall& call, const RunOptions& options) {
  check_call(call, /*contract=*/true, options);
  run(call, options);
}

void sparse_attn_v4_paged_decode(const DecodeCall& call, const RunOptions& options) {
  check_call(call, /*contract=*/true, options);
  run(call, options);
}

void prefill(const PrefillCall& call, const RunOptions& options) {
  check_call(call, /*contract=*/false, options);
  run(call, options);
}

void decode(const DecodeCall& call, const RunOptions& options) {
  check_call(call, /*contract=*/false, options);
  run(call, options);
}

std::size_t prefill_workspace_bytes(const PrefillCall& call, const RunOptions& options) {
  if (!call.q.device.is_cuda()) return 0;
  return cuda::prefill_workspace_bytes(dispatch::prefill_problem(call), dispatch::cuda_launch(call.q.device, options));
}

std::size_t decode_workspace_bytes(const DecodeCall& call, const RunOptions& options) {
  if (!call.q.device.is_cuda()) return 0;
  return cuda::decode_workspace_bytes(dispatch::decode_problem(call), dispatch::cuda_launch(call.q.device, options));
}

}  // namespace sparse_mla
