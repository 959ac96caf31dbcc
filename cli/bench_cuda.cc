#include "cli/bench_cuda.h"

#include <iostream>

#include "gpu/gpu_bench.h"

namespace sparse_mla::cli {

nlohmann::ordered_json run_cuda_bench(const CudaBenchOptions& options) {
  const bench::GpuBenchOptions all = {.entry_point = options.entry_point,
                                      .only = options.only,
                                      .samples = options.samples,
                                      .ceilings = options.ceilings,
                                      .check = options.check};
  return bench::run_gpu_bench(all, [](const std::string& line) { std::cerr << line << std::endl; });
}

}  // namespace sparse_mla::cli
