#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/float_formats.h"

namespace sparse_mla::test {
namespace {

bool same_special(double got, double expected) {
  return std::isnan(expected) ? std::isnan(got) : std::isinf(expected) ? got == expected : std::isfinite(got);
}

std::string text(const char* format, std::size_t place, double got, double expected) {
  char buffer[160];
  std::snprintf(buffer, sizeof buffer, format, place, got, expected);
  return buffer;
}

void note(Comparison& comparison, const std::string& fault) {
  if (comparison.fault.empty()) comparison.fault = fault;
}

// max_logits or lse.
double compare_statistic(std::span<const double> got, std::span<const double> expected, const char* format,
                         const Tolerance& tolerance, double size, Comparison& comparison) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!same_special(got[i], expected[i])) note(comparison, text(format, i, got[i], expected[i]));
    if (!std::isfinite(expected[i])) continue;
    const double error = std::fabs(got[i] - expected[i]);
    worst = std::max(worst, error);
    if (!(error <= tolerance.lse_absolute + tolerance.lse_relative * size)) {
      note(comparison, text(format, i, got[i], expected[i]));
    }
  }
  return worst;
}

double largest_finite(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

std::vector<double> values_of(const float* from, std::int64_t count) {
  return from == nullptr ? std::vector<double>() : std::vector<double>(from, from + count);
}

std::vector<double> values_of(const std::uint16_t* from, std::int64_t count, DType dtype) {
  std::vector<double> values(count);
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = dtype == DType::kBFloat16 ? float_from_bf16(from[i]) : float_from_f16(from[i]);
  }
  return values;
}

}  // namespace

// lse: a float32 sum of 576 products of one sign is off by up to 1.7e-5 of itself, in practice by a tenth of that.
Tolerance float32_tolerance(DType out_dtype, std::int64_t out_values) {
  const double half_unit = out_dtype == DType::kBFloat16 ? 0x1.0p-8 : 0x1.0p-11;
  const double head = 1.05 * half_unit;
  const double call = out_dtype == DType::kBFloat16 ? 3e-3 : 4e-4;
  // bfloat16 has float32's exponents, and float32 kernels may flush subnormals.
  const double smallest = out_dtype == DType::kBFloat16 ? 0x1.0p-126 : 0x1.0p-25;
  return {out_values >= 1024 ? call : head, head, smallest, 1e-5, 4e-6};
}

Outputs outputs_of(const PrefillProblem& p) {
  const std::int64_t row_heads = p.s_q * p.h_q;
  return {values_of(p.out, row_heads * p.d_v, DType::kBFloat16), values_of(p.max_logits, row_heads),
          values_of(p.lse, row_heads)};
}

Outputs outputs_of(const DecodeProblem& p) {
  const std::int64_t row_heads = p.n * p.h;
  return {values_of(static_cast<const std::uint16_t*>(p.out), row_heads * p.d_v, p.q_dtype), {},
          values_of(p.lse, row_heads)};
}

Comparison compare(const Outputs& got, std::span<const double> out, std::span<const double> max_logits,
                   std::span<const double> lse, const Tolerance& tolerance) {
  Comparison comparison;
  const std::size_t row_heads = lse.size();
  const std::size_t d_v = row_heads == 0 ? 0 : out.size() / row_heads;
  if (got.out.size() != out.size()) return {.fault = "out has another size than the reference"};
  const double free = tolerance.out_absolute * std::sqrt(static_cast<double>(d_v));  // per head
  double total_error = 0, total_norm = 0;
  for (std::size_t head = 0; head < row_heads; ++head) {
    double error = 0, norm = 0;
    for (std::size_t i = head * d_v; i < (head + 1) * d_v; ++i) {
      if (!same_special(got.out[i], out[i])) note(comparison, text("out[%zu] is %g, not %g", i, got.out[i], out[i]));
      if (!std::isfinite(out[i]) || !std::isfinite(got.out[i])) continue;
      error += (got.out[i] - out[i]) * (got.out[i] - out[i]);
      norm += out[i] * out[i];
    }
    total_error += error;
    total_norm += norm;
    error = std::sqrt(error);
    norm = std::sqrt(norm);
    if (norm == 0 && error != 0) note(comparison, text("row-head %zu: error %g where out is %g", head, error, norm));
    if (error > free) comparison.out_error_worst = std::max(comparison.out_error_worst, error / norm);
    if (!(error <= tolerance.out_relative_norm_head * norm + free)) {
      note(comparison, text("row-head %zu: relative error %g, norm %g", head, error / norm, norm));
    }
  }
  if (total_norm > 0) comparison.out_error = std::sqrt(total_error / total_norm);
  const double free_total = free * std::sqrt(static_cast<double>(row_heads));
  if (!(std::sqrt(total_error) <= tolerance.out_relative_norm * std::sqrt(total_norm) + free_total)) {
    note(comparison, text("out of %zu heads: relative error %g, norm %g", row_heads, comparison.out_error,
                          std::sqrt(total_norm)));
  }
  const double size = std::max(largest_finite(max_logits), largest_finite(lse));
  if (!got.max_logits.empty()) {
    comparison.max_error =
        compare_statistic(got.max_logits, max_logits, "max_logits[%zu] is %.9g, not %.9g", tolerance, size, comparison);
  }
  if (!got.lse.empty()) {
    comparison.lse_error = compare_statistic(got.lse, lse, "lse[%zu] is %.9g, not %.9g", tolerance, size, comparison);
  }
  return comparison;
}

}  // namespace sparse_mla::test
