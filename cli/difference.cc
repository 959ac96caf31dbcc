#include "cli/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/float_formats.h"

namespace sparse_mla::cli {

double value_at(const Tensor& tensor, std::int64_t index, std::string_view name) {
  switch (tensor.dtype) {
    case DType::kFloat64:
      return tensor.as<const double>()[index];
    case DType::kFloat32:
      return static_cast<double>(tensor.as<const float>()[index]);
    case DType::kBFloat16:
      return static_cast<double>(float_from_bf16(tensor.as<const std::uint16_t>()[index]));
    case DType::kFloat16:
      return static_cast<double>(float_from_f16(tensor.as<const std::uint16_t>()[index]));
    default:
      throw std::runtime_error(std::string(name) + " is " + std::string(torch_name(tensor.dtype)) +
                               "; float64, float32, bfloat16 and float16 can be compared");
  }
}

void Difference::add(double got, double expected) {
  ++count_;
  if (!std::isfinite(got) || !std::isfinite(expected)) {
    const bool same = got == expected || (std::isnan(got) && std::isnan(expected));
    if (!same) ++special_mismatches_;
    return;
  }
  squared_error_ += (got - expected) * (got - expected);
  squared_got_ += got * got;
  squared_expected_ += expected * expected;
  product_ += got * expected;
  max_abs_ = std::max(max_abs_, std::abs(got - expected));
}

void Difference::add(const Difference& other) {
  count_ += other.count_;
  special_mismatches_ += other.special_mismatches_;
  squared_error_ += other.squared_error_;
  squared_got_ += other.squared_got_;
  squared_expected_ += other.squared_expected_;
  product_ += other.product_;
  max_abs_ = std::max(max_abs_, other.max_abs_);
}

double Difference::relative() const {
  if (squared_error_ == 0) return 0;
  if (squared_expected_ == 0) return std::numeric_limits<double>::infinity();
  return std::sqrt(squared_error_ / squared_expected_);
}

double Difference::cosine() const {
  if (squared_got_ == 0 && squared_expected_ == 0) return 1;
  if (squared_got_ == 0 || squared_expected_ == 0) return 0;
  return product_ / std::sqrt(squared_got_) / std::sqrt(squared_expected_);
}

bool Difference::within(double tolerance) const {
  return squared_expected_ > 0 && special_mismatches_ == 0 && relative() <= tolerance;
}

bool Difference::within_absolute(double tolerance) const {
  return count_ > 0 && special_mismatches_ == 0 && max_abs_ <= tolerance;
}

Tolerance prefill_tolerance(Backend backend, std::int64_t d_qk, std::int64_t topk) {
  constexpr double kLse = 5e-4;
  if (backend != Backend::kCuda) return {3e-3, kLse};
  if (d_qk == 576 && topk >= 2048) return {1.70e-2, kLse};
  if (topk >= 1024) return {1.90e-2, kLse};
  return {2.08e-2, kLse};
}

Tolerance decode_tolerance() { return {3e-3, 5e-4}; }

}  // namespace sparse_mla::cli
