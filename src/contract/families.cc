#include "contract/families.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace sparse_mla::contract {

std::string concat(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view part : parts) text.append(part);
  return text;
}

std::string tuple(std::span<const std::int64_t> sizes) { return shape_string(sizes); }

std::string dtype_string(const Tensor& tensor) { return std::string(torch_name(tensor.dtype)); }

std::string strides_string(const Tensor& tensor) {
  return shape_string({tensor.strides.data(), static_cast<std::size_t>(tensor.rank)});
}

std::string shape_and_dtype(const Tensor& tensor) {
  return concat({shape_string(tensor), "/", torch_name(tensor.dtype)});
}

bool is_finite_float32(double value) {
  return std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max());
}

std::string subscript(const Tensor& tensor, std::int64_t position) {
  if (tensor.rank == 0) return "[()]";
  std::array<std::int64_t, kMaxRank> at{};
  for (int d = tensor.rank - 1; d >= 0; --d) {
    const std::int64_t size = std::max<std::int64_t>(tensor.shape[d], 1);
    at[d] = position % size;
    position /= size;
  }
  std::string text = "[";
  for (int d = 0; d < tensor.rank; ++d) text.append(d > 0 ? ", " : "").append(std::to_string(at[d]));
  return text.append("]");
}

std::string number_string(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  constexpr double kExactIntegers = 1e15;
  const bool is_integer = value == std::trunc(value) && std::abs(value) < kExactIntegers;
  if (is_integer) return std::to_string(static_cast<std::int64_t>(value));
  std::array<char, 32> text{};  // a double's shortest decimal takes at most 24 characters
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

Facts wrong_number(std::string expected, std::int64_t got) {
  return {.expected = std::move(expected), .got = std::to_string(got)};
}
Facts wrong_shape(std::string expected, const Tensor& tensor) {
  return {.expected = std::move(expected), .got = shape_string(tensor), .tensor = &tensor};
}

Facts offender_facts(std::string_view name, const Tensor& tensor, const ValueSource::Offender& offender,
                     std::string expected) {
  const std::string position = subscript(tensor, offender.position);
  const std::string value = number_string(offender.value);
  return {.expected = std::move(expected),
          .got = concat({name, position, " = ", value}),
          .tensor = &tensor,
          .fields = {{"position", position}, {"value", value}, {"previous", number_string(offender.previous)}}};
}

bool has_shape(const Tensor& tensor, std::span<const std::int64_t> sizes) {
  return std::ranges::equal(tensor.sizes(), sizes);
}

bool last_dim_is_contiguous(const Tensor& tensor) {
  return tensor.rank == 0 || tensor.shape[tensor.rank - 1] <= 1 || tensor.strides[tensor.rank - 1] == 1 ||
         tensor.elements() == 0;
}

bool has_negative_size(const Tensor& tensor) {
  bool negative = false;
  for (int d = 0; d < tensor.rank; ++d) negative |= tensor.shape[d] < 0;
  return negative;
}

bool has_negative_stride(const Tensor& tensor) {
  bool negative = false;
  for (int d = 0; d < tensor.rank; ++d) negative |= tensor.strides[d] < 0;
  return negative;
}

std::optional<std::uint64_t> span_bytes(const Tensor& tensor) {
  std::int64_t elements = 1;  // from the first to one past the last
  bool is_empty = false;
  bool is_endless = false;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] < 0 || tensor.strides[d] < 0) return std::nullopt;
    std::int64_t reach = 0;
    is_empty |= tensor.shape[d] == 0;
    is_endless |= __builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &reach);
    is_endless |= __builtin_add_overflow(elements, reach, &elements);
  }
  if (is_empty) return 0;
  std::int64_t bytes = 0;
  const auto element = static_cast<std::int64_t>(bytes_per_element(tensor.dtype));
  if (is_endless || __builtin_mul_overflow(elements, element, &bytes)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

bool overlap(const Tensor& a, const Tensor& b) {
  // A null address is a tensor described without one.
  if (a.data == nullptr || b.data == nullptr || !(a.device == b.device)) return false;
  const std::optional<std::uint64_t> a_bytes = span_bytes(a);
  const std::optional<std::uint64_t> b_bytes = span_bytes(b);
  if (a_bytes.value_or(0) == 0 || b_bytes.value_or(0) == 0) return false;
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin <= b_begin ? b_begin - a_begin < *a_bytes : a_begin - b_begin < *b_bytes;
}

bool starts_at_multiple(const Tensor& tensor, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % bytes == 0 || span_bytes(tensor) == std::uint64_t{0};
}

bool rows_start_at_multiples(const Tensor& tensor, std::uint64_t bytes) {
  bool aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % bytes == 0;
  for (int d = 0; d + 1 < tensor.rank; ++d) {
    const std::uint64_t step = static_cast<std::uint64_t>(tensor.strides[d]) * bytes_per_element(tensor.dtype);
    aligned &= tensor.shape[d] <= 1 || step % bytes == 0;
  }
  return aligned || span_bytes(tensor) == std::uint64_t{0};
}

}  // namespace sparse_mla::contract
