// Named barriers, cluster barriers, register hand-over.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::ptx {

// bar.sync id, threads: waits until `threads` threads (a multiple of 32) have arrived.
__device__ inline void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// bar.arrive: counts this warp in without waiting.
__device__ inline void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// bar.red.or.pred: bar.sync that also gives every thread the OR of `value`.
__device__ inline bool bar_red_or(int id, int threads, bool value) {
  std::uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "bar.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(value))
      : "memory");
  return any != 0;
}

// barrier.cluster.arrive, PTX ISA 7.8, release semantics.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
// barrier.cluster.arrive.relaxed, PTX ISA 8.0.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// barrier.cluster.wait, PTX ISA 7.8, acquire semantics.
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// setmaxnreg, PTX ISA 8.0, sm_90a. Every warp of a warpgroup calls it.
template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  static_assert(kRegisters % 8 == 0 && 24 <= kRegisters && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  static_assert(kRegisters % 8 == 0 && 24 <= kRegisters && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace sparse_mla::cuda::ptx
