// One instance of the kernel behind a host function. Included by ../instances/decode_*.cu only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>

#include "cuda/sm90/decode/instance.h"
#include "cuda/sm90/decode/kernel.cuh"

namespace sparse_mla::cuda::sm90::decode {

template <KvFormat kFormat, int kHeads, int kKeyGroups, int kValueGroups, int kSlots>
int enqueue(const Args& args, void* stream) {
  constexpr Policy P{kFormat, kHeads, kKeyGroups, kValueGroups, kSlots};
  const auto kernel = decode_kernel<kFormat, kHeads, kKeyGroups, kValueGroups, kSlots>;
  const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Shared<P>::bytes));
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(args.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(args.windows, args.head_groups);
  config.blockDim = P.threads();
  config.dynamicSmemBytes = Shared<P>::bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = args.cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace sparse_mla::cuda::sm90::decode
