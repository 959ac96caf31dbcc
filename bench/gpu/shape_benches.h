// One measured entry a shape.
#pragma once

#include <nlohmann/json.hpp>

#include "gpu/ceilings.h"
#include "gpu/gpu_bench.h"
#include "gpu/shapes.h"

namespace sparse_mla::bench {

std::string shape_name(const PrefillShape& shape);
std::string shape_name(const DecodeShape& shape);
std::string shape_name(const KvShape& shape);
nlohmann::json bench_shape(const PrefillShape& shape, const GpuBenchOptions& options, const Ceilings& ceilings);
nlohmann::json bench_shape(const DecodeShape& shape, const GpuBenchOptions& options, const Ceilings& ceilings);
nlohmann::json bench_shape(const KvShape& shape, const GpuBenchOptions& options, const Ceilings& ceilings);

// {"median_us": ..., "min_us": ..., "max_us": ..., "samples": ...}
struct Spread;
nlohmann::json to_json(const Spread& spread);
// ||got - want|| / ||want|| over `count` values; `got` is bf16.
double relative_error_bf16(const std::uint16_t* got, const double* want, std::int64_t count);

}  // namespace sparse_mla::bench
