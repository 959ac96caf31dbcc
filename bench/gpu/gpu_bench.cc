#include "gpu/gpu_bench.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "base/float_formats.h"
#include "cuda/cuda.h"
#include "cuda/error.h"
#include "gpu/shape_benches.h"
#include "gpu/timing.h"

namespace sparse_mla::bench {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

nlohmann::json to_json(const Ceilings& c) {
  return {{"e4m3_gemm_8192_tflops", c.e4m3_tflops},
          {"bf16_gemm_8192_tflops", c.bf16_tflops},
          {"copy_bytes_per_s", c.copy_bytes_per_s},
          {"cublaslt", c.cublaslt}};
}

nlohmann::json environment() {
  int device = 0;
  int driver = 0;
  int runtime = 0;
  cuda::throw_on_error(cudaGetDevice(&device), "cudaGetDevice");
  cuda::throw_on_error(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  cuda::throw_on_error(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const cuda::DeviceInfo info = cuda::devices().at(device);
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {{"card", info.name},
          {"multiprocessors", info.multiprocessors},
          {"l2_bytes", info.l2_bytes},
          {"driver_cuda", version_text(driver)},
          {"runtime_cuda", version_text(runtime)},
          {"date", date}};
}

std::string line_of(const nlohmann::json& entry) {
  char text[200];
  const std::string name = entry.at("name");
  const double us = entry.at("median_us");
  if (entry.contains("tflops")) {
    std::snprintf(text, sizeof(text), "%-52s %9.2f us  %7.1f TFLOPS  err %.2e", name.c_str(), us,
                  entry.at("tflops").get<double>(), entry.value("relative_error", std::nan("")));
  } else {
    std::snprintf(text, sizeof(text), "%-52s %9.2f us  %7.1f GB/s  %.1f%% of copy", name.c_str(), us,
                  1e-9 * entry.at("bytes_per_s").get<double>(), 100 * entry.value("of_copy", std::nan("")));
  }
  return text;
}

template <class Shapes>
void bench_all(const Shapes& shapes, const GpuBenchOptions& options, const Ceilings& ceilings, const Report& report,
               nlohmann::json& entries) {
  for (const auto& shape : shapes) {
    if (shape_name(shape).find(options.only) == std::string::npos) continue;
    entries.push_back(bench_shape(shape, options, ceilings));
    report(line_of(entries.back()));
  }
}

}  // namespace

nlohmann::json to_json(const Spread& spread) {
  return {{"median_us", spread.median}, {"min_us", spread.min}, {"max_us", spread.max}, {"samples", spread.samples}};
}

double relative_error_bf16(const std::uint16_t* got, const double* want, std::int64_t count) {
  double error = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double difference = float_from_bf16(got[i]) - want[i];
    error += difference * difference;
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

nlohmann::json run_gpu_bench(const GpuBenchOptions& options, const Report& report) {
  const std::string reason = cuda::unavailable_reason();
  if (!reason.empty()) throw std::runtime_error("backend cuda is not available: " + reason);
  nlohmann::json record = environment();
  Ceilings ceilings;
  if (options.ceilings) {
    ceilings = measure_ceilings();
    record["ceilings_before"] = to_json(ceilings);
  }
  nlohmann::json entries = nlohmann::json::array();
  const auto is_asked = [&](std::string_view name) { return options.entry_point == "all" || options.entry_point == name; };
  if (is_asked("prefill")) bench_all(kPrefillShapes, options, ceilings, report, entries);
  if (is_asked("decode")) bench_all(kDecodeShapes, options, ceilings, report, entries);
  if (is_asked("kv")) bench_all(kKvShapes, options, ceilings, report, entries);
  record["results"] = std::move(entries);
  if (options.ceilings) record["ceilings_after"] = to_json(measure_ceilings());
  return record;
}

}  // namespace sparse_mla::bench
