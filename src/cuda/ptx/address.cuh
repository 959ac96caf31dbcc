// Addresses and identities.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::ptx {

// The 32-bit shared::cta address of a pointer into shared memory.
__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// The inverse.
__device__ inline void* shared_pointer(std::uint32_t address) { return __cvta_shared_to_generic(address); }

// mapa.shared::cluster.u32, PTX ISA 7.8: the address of the same shared variable in CTA `rank` of the cluster.
__device__ inline std::uint32_t mapa(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// %cluster_ctarank, PTX ISA 7.8.
__device__ inline std::uint32_t cluster_ctarank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// elect.sync, PTX ISA 8.0: true in one lane of the (fully active) warp.
__device__ inline bool elect_sync() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// A copy that the compiler can't see through: values derived from it are recomputed where they are used instead of
// being hoisted out of a loop and spilled.
__device__ inline std::uint32_t opaque(std::uint32_t value) {
  std::uint32_t copy;
  asm volatile("mov.b32 %0, %1;" : "=r"(copy) : "r"(value));
  return copy;
}

template <class T>
__device__ inline const T* opaque(const T* pointer) {
  const T* copy;
  asm volatile("mov.b64 %0, %1;" : "=l"(copy) : "l"(pointer));
  return copy;
}

// ld.shared in 4, 8 and 16 bytes, and st.shared.
__device__ inline std::uint32_t ld_shared_b32(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline std::uint16_t ld_shared_b16(std::uint32_t address) {
  std::uint16_t value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline float ld_shared_f32(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline uint2 ld_shared_v2(std::uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
  return value;
}
__device__ inline float2 ld_shared_f32x2(std::uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}
__device__ inline uint4 ld_shared_v4(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ inline void st_shared_b16(std::uint32_t address, std::uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
__device__ inline void st_shared_b32(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ inline void st_shared_b8(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.b8 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ inline void st_shared_f32(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ inline void st_shared_f32x2(std::uint32_t address, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second) : "memory");
}
__device__ inline void st_shared_v2(std::uint32_t address, uint2 value) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y) : "memory");
}
__device__ inline void st_shared_v4(std::uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
// ld.shared::cluster, PTX ISA 7.8: reads another CTA's shared memory.
__device__ inline float ld_cluster_f32(std::uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline float4 ld_cluster_f32x4(std::uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace sparse_mla::cuda::ptx
