#include "cuda/sm90/kv/transfer_kernels.cuh"

namespace sparse_mla::cuda::sm90::kv {

template TransferKernel transfer_kernel_from<Float32Source>(const KvTransferProblem&) noexcept;

}  // namespace sparse_mla::cuda::sm90::kv
