// From a transfer that has passed its checks to the problem that a backend computes.
#pragma once

#include "base/kv_transfer.h"
#include "sparse_mla/kv_cache.h"

namespace sparse_mla::dispatch {

// The call must have passed check() without violations.
KvTransferProblem kv_transfer_problem(const KvCall& call);

}  // namespace sparse_mla::dispatch
