// One compiled pair of kernels, with and without splits, for a head tile and a row width.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/launch_context.h"
#include "cuda/sm90/prefill_tile/args.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

// Instantiated in instances/prefill_tile_h{kHeads}_d{kDqk}.cu.
template <int kHeads, int kDqk>
cudaError_t launch_tile(const Args& args, const LaunchContext& context) noexcept;

}  // namespace sparse_mla::cuda::sm90::prefill_tile
