// Values that the calling thread can read.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "sparse_mla/contract.h"

namespace sparse_mla {
namespace {

// Elements of one dimension. Read byte by byte, since a captured file's tensors may lie at any address.
template <class T>
class Run {
 public:
  Run(const void* data, std::int64_t length, std::int64_t stride)
      : data_(static_cast<const char*>(data)), length_(length), step_(stride * static_cast<std::int64_t>(sizeof(T))) {}

  std::int64_t length() const { return length_; }
  T operator[](std::int64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * step_, sizeof(T));
    return value;
  }

 private:
  const char* data_;
  std::int64_t length_;
  std::int64_t step_;
};

// Position of the first element that `test` holds for. A block at a time without an early exit, so that the compiler
// can vectorise: a pool has millions of scales, and almost never a bad one.
template <class T, class Test>
std::optional<std::int64_t> first_in_run(const Run<T>& run, Test test) {
  constexpr std::int64_t kBlock = 512;
  for (std::int64_t begin = 0; begin < run.length(); begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, run.length());
    bool any = false;
    for (std::int64_t i = begin; i < end; ++i) any |= test(run[i]);
    if (!any) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (test(run[i])) return i;
    }
  }
  return std::nullopt;
}

template <class T>
struct Found {
  std::int64_t position;
  T value;
};

// The same over a view of any rank, in row-major order.
template <class T, class Test>
std::optional<Found<T>> first_in_view(const Tensor& tensor, Test test) {
  if (tensor.data == nullptr || tensor.elements() == 0) return std::nullopt;
  const bool one_run = tensor.is_contiguous();
  const int outer_rank = one_run ? 0 : tensor.rank - 1;
  const std::int64_t run_length = one_run ? tensor.elements() : tensor.shape[outer_rank];
  const std::int64_t run_stride = one_run ? 1 : tensor.strides[outer_rank];
  const std::int64_t runs = tensor.elements() / run_length;
  for (std::int64_t r = 0; r < runs; ++r) {
    std::int64_t offset = 0;
    std::int64_t rest = r;
    for (int d = outer_rank - 1; d >= 0; --d) {
      offset += rest % tensor.shape[d] * tensor.strides[d];
      rest /= tensor.shape[d];
    }
    const char* data = static_cast<const char*>(tensor.data) + offset * static_cast<std::int64_t>(sizeof(T));
    const Run<T> run(data, run_length, run_stride);
    if (const auto i = first_in_run(run, test)) return Found<T>{r * run_length + *i, run[*i]};
  }
  return std::nullopt;
}

class HostValues final : public ValueSource {
 public:
  std::optional<Offender> first_outside(std::string_view, const Tensor& tensor, std::int64_t low,
                                        std::int64_t high) const override {
    return tensor.dtype == DType::kInt64 ? outside<std::int64_t>(tensor, low, high)
                                         : outside<std::int32_t>(tensor, low, high);
  }

  std::optional<Offender> first_decrease(std::string_view, const Tensor& tensor) const override {
    if (tensor.data == nullptr || tensor.rank != 1) return std::nullopt;
    const Run<std::int32_t> run(tensor.data, tensor.shape[0], tensor.strides[0]);
    for (std::int64_t i = 1; i < run.length(); ++i) {
      if (run[i] < run[i - 1]) return Offender{i, static_cast<double>(run[i]), static_cast<double>(run[i - 1])};
    }
    return std::nullopt;
  }

  std::optional<Offender> first_not_finite(std::string_view, const Tensor& tensor) const override {
    // All exponent bits set: NaN or infinity, whatever the compiler assumes about floating point.
    constexpr std::uint32_t kExponent = 0x7F80'0000;
    const auto found =
        first_in_view<std::uint32_t>(tensor, [](std::uint32_t bits) { return (bits & kExponent) == kExponent; });
    if (!found) return std::nullopt;
    return Offender{found->position, static_cast<double>(std::bit_cast<float>(found->value))};
  }

  std::optional<Offender> first_not_positive(std::string_view, const Tensor& tensor) const override {
    const auto found = first_in_view<float>(tensor, [](float value) {
      return !(value > 0 && value <= std::numeric_limits<float>::max());
    });
    if (!found) return std::nullopt;
    return Offender{found->position, static_cast<double>(found->value)};
  }

 private:
  template <class T>
  static std::optional<Offender> outside(const Tensor& tensor, std::int64_t low, std::int64_t high) {
    const auto found = first_in_view<T>(tensor, [=](T value) { return (value < low) | (value > high); });
    if (!found) return std::nullopt;
    return Offender{found->position, static_cast<double>(found->value)};
  }
};

}  // namespace

const ValueSource& host_values() noexcept {
  static const HostValues kValues;
  return kValues;
}

}  // namespace sparse_mla
