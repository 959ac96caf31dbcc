// The CUDA backend's front: devices, which kernel takes a problem, errors. The kernels are in sm90/.
#include <array>
#include <mutex>
#include <stdexcept>

#include "base/problem_name.h"
#include "cuda/cuda.h"
#include "cuda/error.h"
#include "cuda/launch_context.h"
#include "cuda/sm90/decode/launch.h"
#include "cuda/sm90/prefill_pair/launch.h"
#include "cuda/sm90/prefill_tile/launch.h"

namespace sparse_mla::cuda {
namespace {

// A kernel that may serve a problem. The first of a list that does not decline runs.
template <class Problem>
struct Kernel {
  const char* name;
  std::string (*declines)(const Problem&);
  std::size_t (*workspace_bytes)(const Problem&, const LaunchContext&);
  int (*launch)(const Problem&, const LaunchContext&) noexcept;
};

constexpr std::array kPrefillKernels{
    Kernel<PrefillProblem>{"sm90/prefill_pair", sm90::prefill_pair::declines, sm90::prefill_pair::workspace_bytes,
                           sm90::prefill_pair::launch},
    Kernel<PrefillProblem>{"sm90/prefill_tile", sm90::prefill_tile::declines, sm90::prefill_tile::workspace_bytes,
                           sm90::prefill_tile::launch},
};
constexpr std::array kDecodeKernels{
    Kernel<DecodeProblem>{"sm90/decode", sm90::decode::declines, sm90::decode::workspace_bytes, sm90::decode::launch},
};

// Rows too few to fill the card: prefill_tile shares a row among CTAs, prefill_pair has two for it.
constexpr std::array kPrefillFewRows{kPrefillKernels[1], kPrefillKernels[0]};

const auto& kernels_for(const PrefillProblem& problem, const LaunchContext& context) {
  return sm90::prefill_tile::fewer_rows_than_fill(problem, context) ? kPrefillFewRows : kPrefillKernels;
}
const auto& kernels_for(const DecodeProblem&, const LaunchContext&) { return kDecodeKernels; }

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  throw_on_error(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

// What the launch path asks about a device: looked up once, since a call has a budget of microseconds.
struct DeviceFacts {
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
};

const DeviceFacts& facts_of(int device) {
  constexpr int kMaxDevices = 64;
  static std::array<DeviceFacts, kMaxDevices> facts;
  static std::array<std::once_flag, kMaxDevices> once;
  if (device < 0 || device >= kMaxDevices) {
    throw std::runtime_error("CUDA device index " + std::to_string(device) + " is out of range");
  }
  std::call_once(once[device], [device] {
    facts[device] = {attribute(cudaDevAttrComputeCapabilityMajor, device),
                     attribute(cudaDevAttrComputeCapabilityMinor, device),
                     attribute(cudaDevAttrMultiProcessorCount, device)};
  });
  return facts[device];
}

std::string refusal_of(int device, const DeviceFacts& facts) {
  cudaDeviceProp properties{};
  const std::string name = cudaGetDeviceProperties(&properties, device) == cudaSuccess ? properties.name : "unknown";
  return "cuda:" + std::to_string(device) + " is " + name + " (sm_" + std::to_string(facts.major) +
         std::to_string(facts.minor) +
         "); the CUDA kernels are built for sm_90a and run on H100, H200 and H20 only. The CPU backend serves the same "
         "calls on CPU tensors.";
}

LaunchContext context_of(const Launch& launch, const DeviceFacts& facts) {
  return {facts.multiprocessors, launch.stream, launch.workspace, launch.workspace_bytes, launch.batch_invariant};
}

template <class Problem>
std::vector<std::string> explain(const Problem& problem, const LaunchContext& context = {}) {
  std::vector<std::string> lines;
  for (const auto& kernel : kernels_for(problem, context)) {
    const std::string reason = kernel.declines(problem);
    lines.push_back(std::string(kernel.name) + (reason.empty() ? ": takes it" : " declines: " + reason));
  }
  return lines;
}

template <class Problem>
const Kernel<Problem>& choose(const Problem& problem, const LaunchContext& context) {
  for (const auto& kernel : kernels_for(problem, context)) {
    if (kernel.declines(problem).empty()) return kernel;
  }
  std::string message = "no CUDA kernel takes " + to_string(name_of(problem)) + ":";
  for (const std::string& line : explain(problem, context)) message += " " + line + ";";
  throw std::runtime_error(message);
}

template <class Problem>
std::size_t workspace_of(const Problem& problem, const Launch& launch, std::int64_t rows) {
  if (rows == 0) return 0;
  const LaunchContext context = context_of(launch, facts_of(launch.device));
  return choose(problem, context).workspace_bytes(problem, context);
}

template <class Problem>
void run(const Problem& problem, const Launch& launch, std::int64_t rows) {
  if (rows == 0) return;
  const DeviceFacts& facts = facts_of(launch.device);
  if (facts.major != 9) throw std::runtime_error(refusal_of(launch.device, facts));
  const DeviceGuard guard(launch.device);
  const LaunchContext context = context_of(launch, facts);
  const Kernel<Problem>& kernel = choose(problem, context);
  const std::size_t needed = kernel.workspace_bytes(problem, context);
  if (needed > launch.workspace_bytes || (needed > 0 && launch.workspace == nullptr)) {
    throw std::invalid_argument(to_string(name_of(problem)) + " needs a workspace of " + std::to_string(needed) +
                                " bytes, got " + std::to_string(launch.workspace_bytes));
  }
  const auto what = [&] { return std::string(kernel.name) + " of " + to_string(name_of(problem)); };
  if (cudaPeekAtLastError() != cudaSuccess) throw_on_earlier_error(what());
  const auto status = static_cast<cudaError_t>(kernel.launch(problem, context));
  if (status != cudaSuccess) throw_on_error(status, what());
}

}  // namespace

bool compiled_in() noexcept { return true; }

std::string unavailable_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();  // leave no error behind for the next call to trip over
    return std::string("no usable CUDA driver or device: ") + cudaGetErrorString(status);
  }
  if (count == 0) return "no CUDA device";
  int device = 0;
  throw_on_error(cudaGetDevice(&device), "cudaGetDevice");
  const DeviceFacts& facts = facts_of(device);
  return facts.major == 9 ? std::string() : refusal_of(device, facts);
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> found;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return found;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    throw_on_error(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    found.push_back({device, properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                     static_cast<std::size_t>(properties.l2CacheSize), properties.totalGlobalMem});
  }
  return found;
}

void prefill(const PrefillProblem& problem, const Launch& launch) { run(problem, launch, problem.s_q); }
void decode(const DecodeProblem& problem, const Launch& launch) { run(problem, launch, problem.n); }

std::size_t prefill_workspace_bytes(const PrefillProblem& problem, const Launch& launch) {
  return workspace_of(problem, launch, problem.s_q);
}
std::size_t decode_workspace_bytes(const DecodeProblem& problem, const Launch& launch) {
  return workspace_of(problem, launch, problem.n);
}

void synchronize(int device, void* stream) {
  const DeviceGuard guard(device);
  throw_on_error(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}

std::vector<std::string> explain_choice(const PrefillProblem& problem) { return explain(problem); }
std::vector<std::string> explain_choice(const DecodeProblem& problem) { return explain(problem); }

}  // namespace sparse_mla::cuda
