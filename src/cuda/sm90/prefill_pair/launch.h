// Q8KV8 sparse prefill for h_q = 128, 256, ...: a pair of CTAs per query and 128 heads. Host C++, no CUDA header.
#pragma once

#include <cstddef>
#include <string>

#include "base/problem.h"
#include "cuda/launch_context.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

// Empty when this kernel serves the problem; else why it declines ("h_q=64 is not a multiple of 128").
std::string declines(const PrefillProblem& problem);
std::size_t workspace_bytes(const PrefillProblem& problem, const LaunchContext& context);
// Enqueues on context.stream; no synchronisation, no allocation. Returns a cudaError_t.
int launch(const PrefillProblem& problem, const LaunchContext& context) noexcept;

}  // namespace sparse_mla::cuda::sm90::prefill_pair
