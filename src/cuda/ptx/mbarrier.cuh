// mbarrier objects: 8 bytes of shared memory, addressed by 32-bit shared addresses.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::ptx {

// mbarrier.init, PTX ISA 7.0.
__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// mbarrier.arrive (release, CTA scope).
__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// mbarrier.arrive on a barrier of any CTA of the cluster; `barrier` is a shared::cluster address from mapa.
__device__ inline void mbarrier_arrive_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The same with release semantics at cluster scope, PTX ISA 8.0.
__device__ inline void mbarrier_arrive_release_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same two in the threads where `arrives` is true, without a branch.
__device__ inline void mbarrier_arrive_if(std::uint32_t barrier, bool arrives) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}\n" ::"r"(barrier),
      "r"(static_cast<std::uint32_t>(arrives))
      : "memory");
}
__device__ inline void mbarrier_arrive_cluster_if(std::uint32_t barrier, bool arrives) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}\n" ::"r"(barrier),
      "r"(static_cast<std::uint32_t>(arrives))
      : "memory");
}

// mbarrier.arrive.expect_tx: one arrival, and `bytes` more to come by asynchronous copies.
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// mbarrier.expect_tx: no arrival.
__device__ inline void mbarrier_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// mbarrier.try_wait.parity (acquire, CTA scope): one attempt, which may suspend the thread for a while.
__device__ inline bool mbarrier_try_wait_parity(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// The same with acquire semantics at cluster scope, PTX ISA 8.0.
__device__ inline bool mbarrier_try_wait_parity_acquire_cluster(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits for the completion of the phase of this parity: a loop in PTX, so that no loop counter is kept in a register.
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Waits for two at once: both are asked before either answer is used.
__device__ inline void mbarrier_wait_two(std::uint32_t first, std::uint32_t first_parity, std::uint32_t second,
                                         std::uint32_t second_parity) {
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 q, [%2], %3;\n"
      "and.pred p, p, q;\n"
      "@p bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(first),
      "r"(first_parity), "r"(second), "r"(second_parity)
      : "memory");
}

// cp.async.mbarrier.arrive.noinc: this thread's arrival, once its earlier cp.async have landed.
__device__ inline void cp_async_mbarrier_arrive_noinc(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace sparse_mla::cuda::ptx
