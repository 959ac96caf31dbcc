// Any bytes as a safetensors file: they are read or refused with a FileError, and whatever was read can be taken for a
// captured call, a result, and checked.
#include <cstddef>
#include <cstdint>
#include <span>

#include "files/captured_call.h"
#include "sparse_mla/contract.h"

namespace {

using namespace sparse_mla;

// Touches every byte that a view claims.
unsigned sum_of_bytes(const Tensor& tensor) {
  unsigned sum = 0;
  const auto* bytes = tensor.as<const unsigned char>();
  for (std::size_t i = 0; i < tensor.extent_bytes(); ++i) sum += bytes[i];
  return sum;
}

void read(std::span<const std::byte> bytes) {
  files::SafetensorsFile file = files::SafetensorsFile::from_bytes(bytes, "fuzz");
  volatile unsigned sink = 0;
  for (const files::NamedTensor& named : file.tensors()) sink = sink + sum_of_bytes(named.tensor);
  const files::CapturedCall captured = files::captured_call(std::move(file));
  for (const bool contract : {true, false}) {
    const CheckOptions rules = {.contract = contract, .device_rules = false, .values = true};
    std::visit([&rules](const auto& call) { check(call, rules); }, captured.call);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    read(std::as_bytes(std::span(data, size)));
  } catch (const sparse_mla::files::FileError&) {
  }
  return 0;
}
