#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/prefill_pair/device_difference.h"

namespace sparse_mla::test {
namespace {

__global__ void count_differences(const std::uint32_t* large, std::size_t large_words, const std::uint32_t* small,
                                  std::size_t small_words, unsigned long long* counter) {
  unsigned long long mine = 0;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < large_words; i += step)
    mine += large[i] != small[i % small_words] ? 1 : 0;
  if (mine != 0) atomicAdd(counter, mine);
}

}  // namespace

unsigned long long device_differences(const void* large, std::size_t large_bytes, const void* small,
                                      std::size_t small_bytes, void* counter, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  cudaMemsetAsync(counter, 0, sizeof(unsigned long long), on);
  count_differences<<<1024, 256, 0, on>>>(static_cast<const std::uint32_t*>(large), large_bytes / 4,
                                          static_cast<const std::uint32_t*>(small), small_bytes / 4,
                                          static_cast<unsigned long long*>(counter));
  unsigned long long found = ~0ull;
  if (cudaGetLastError() != cudaSuccess) return found;
  cudaMemcpyAsync(&found, counter, sizeof found, cudaMemcpyDeviceToHost, on);
  return cudaStreamSynchronize(on) == cudaSuccess ? found : ~0ull;
}

}  // namespace sparse_mla::test
