// Fences.
#pragma once

namespace sparse_mla::cuda::ptx {

// fence.proxy.async.shared::cta, PTX ISA 8.0: this thread's generic accesses to shared memory come before later accesses
// by the async proxy (wgmma operands, bulk copies). The unqualified form also waits for global memory, which costs
// hundreds of cycles while a gather is in flight.
__device__ inline void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// fence.mbarrier_init.release.cluster, PTX ISA 8.0: mbarrier.init becomes visible to the cluster.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// fence.acq_rel.gpu: orders global memory for the last-arriving block of a split row.
__device__ inline void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

}  // namespace sparse_mla::cuda::ptx
