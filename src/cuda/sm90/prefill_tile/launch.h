// Sparse prefill, one CTA per query row and tile of heads. Serves every shape with d_qk 512 or 576 and d_v 512.
#pragma once

#include <cstddef>
#include <string>

#include "base/problem.h"
#include "cuda/launch_context.h"
#include "cuda/sm90/prefill_tile/plan.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

// Empty when this kernel serves the problem; else why it declines.
std::string declines(const PrefillProblem& problem);
// Device memory that a launch needs; depends on shapes and the context only.
std::size_t workspace_bytes(const PrefillProblem& problem, const LaunchContext& context);
// A cudaError_t. Enqueues on the context's stream: no synchronisation, no allocation.
int launch(const PrefillProblem& problem, const LaunchContext& context) noexcept;
// The same with a plan of the caller's, for tests and measurements.
int launch(const PrefillProblem& problem, const LaunchContext& context, const Plan& plan) noexcept;

}  // namespace sparse_mla::cuda::sm90::prefill_tile
