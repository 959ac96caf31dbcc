// Transfers of cache rows on the CPU: threads over rows, SIMD inside.
#pragma once

#include "base/kv_transfer.h"

namespace sparse_mla::kv {

// threads <= 0 is one per core. The result does not depend on `threads`. Throws std::bad_alloc before anything is
// written.
void transfer(const KvTransferProblem& problem, int threads);

}  // namespace sparse_mla::kv
