// The CPU backend: threads over rows, SIMD inside, float32 accumulation.
#pragma once

#include <string>

#include "base/problem.h"

namespace sparse_mla::cpu {

// threads <= 0 is one per core that this process may use.
void prefill(const PrefillProblem& problem, int threads);
void decode(const DecodeProblem& problem, int threads);

// The SIMD target that was picked at run time, such as "AVX3_SPR", for `info` and bench records.
std::string simd_target();

}  // namespace sparse_mla::cpu
