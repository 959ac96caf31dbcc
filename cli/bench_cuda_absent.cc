#include <stdexcept>

#include "cli/bench_cuda.h"
#include "cuda/cuda.h"

namespace sparse_mla::cli {

nlohmann::ordered_json run_cuda_bench(const CudaBenchOptions&) {
  throw std::runtime_error("backend cuda is not available: " + cuda::unavailable_reason());
}

}  // namespace sparse_mla::cli
