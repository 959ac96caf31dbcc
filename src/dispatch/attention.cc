// The entry points: check the call, pick the backend, run it.
#include "sparse_mla/attention.h"

#include <stdexcept>
#include <string>

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

void run(const DecodeCall& call, const RunOptions& options) {
  const dispatch::DenseScales dense(call);
  const DecodeProblem problem = dispatch::decode_problem(dense.call());
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
