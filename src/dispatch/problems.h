// From a call that has passed its checks to the problem that a backend computes.
#pragma once

#include "base/problem.h"
#include "sparse_mla/calls.h"

namespace sparse_mla::dispatch {

// The call must have passed check() without violations; absent outputs become null pointers.
PrefillProblem prefill_problem(const PrefillCall& call);
DecodeProblem decode_problem(const DecodeCall& call);

}  // namespace sparse_mla::dispatch
