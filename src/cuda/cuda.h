// The CUDA backend as the rest of the library sees it: no CUDA header is needed to include this.
// Without a CUDA compiler the library is built with src/cuda/absent.cc, which answers "not compiled in".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/problem.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
};

bool compiled_in() noexcept;
// Why there is no device to use ("no CUDA driver: ..."), or empty.
std::string unavailable_reason();
std::vector<DeviceInfo> devices();

struct Launch {
  int device = 0;
  void* stream = nullptr;  // cudaStream_t
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  bool batch_invariant = false;
};

// All pointers in the problem are device memory of `launch.device`. Enqueues on the stream and returns; the current
// device is restored. Throws std::runtime_error with the call, the shape and CUDA's own text.
void prefill(const PrefillProblem& problem, const Launch& launch);
void decode(const DecodeProblem& problem, const Launch& launch);
std::size_t prefill_workspace_bytes(const PrefillProblem& problem, const Launch& launch);
std::size_t decode_workspace_bytes(const DecodeProblem& problem, const Launch& launch);
// Waits until the stream is past all that was enqueued on it.
void synchronize(int device, void* stream);

// Why each kernel would or would not take the problem, one line a kernel: for `info` and error messages.
std::vector<std::string> explain_choice(const PrefillProblem& problem);
std::vector<std::string> explain_choice(const DecodeProblem& problem);

// Values of CUDA tensors for the contract's value rules: a pass over the tensor on its device, which allocates a few
// bytes and waits, so never inside a captured graph.
const ValueSource& device_values() noexcept;

}  // namespace sparse_mla::cuda
