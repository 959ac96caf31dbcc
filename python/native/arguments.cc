#include "arguments.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "sparse_mla/dlpack.h"

namespace sparse_mla::python {
namespace {

namespace ffi = tvm::ffi;

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
  throw std::invalid_argument(std::string(name) + ": " + why);
}

const DLTensor* dl_tensor(const TVMFFIAny& value) noexcept {
  if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
  return nullptr;
}

using Sequence = ffi::Array<ffi::Any>;

// The sequence, where its first element is `marker`.
std::optional<Sequence> marked(const TVMFFIAny& value, std::string_view marker) {
  if (value.type_index != kTVMFFIArray) return std::nullopt;
  auto sequence = ffi::AnyView::CopyFromTVMFFIAny(value).try_cast<Sequence>();
  if (!sequence || sequence->size() == 0) return std::nullopt;
  const auto first = (*sequence)[0].try_cast<ffi::String>();
  if (!first || std::string_view(first->data(), first->size()) != marker) return std::nullopt;
  return sequence;
}

std::string text(const Sequence& sequence, std::size_t index) { return sequence[index].cast<ffi::String>(); }

std::vector<std::int64_t> numbers(const ffi::Any& value) {
  std::vector<std::int64_t> all;
  for (const ffi::Any& number : value.cast<Sequence>()) all.push_back(number.cast<std::int64_t>());
  return all;
}

Tensor described(const Sequence& description) {
  constexpr std::size_t kFields = 6;
  if (description.size() != kFields) throw std::invalid_argument("a tensor description has 6 fields");
  const std::vector<std::int64_t> shape = numbers(description[3]);
  const std::vector<std::int64_t> strides = numbers(description[4]);
  void* address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(description[5].cast<std::int64_t>()));
  return Tensor(address, dtype_from_torch_name(text(description, 1)), shape, strides,
                device_from_string(text(description, 2)));
}

std::string type_name(const TVMFFIAny& value) {
  if (const auto other = marked(value, kNotATensor)) return text(*other, 1);
  switch (value.type_index) {
    case kTVMFFINone:
      return "NoneType";
    case kTVMFFIBool:
      return "bool";
    case kTVMFFIInt:
      return "int";
    case kTVMFFIFloat:
      return "float";
    case kTVMFFISmallStr:
    case kTVMFFIStr:
      return "str";
    case kTVMFFIArray:
      return "list";
    default:
      return "object";
  }
}

std::optional<Tensor> maybe_tensor(const TVMFFIAny& value) {
  if (const DLTensor* tensor = dl_tensor(value)) return from_dlpack(*tensor);
  if (const auto description = marked(value, kDescription)) return described(*description);
  return std::nullopt;
}

}  // namespace

std::int64_t Arguments::integer(int index, std::string_view name) const {
  if (index < count_ && values_[index].type_index == kTVMFFIInt) return values_[index].v_int64;
  refuse(name, "expected an int of 64 bits, got " + (index < count_ ? type_name(values_[index]) : "nothing"));
}

double Arguments::real(int index, std::string_view name) const {
  if (index < count_ && values_[index].type_index == kTVMFFIFloat) return values_[index].v_float64;
  return static_cast<double>(integer(index, name));
}

std::string Arguments::text(int index, std::string_view name) const {
  if (index < count_) {
    if (const auto text = ffi::AnyView::CopyFromTVMFFIAny(values_[index]).try_cast<ffi::String>()) return *text;
  }
  refuse(name, "expected a string, got " + (index < count_ ? type_name(values_[index]) : "nothing"));
}

Tensor Arguments::tensor(int index, std::string_view name) const {
  if (index >= count_) refuse(name, "expected a tensor, got nothing");
  try {
    if (std::optional<Tensor> tensor = maybe_tensor(values_[index])) return *tensor;
  } catch (const std::invalid_argument& error) {
    refuse(name, error.what());
  }
  refuse(name, "expected a tensor, got " + type_name(values_[index]));
}

Argument Arguments::argument(int index, std::string_view name) const {
  if (!has(index)) return std::nullopt;
  try {
    if (std::optional<Tensor> tensor = maybe_tensor(values_[index])) return *tensor;
  } catch (const std::invalid_argument& error) {
    refuse(name, error.what());
  }
  return NotATensor{type_name(values_[index])};
}

}  // namespace sparse_mla::python
