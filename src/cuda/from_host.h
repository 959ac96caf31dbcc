// Runs a problem whose pointers are host memory on the current CUDA device: allocates, copies in, computes, copies
// the results out, waits. For the command line, the demo and the tests; engines pass device pointers to cuda.h.
#pragma once

#include "base/problem.h"

namespace sparse_mla::cuda {

void prefill_from_host(const PrefillProblem& problem, bool batch_invariant = false);
void decode_from_host(const DecodeProblem& problem, bool batch_invariant = false);

}  // namespace sparse_mla::cuda
