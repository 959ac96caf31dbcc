#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "files/atomic_file.h"
#include "files/safetensors.h"

namespace sparse_mla::files {
namespace {

// The data starts at a multiple of this: a page maps at an even larger one.
constexpr std::size_t kDataAlignment = 64;

void require_storable(const std::string& path, const NamedTensor& named) {
  if (!named.tensor.device.is_cpu() || !named.tensor.is_contiguous()) {
    throw std::invalid_argument("write_safetensors: " + named.name + " must be contiguous CPU memory");
  }
  if (safetensors_name(named.tensor.dtype).empty()) {
    throw FileError(path, Fault::kUnstorable,
                    {{"name", in_quotes(named.name)},
                     {"reason", "safetensors has no name for " + std::string(torch_name(named.tensor.dtype))}});
  }
}

// Sizes that keep what follows aligned come first, then wide elements before narrow ones.
bool stored_before(const NamedTensor* a, const NamedTensor* b) {
  const bool a_odd = a->tensor.extent_bytes() % kTensorAlignment != 0;
  const bool b_odd = b->tensor.extent_bytes() % kTensorAlignment != 0;
  if (a_odd != b_odd) return b_odd;
  return bytes_per_element(a->tensor.dtype) > bytes_per_element(b->tensor.dtype);
}

std::string header_of(std::span<const NamedTensor* const> order, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  }
  std::size_t begin = 0;
  for (const NamedTensor* named : order) {
    const std::size_t end = begin + named->tensor.extent_bytes();
    header[named->name] = {{"dtype", safetensors_name(named->tensor.dtype)},
                           {"shape", named->tensor.sizes()},
                           {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.append((kDataAlignment - (8 + text.size()) % kDataAlignment) % kDataAlignment, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors, const Metadata& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& named : tensors) {
    require_storable(path, named);
    order.push_back(&named);
  }
  std::stable_sort(order.begin(), order.end(), stored_before);
  const std::string header = header_of(order, metadata);

  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  AtomicFile file(path);
  file.write(length);
  file.write(std::as_bytes(std::span(header)));
  for (const NamedTensor* named : order) {
    file.write({static_cast<const std::byte*>(named->tensor.data), named->tensor.extent_bytes()});
  }
  file.commit();
}

}  // namespace sparse_mla::files
