// Asynchronous copies.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::ptx {

// cp.async.cg 16 bytes global -> shared, past L1. Only the first `source_bytes` (0..16) are read; the rest is zero.
__device__ inline void cp_async_16(std::uint32_t to, const void* from, std::uint32_t source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(source_bytes) : "memory");
}
__device__ inline void cp_async_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// cp.async.bulk global -> shared::cluster, PTX ISA 8.0. `bytes` and both addresses are multiples of 16; `barrier`
// counts the bytes. One thread issues it: call it warp-uniformly under elect_sync.
__device__ inline void cp_async_bulk_to_shared(std::uint32_t to, const void* from, std::uint32_t bytes,
                                               std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// cp.async.bulk shared::cta -> shared::cluster: `to` and `barrier` are in another CTA of the cluster (mapa).
__device__ inline void cp_async_bulk_to_peer(std::uint32_t to, std::uint32_t from, std::uint32_t bytes,
                                             std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// cp.async.bulk shared -> global, in a bulk group of the issuing thread.
__device__ inline void cp_async_bulk_to_global(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's bulk groups still read their source.
template <int kPending>
__device__ inline void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ inline void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
// cp.async.bulk.prefetch.L2: `bytes` is a multiple of 16.
__device__ inline void cp_async_bulk_prefetch_l2(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// prefetch.global.L2: the line that holds one address.
__device__ inline void prefetch_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// cp.async.bulk.tensor.3d global -> shared::cluster, PTX ISA 8.0: one box of a tensor map at coordinates (x, y, z).
__device__ inline void cp_async_bulk_tensor_3d(std::uint32_t to, const void* tensor_map, std::int32_t x, std::int32_t y,
                                               std::int32_t z, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(tensor_map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
// cp.async.bulk.prefetch.tensor.3d, PTX ISA 8.0: the box goes to L2.
__device__ inline void cp_async_bulk_prefetch_tensor_3d(const void* tensor_map, std::int32_t x, std::int32_t y,
                                                        std::int32_t z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(tensor_map), "r"(x), "r"(y),
               "r"(z)
               : "memory");
}

// st.async.b32 to a peer's shared memory, PTX ISA 8.1; `barrier` (the peer's) counts 4 bytes.
__device__ inline void st_async_b32(std::uint32_t to, std::uint32_t value, std::uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(value),
               "r"(barrier)
               : "memory");
}
__device__ inline void st_async_v4(std::uint32_t to, uint4 value, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}

}  // namespace sparse_mla::cuda::ptx
