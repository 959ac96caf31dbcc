// The instances of the transfer kernel: twelve pairs of source and target, each for rows of 8, 9 and any blocks. Each file
// of instances/kv_*.cu holds those of one source.
#pragma once

#include <cstdint>

#include "base/kv_transfer.h"
#include "cuda/sm90/kv/rows.cuh"

namespace sparse_mla::cuda::sm90::kv {

using TransferKernel = void (*)(const KvTransferProblem, Repeats, const std::int32_t*);

template <class Source>
TransferKernel transfer_kernel_from(const KvTransferProblem& problem) noexcept;

struct HalfSource;
struct Float32Source;
struct Fp8Source;
extern template TransferKernel transfer_kernel_from<HalfSource>(const KvTransferProblem&) noexcept;
extern template TransferKernel transfer_kernel_from<Float32Source>(const KvTransferProblem&) noexcept;
extern template TransferKernel transfer_kernel_from<Fp8Source>(const KvTransferProblem&) noexcept;

// The kernel that serves a problem.
inline TransferKernel transfer_kernel(const KvTransferProblem& problem) noexcept {
  if (problem.source.is_fp8()) return transfer_kernel_from<Fp8Source>(problem);
  if (problem.source.dtype == DType::kFloat32) return transfer_kernel_from<Float32Source>(problem);
  return transfer_kernel_from<HalfSource>(problem);
}

}  // namespace sparse_mla::cuda::sm90::kv
