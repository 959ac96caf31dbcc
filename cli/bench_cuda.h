// `bench --backend cuda`: bench/gpu, where the CUDA backend is compiled in.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sparse_mla::cli {

struct CudaBenchOptions {
  std::string entry_point = "all";  // "prefill", "decode" or "all"
  std::string only;                 // shapes whose name contains this text
  int samples = 15;
  bool ceilings = true;
  bool check = true;
};

// Prints a line a shape to standard error as it is measured, and returns the record. Throws std::runtime_error where
// there is no device or no CUDA backend.
nlohmann::ordered_json run_cuda_bench(const CudaBenchOptions& options);

}  // namespace sparse_mla::cli
