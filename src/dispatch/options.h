// What RunOptions mean to the checks and to the CUDA backend.
#pragma once

#include "cuda/cuda.h"
#include "sparse_mla/attention.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::dispatch {

// Values are always checked where they cost little to read (CPU tensors), and on a device where that was asked for, by
// RunOptions::check_values or SPARSE_MLA_CHECK=1.
CheckOptions check_options(bool on_cpu, bool contract, const RunOptions& options);
cuda::Launch cuda_launch(Device device, const RunOptions& options);

}  // namespace sparse_mla::dispatch
