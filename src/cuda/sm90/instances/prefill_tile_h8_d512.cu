#include "cuda/sm90/prefill_tile/instance.cuh"

namespace sparse_mla::cuda::sm90::prefill_tile {
template cudaError_t launch_tile<8, 512>(const Args&, const LaunchContext&) noexcept;
}  // namespace sparse_mla::cuda::sm90::prefill_tile
