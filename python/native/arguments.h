// Reads what Python passed to a function of the module: tvm-ffi's packed arguments become the call structs of the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tvm/ffi/tvm_ffi.h>

#include "sparse_mla/calls.h"

namespace sparse_mla::python {

// A tensor arrives as one of
//   a DLPack tensor                                              torch, JAX, tvm-ffi
//   ("sparse_mla.Tensor", dtype, device, shape, strides, address)  a description: NumPy, CuPy, tensors without memory
// and where None or something else may stand, as None, or as any other value ("float", "str", ...).
inline constexpr std::string_view kDescription = "sparse_mla.Tensor";
// ("sparse_mla.NotATensor", type_name): something else, under the name that Python has for its type.
inline constexpr std::string_view kNotATensor = "sparse_mla.NotATensor";

class Arguments {
 public:
  Arguments(const TVMFFIAny* values, int count) noexcept : values_(values), count_(count) {}

  bool has(int index) const noexcept { return index < count_ && values_[index].type_index != kTVMFFINone; }
  // Each throws std::invalid_argument that names the argument.
  std::int64_t integer(int index, std::string_view name) const;
  double real(int index, std::string_view name) const;
  std::string text(int index, std::string_view name) const;
  Tensor tensor(int index, std::string_view name) const;
  // None where the caller passed fewer arguments.
  Argument argument(int index, std::string_view name) const;

 private:
  const TVMFFIAny* values_;
  int count_;
};

}  // namespace sparse_mla::python
