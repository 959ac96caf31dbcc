#include "sparse_mla/tensor.h"

#include <charconv>
#include <utility>

namespace sparse_mla {
namespace {

struct DTypeInfo {
  std::string_view torch_name;
  std::size_t bytes;
};

// Indexed by DType.
constexpr std::array<DTypeInfo, kDTypeCount> kDTypes{{
    {"torch.float8_e4m3fn", 1},
    {"torch.float8_e4m3fnuz", 1},
    {"torch.float8_e5m2", 1},
    {"torch.float8_e5m2fnuz", 1},
    {"torch.float8_e8m0fnu", 1},
    {"torch.bfloat16", 2},
    {"torch.float16", 2},
    {"torch.float32", 4},
    {"torch.float64", 8},
    {"torch.uint8", 1},
    {"torch.int8", 1},
    {"torch.int16", 2},
    {"torch.int32", 4},
    {"torch.int64", 8},
    {"torch.bool", 1},
    {"torch.uint16", 2},
    {"torch.uint32", 4},
    {"torch.uint64", 8},
    {"torch.complex32", 4},
    {"torch.complex64", 8},
    {"torch.complex128", 16},
}};

int checked_rank(std::size_t dimensions) {
  if (dimensions > static_cast<std::size_t>(kMaxRank)) {
    throw std::invalid_argument("a tensor view has at most " + std::to_string(kMaxRank) + " dimensions, got " +
                                std::to_string(dimensions));
  }
  return static_cast<int>(dimensions);
}

}  // namespace

std::string_view torch_name(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].torch_name; }

std::size_t bytes_per_element(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].bytes; }

DType dtype_from_torch_name(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  std::string_view bare = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].torch_name.substr(kPrefix.size()) == bare) return static_cast<DType>(i);
  }
  throw std::invalid_argument("unknown dtype \"" + std::string(name) + "\"");
}

std::string to_string(Device device) {
  switch (device.kind) {
    case Device::Kind::kCuda:
      return "cuda:" + std::to_string(device.index);
    case Device::Kind::kMeta:
      return "meta";
    case Device::Kind::kCpu:
      break;
  }
  return "cpu";
}

Device device_from_string(std::string_view text) {
  if (text == "cpu") return Device::cpu();
  if (text == "meta") return {Device::Kind::kMeta, 0};
  if (text == "cuda") return Device::cuda(0);
  constexpr std::string_view kCuda = "cuda:";
  if (text.starts_with(kCuda)) {
    std::string_view digits = text.substr(kCuda.size());
    int index = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc{} && end == digits.data() + digits.size() && index >= 0) return Device::cuda(index);
  }
  throw std::invalid_argument("unknown device \"" + std::string(text) + "\"");
}

Tensor::Tensor(void* data, DType dtype, std::span<const std::int64_t> sizes, Device device)
    : data(data), dtype(dtype), device(device), rank(checked_rank(sizes.size())) {
  std::int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    shape[d] = sizes[d];
    strides[d] = stride;
    // Unsigned, so that a hostile shape wraps instead of being undefined; extent checks are the reader's.
    stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                       static_cast<std::uint64_t>(sizes[d] > 0 ? sizes[d] : 1));
  }
}

Tensor::Tensor(void* data, DType dtype, std::span<const std::int64_t> sizes, std::span<const std::int64_t> steps,
               Device device)
    : data(data), dtype(dtype), device(device), rank(checked_rank(sizes.size())) {
  if (sizes.size() != steps.size()) {
    throw std::invalid_argument("shape has " + std::to_string(sizes.size()) + " dimensions, strides has " +
                                std::to_string(steps.size()));
  }
  for (int d = 0; d < rank; ++d) {
    shape[d] = sizes[d];
    strides[d] = steps[d];
  }
}

std::int64_t Tensor::elements() const noexcept {
  std::uint64_t count = 1;
  for (int d = 0; d < rank; ++d) count *= static_cast<std::uint64_t>(shape[d]);
  return static_cast<std::int64_t>(count);
}

bool Tensor::is_contiguous() const noexcept {
  if (elements() == 0) return true;
  std::uint64_t expected = 1;  // unsigned, so that a hostile shape wraps instead of being undefined
  for (int d = rank - 1; d >= 0; --d) {
    if (shape[d] != 1 && static_cast<std::uint64_t>(strides[d]) != expected) return false;
    expected *= static_cast<std::uint64_t>(shape[d]);
  }
  return true;
}

std::size_t Tensor::extent_bytes() const noexcept {
  if (elements() == 0) return 0;
  std::uint64_t last = 0;
  for (int d = 0; d < rank; ++d) {
    last += (static_cast<std::uint64_t>(shape[d]) - 1) * static_cast<std::uint64_t>(strides[d]);
  }
  return static_cast<std::size_t>(last + 1) * bytes_per_element(dtype);
}

std::string shape_string(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(shape[d]);
  }
  text += shape.size() == 1 ? ",)" : ")";
  return text;
}

}  // namespace sparse_mla
