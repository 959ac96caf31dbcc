// From a call that has passed its checks to the problem that a backend computes.
#pragma once

#include <array>
#include <vector>

#include "base/problem.h"
#include "sparse_mla/calls.h"

namespace sparse_mla::dispatch {

// The call must have passed check() without violations; absent outputs become null pointers. decode_problem also needs
// kv_scales whose last dimension is dense: DenseScales.
PrefillProblem prefill_problem(const PrefillCall& call);
DecodeProblem decode_problem(const DecodeCall& call);

// A decode call whose kv_scales have a dense last dimension, as backends read them: the contract takes strided scales,
// which are copied here. The call must have passed check() without violations. Throws std::runtime_error for strided
// scales on a device, where this library allocates nothing.
class DenseScales {
 public:
  explicit DenseScales(const DecodeCall& call);
  DenseScales(const DenseScales&) = delete;
  DenseScales& operator=(const DenseScales&) = delete;
  const DecodeCall& call() const { return call_; }

 private:
  DecodeCall call_;
  std::array<std::vector<float>, 2> copies_;  // of the first and the second pool's scales, where they were strided
};

}  // namespace sparse_mla::dispatch
