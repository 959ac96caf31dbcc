// A file's bytes, mapped for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace sparse_mla::files {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws FileError: cannot be opened, is not a regular file, cannot be mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace sparse_mla::files
