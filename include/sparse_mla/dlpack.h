// Tensor views to and from DLPack's DLTensor. Compiles with DLPack 0.6 and later: float8 type codes are DLPack 1.1's
// numbers, which older headers have no names for.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "sparse_mla/tensor.h"

namespace sparse_mla {
namespace dlpack {

struct TypeCode {
  DType dtype;
  std::uint8_t code;
  std::uint8_t bits;
};

// DLDataTypeCode numbers.
inline constexpr std::array<TypeCode, kDTypeCount> kTypeCodes{{
    {DType::kFloat8E4M3FN, 10, 8},
    {DType::kFloat8E4M3FNUZ, 11, 8},
    {DType::kFloat8E5M2, 12, 8},
    {DType::kFloat8E5M2FNUZ, 13, 8},
    {DType::kFloat8E8M0FNU, 14, 8},
    {DType::kBFloat16, 4, 16},
    {DType::kFloat16, 2, 16},
    {DType::kFloat32, 2, 32},
    {DType::kFloat64, 2, 64},
    {DType::kUInt8, 1, 8},
    {DType::kInt8, 0, 8},
    {DType::kInt16, 0, 16},
    {DType::kInt32, 0, 32},
    {DType::kInt64, 0, 64},
    {DType::kBool, 6, 8},
    {DType::kUInt16, 1, 16},
    {DType::kUInt32, 1, 32},
    {DType::kUInt64, 1, 64},
    {DType::kComplex32, 5, 32},
    {DType::kComplex64, 5, 64},
    {DType::kComplex128, 5, 128},
}};

inline DType dtype_from(const DLDataType& type) {
  if (type.lanes != 1) {
    throw std::invalid_argument("a DLPack tensor must have 1 lane a value, got " + std::to_string(type.lanes));
  }
  for (const TypeCode& known : kTypeCodes) {
    if (known.code == type.code && known.bits == type.bits) return known.dtype;
  }
  throw std::invalid_argument("unknown DLPack dtype: code " + std::to_string(type.code) + ", " +
                              std::to_string(type.bits) + " bits");
}

inline DLDataType dtype_to(DType dtype) {
  for (const TypeCode& known : kTypeCodes) {
    if (known.dtype == dtype) return {known.code, known.bits, 1};
  }
  throw std::invalid_argument("no DLPack dtype for " + std::string(torch_name(dtype)));
}

// Pinned host memory is read by the CPU; managed memory belongs to the device that it names. DLDeviceType numbers.
inline Device device_from(std::int32_t type, std::int32_t index) {
  constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;
  if (type == kCpu || type == kCudaHost) return Device::cpu();
  if ((type == kCuda || type == kCudaManaged) && index >= 0) return Device::cuda(index);
  throw std::invalid_argument("unknown DLPack device: type " + std::to_string(type) + ", index " +
                              std::to_string(index));
}

}  // namespace dlpack

// A view of the same memory; shape and strides are copied. Throws std::invalid_argument for a dtype, device, rank or
// lane count that a Tensor cannot have.
inline Tensor from_dlpack(const DLTensor& source) {
  if (source.ndim < 0 || source.ndim > kMaxRank) {
    throw std::invalid_argument("a tensor view has at most " + std::to_string(kMaxRank) + " dimensions, got " +
                                std::to_string(source.ndim));
  }
  if (source.ndim > 0 && source.shape == nullptr) throw std::invalid_argument("a DLPack tensor without a shape");
  const DType dtype = dlpack::dtype_from(source.dtype);
  const Device device = dlpack::device_from(static_cast<std::int32_t>(source.device.device_type),
                                            static_cast<std::int32_t>(source.device.device_id));
  void* data = source.data == nullptr ? nullptr : static_cast<char*>(source.data) + source.byte_offset;
  const std::span<const std::int64_t> shape(source.shape, static_cast<std::size_t>(source.ndim));
  if (source.strides == nullptr) return Tensor(data, dtype, shape, device);
  return Tensor(data, dtype, shape, std::span<const std::int64_t>(source.strides, shape.size()), device);
}

// A DLTensor that points into `source` for its shape and strides, so `source` must outlive it. Throws
// std::invalid_argument for the meta device, which has no memory to share.
inline DLTensor to_dlpack(Tensor& source) {
  if (source.device.kind == Device::Kind::kMeta) throw std::invalid_argument("a meta tensor has no DLPack device");
  DLTensor target{};
  target.data = source.data;
  target.device.device_type = static_cast<DLDeviceType>(source.device.is_cuda() ? 2 : 1);
  target.device.device_id = source.device.index;
  target.ndim = source.rank;
  target.dtype = dlpack::dtype_to(source.dtype);
  target.shape = source.shape.data();
  target.strides = source.strides.data();
  target.byte_offset = 0;
  return target;
}
DLTensor to_dlpack(Tensor&& source) = delete;

}  // namespace sparse_mla
