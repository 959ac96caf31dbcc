// The definition behind instance.h; included by the instances only.
#pragma once

#include <algorithm>

#include <cuda_runtime.h>

#include "cuda/sm90/prefill_tile/instance.h"
#include "cuda/sm90/prefill_tile/kernel.cuh"

namespace sparse_mla::cuda::sm90::prefill_tile {

template <int kHeads, int kDqk, bool kSplit>
cudaError_t launch_instance(const Args& args, const LaunchContext& context) noexcept {
  constexpr auto kBytes = static_cast<unsigned>(Shared<kPolicyOf<kHeads, kDqk, kSplit>>::bytes);
  const auto kernel = prefill_tile<kHeads, kDqk, kSplit>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(args.splits), 1, 1};
  const auto persistent = std::min(args.items, static_cast<unsigned>(context.multiprocessors));
  const dim3 grid = kSplit ? dim3(static_cast<unsigned>(args.splits), args.items) : dim3(persistent);
  const cudaLaunchConfig_t config{.gridDim = grid,
                                  .blockDim = {kThreads, 1, 1},
                                  .dynamicSmemBytes = kBytes,
                                  .stream = static_cast<cudaStream_t>(context.stream),
                                  .attrs = &cluster,
                                  .numAttrs = kSplit ? 1u : 0u};
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <int kHeads, int kDqk>
cudaError_t launch_tile(const Args& args, const LaunchContext& context) noexcept {
  return args.splits > 1 ? launch_instance<kHeads, kDqk, true>(args, context)
                         : launch_instance<kHeads, kDqk, false>(args, context);
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
