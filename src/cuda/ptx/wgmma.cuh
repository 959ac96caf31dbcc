// wgmma control, PTX ISA 8.0, sm_90a, and the descriptor of a shared-memory operand.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::ptx {

// wgmma.fence: before the first wgmma, and whenever registers of a wgmma were touched by other instructions.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending groups are in flight.
template <int kPending>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Tells the compiler that an accumulator changes here (a wgmma in flight writes it), so that it moves no use across.
template <int kCount>
__device__ inline void wgmma_touch(float (&accumulator)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulator[i])::"memory");
}
template <int kCount>
__device__ inline void wgmma_touch(std::uint32_t (&fragment)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(fragment[i])::"memory");
}

enum class Swizzle : std::uint32_t { k128B = 1, k64B = 2, k32B = 3 };

// The descriptor of a K-major tile whose rows are one swizzle width (128, 64 or 32 bytes) long and stored one after
// the other: eight rows make one group of 8 * width bytes. `address` is a shared::cta address; a step along K inside
// the row adds its bytes to the address (see descriptor_at). PTX ISA 8.0, "Matrix descriptor".
template <Swizzle kSwizzle>
__device__ inline std::uint64_t wgmma_descriptor(std::uint32_t address) {
  constexpr std::uint32_t kWidth = kSwizzle == Swizzle::k128B ? 128 : kSwizzle == Swizzle::k64B ? 64 : 32;
  constexpr std::uint64_t kFixed = (static_cast<std::uint64_t>(kSwizzle) << 62) |
                                   (static_cast<std::uint64_t>((8 * kWidth) >> 4) << 32) | (1ull << 16);
  return kFixed | ((address & 0x3FFFFu) >> 4);
}
// The descriptor `bytes` further along (bytes is a multiple of 16). The address field never carries into the next one, so
// only the low word is added to: a 64-bit addition per wgmma would cost three uniform instructions more.
__device__ inline std::uint64_t wgmma_descriptor_at(std::uint64_t descriptor, std::uint32_t bytes) {
  const auto low = static_cast<std::uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor & 0xFFFFFFFF00000000ull) | low;
}

}  // namespace sparse_mla::cuda::ptx
