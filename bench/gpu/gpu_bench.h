// The GPU benchmark: the shapes of the issues' tables, timed beside the card's ceilings of the same run and checked on a
// few rows against the float64 reference.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace sparse_mla::bench {

struct GpuBenchOptions {
  std::string entry_point = "all";  // "prefill", "decode", "kv" or "all"
  std::string only;                 // shapes whose name contains this text; empty is all
  int samples = 15;
  bool ceilings = true;
  bool check = true;                // compare a few rows with the reference
};

// One line a shape, as it is measured.
using Report = std::function<void(const std::string&)>;

// The record of the run: card, driver, CUDA version, date, ceilings before and after, and one entry a shape. Throws
// std::runtime_error where there is no device to measure.
nlohmann::json run_gpu_bench(const GpuBenchOptions& options, const Report& report);

}  // namespace sparse_mla::bench
