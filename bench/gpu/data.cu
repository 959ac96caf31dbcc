#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "cuda/error.h"
#include "gpu/data.h"

namespace sparse_mla::bench {
namespace {

constexpr int kThreads = 256;

int blocks_for(std::int64_t count) {
  const std::int64_t wanted = (count + kThreads - 1) / kThreads;
  return static_cast<int>(wanted < 65536 ? wanted : 65536);
}

// splitmix64's finaliser: a counter in, 64 random bits out.
__device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Uniform in (0, 1).
__device__ float unit(std::uint64_t bits) { return (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f; }

// Box-Muller.
__device__ float normal(std::uint64_t counter, std::uint64_t seed) {
  const std::uint64_t a = mix(counter * 2 + mix(seed));
  const std::uint64_t b = mix(counter * 2 + 1 + mix(seed));
  return sqrtf(-2.0f * logf(unit(a))) * cospif(2.0f * unit(b));
}

__global__ void normal_e4m3(std::uint8_t* to, std::int64_t count, float scale, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    to[i] = __nv_cvt_float_to_fp8(scale * normal(i, seed), __NV_SATFINITE, __NV_E4M3);
  }
}

__global__ void normal_bf16(__nv_bfloat16* to, std::int64_t count, float scale, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    to[i] = __float2bfloat16_rn(scale * normal(i, seed));
  }
}

__global__ void uniform(float* to, std::int64_t count, float low, float high, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    to[i] = low + (high - low) * unit(mix(i + mix(seed)));
  }
}

// A permutation of [0, range) by a balanced Feistel network over the next power of four, walking cycles back into range.
__device__ std::uint32_t permuted(std::uint32_t value, std::uint32_t range, int half_bits, std::uint64_t key) {
  const std::uint32_t mask = (1u << half_bits) - 1;
  do {
    std::uint32_t left = value >> half_bits;
    std::uint32_t right = value & mask;
    for (int round = 0; round < 4; ++round) {
      const std::uint32_t next = left ^ (static_cast<std::uint32_t>(mix(key + round * 0x51ED27ull + right)) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= range);
  return value;
}

__global__ void unique_indices(std::int32_t* to, std::int64_t rows, std::int64_t width, std::uint32_t range,
                               int half_bits, std::uint64_t seed) {
  const std::int64_t count = rows * width;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const std::uint64_t key = mix(mix(seed) + static_cast<std::uint64_t>(i / width));
    to[i] = static_cast<std::int32_t>(permuted(static_cast<std::uint32_t>(i % width), range, half_bits, key));
  }
}

__global__ void steps(std::int32_t* to, std::int64_t count, std::int32_t step) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    to[i] = static_cast<std::int32_t>(i) * step;
  }
}

void launched(const char* what) { cuda::throw_on_error(cudaGetLastError(), what); }

}  // namespace

void fill_normal_e4m3(std::uint8_t* device, std::int64_t count, float scale, std::uint64_t seed) {
  normal_e4m3<<<blocks_for(count), kThreads>>>(device, count, scale, seed);
  launched("fill_normal_e4m3");
}

void fill_normal_bf16(std::uint16_t* device, std::int64_t count, float scale, std::uint64_t seed) {
  normal_bf16<<<blocks_for(count), kThreads>>>(reinterpret_cast<__nv_bfloat16*>(device), count, scale, seed);
  launched("fill_normal_bf16");
}

void fill_uniform(float* device, std::int64_t count, float low, float high, std::uint64_t seed) {
  uniform<<<blocks_for(count), kThreads>>>(device, count, low, high, seed);
  launched("fill_uniform");
}

void fill_unique_indices(std::int32_t* device, std::int64_t rows, std::int64_t width, std::int64_t range,
                         std::uint64_t seed) {
  int half_bits = 1;
  while ((std::int64_t{1} << (2 * half_bits)) < range) ++half_bits;
  unique_indices<<<blocks_for(rows * width), kThreads>>>(device, rows, width, static_cast<std::uint32_t>(range),
                                                         half_bits, seed);
  launched("fill_unique_indices");
}

void fill_steps(std::int32_t* device, std::int64_t count, std::int32_t step) {
  steps<<<blocks_for(count), kThreads>>>(device, count, step);
  launched("fill_steps");
}

void fill_nan(void* device, std::int64_t bytes) {
  cuda::throw_on_error(cudaMemset(device, 0xFF, static_cast<std::size_t>(bytes)), "fill_nan");
}

}  // namespace sparse_mla::bench
