// Which instance serves a problem, for one source; included by the files that instantiate it.
#pragma once

#include "cuda/sm90/kv/kernel.cuh"
#include "cuda/sm90/kv/transfer_kernels.h"

namespace sparse_mla::cuda::sm90::kv {

template <class Source, class Target>
TransferKernel for_width(int width) {
  switch (width / kBlockValues) {
    case 8:
      return transfer<Source, Target, 8>;
    case 9:
      return transfer<Source, Target, 9>;
    default:
      return transfer<Source, Target, 0>;
  }
}

template <class Source>
TransferKernel transfer_kernel_from(const KvTransferProblem& problem) noexcept {
  if (problem.target.is_fp8() && problem.target.group == 0) return for_width<Source, OneScaleTarget>(problem.width);
  if (problem.target.is_fp8()) return for_width<Source, GroupTarget>(problem.width);
  if (problem.target.dtype == DType::kFloat32) return for_width<Source, Float32Target>(problem.width);
  return for_width<Source, HalfTarget>(problem.width);
}

}  // namespace sparse_mla::cuda::sm90::kv
