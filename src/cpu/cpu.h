// The CPU backend: threads over rows, SIMD inside, float32 accumulation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/problem.h"

namespace sparse_mla::cpu {

// threads <= 0 is one per usable core. A row's bits depend on that row alone: not on `threads`, not
// on the other rows. Throws std::bad_alloc, and std::invalid_argument where kv_scales come with a d that is no multiple
// of 64.
void prefill(const PrefillProblem& problem, int threads);
void decode(const DecodeProblem& problem, int threads);

// The instruction set that was picked at run time, such as "AMX_BF16", "AVX3_DL", "AVX2" or "NEON", for `info` and
// bench records.
std::string simd_target();
// Every instruction set that this build and this CPU have, best first.
std::vector<std::string> simd_targets();
// Forces one of simd_targets() for the whole process, so that tests reach each of them; "" goes back to the best.
// Throws std::invalid_argument for another name. Not while a call runs.
void force_simd_target(std::string_view name);

}  // namespace sparse_mla::cpu
