// Holds a finished call against the float64 reference.
#pragma once

#include <cstdint>

#include "cli/difference.h"
#include "files/captured_call.h"

namespace sparse_mla::cli {

struct Accuracy {
  Difference out;
  Difference max_logits;  // empty for decode
  Difference lse;         // empty where the call has no lse
  // Every output is within its bound.
  bool ok(const Tolerance& tolerance) const;
};

// Computes the rows [begin, begin + count) of the call in float64, a part of them per core, and compares its outputs,
// which must be there. The call has passed its checks and its tensors are host memory.
Accuracy accuracy_of(const files::AnyCall& call, std::int64_t begin, std::int64_t count);

}  // namespace sparse_mla::cli
