// Paged sparse decode on Hopper: the seam to the CUDA backend. No CUDA header.
#pragma once

#include <cstddef>
#include <string>

#include "base/problem.h"
#include "cuda/launch_context.h"

namespace sparse_mla::cuda::sm90::decode {

// Empty when this kernel serves the problem; else why it declines.
std::string declines(const DecodeProblem& problem);
std::size_t workspace_bytes(const DecodeProblem& problem, const LaunchContext& context);
// A cudaError_t. Enqueues; does not wait, allocate or read device memory on the host.
int launch(const DecodeProblem& problem, const LaunchContext& context) noexcept;

}  // namespace sparse_mla::cuda::sm90::decode
