// safetensors: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes, row-major and without
// holes. The format is that of the safetensors documentation.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/faults.h"
#include "files/mapped_file.h"
#include "sparse_mla/tensor.h"

namespace sparse_mla::files {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

using Metadata = std::map<std::string, std::string, std::less<>>;

// The header is read into memory, so its length is bounded; a header of this size names some 100,000 tensors.
inline constexpr std::size_t kMaxHeaderBytes = 10'000'000;
// Every tensor's data starts at a multiple of this, wherever the file has it.
inline constexpr std::size_t kTensorAlignment = 16;

// A file's tensors, as read-only CPU views of the mapped file (of a copy where the file's bytes are not aligned). The
// views live as long as this object.
class SafetensorsFile {
 public:
  // Throws FileError.
  static SafetensorsFile open(const std::string& path);
  // Reads a file's bytes that the caller keeps alive; `path` is for messages. Throws FileError.
  static SafetensorsFile from_bytes(std::span<const std::byte> bytes, const std::string& path);

  const std::string& path() const noexcept { return path_; }
  // In the order of their bytes.
  std::span<const NamedTensor> tensors() const noexcept { return tensors_; }
  const Tensor* find(std::string_view name) const noexcept;
  std::vector<std::string_view> names() const;
  // The header's __metadata__; empty where it has none.
  const Metadata& metadata() const noexcept { return metadata_; }

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };

  void parse(std::span<const std::byte> bytes);
  const std::byte* aligned(std::span<const std::byte> bytes);

  std::string path_;
  MappedFile file_;
  std::vector<std::vector<Block>> copies_;
  std::vector<NamedTensor> tensors_;
  Metadata metadata_;
};

// Writes contiguous CPU tensors; they are ordered so that a reader finds all but odd-sized ones aligned. The file
// appears whole or not at all. Throws FileError; std::invalid_argument for a strided tensor or one off the CPU.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors, const Metadata& metadata);

// "F8_E4M3"; empty for a dtype that the format has no name for.
std::string_view safetensors_name(DType dtype) noexcept;

}  // namespace sparse_mla::files
