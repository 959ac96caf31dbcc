// Non-owning tensor views: what every entry point of the library takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sparse_mla {

enum class DType : std::uint8_t {
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kBFloat16,
  kFloat16,
  kFloat32,
  kFloat64,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
  kUInt16,
  kUInt32,
  kUInt64,
  kComplex32,
  kComplex64,
  kComplex128,
};
inline constexpr int kDTypeCount = 21;

// The name torch prints: "torch.float8_e4m3fn", "torch.bfloat16", ...
std::string_view torch_name(DType dtype) noexcept;
// The inverse of torch_name; the prefix "torch." may be left out. Throws std::invalid_argument.
DType dtype_from_torch_name(std::string_view name);
std::size_t bytes_per_element(DType dtype) noexcept;

struct Device {
  enum class Kind : std::uint8_t { kCpu, kCuda, kMeta };
  Kind kind = Kind::kCpu;
  int index = 0;  // always 0 for a CPU device

  static constexpr Device cpu() noexcept { return {Kind::kCpu, 0}; }
  static constexpr Device cuda(int index = 0) noexcept { return {Kind::kCuda, index}; }
  constexpr bool is_cuda() const noexcept { return kind == Kind::kCuda; }
  constexpr bool is_cpu() const noexcept { return kind == Kind::kCpu; }
  friend constexpr bool operator==(Device, Device) noexcept = default;
};
// "cuda:0", "cpu", "meta".
std::string to_string(Device device);
// The inverse of to_string; "cuda" means "cuda:0". Throws std::invalid_argument.
Device device_from_string(std::string_view text);

// Ranks that a view can have. Only 1 to 3 are ever accepted; more are held so that they can be refused by name.
inline constexpr int kMaxRank = 8;

// A view of memory that somebody else owns. Shape and strides count elements, as torch does.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  Tensor() = default;
  // A row-major contiguous view. Throws std::invalid_argument past kMaxRank dimensions.
  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape, Device device = Device::cpu());
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = Device::cpu())
      : Tensor(data, dtype, std::span<const std::int64_t>(shape.begin(), shape.size()), device) {}
  // A strided view. Throws std::invalid_argument where shape and strides differ in length.
  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
         Device device);

  std::span<const std::int64_t> sizes() const noexcept { return {shape.data(), static_cast<std::size_t>(rank)}; }
  std::int64_t elements() const noexcept;
  // torch's rule: a dimension of one element may have any stride, and a view with no elements is contiguous.
  bool is_contiguous() const noexcept;
  // Bytes from the first to one past the last element that the view can reach (0 when it has none).
  std::size_t extent_bytes() const noexcept;

  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data);
  }
};

// A Python tuple: "()", "(5,)", "(2, 64, 576)".
std::string shape_string(std::span<const std::int64_t> shape);
inline std::string shape_string(const Tensor& tensor) { return shape_string(tensor.sizes()); }

}  // namespace sparse_mla
