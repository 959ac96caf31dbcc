// A file that appears whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace sparse_mla::files {

// Writes to a temporary name in the target's folder; commit() renames it to the target. Without a commit the temporary
// file is removed and the target stays as it is. A target that is a symbolic link is followed. Throws FileError.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail() const;

  std::string path_;       // as the caller gave it, for messages
  std::string target_;
  std::string temporary_;  // empty once there is nothing to remove
  int fd_ = -1;
};

// Throws the FileError that writing to `path` would meet at once: a missing folder, no permission, a target that is no
// regular file. Leaves nothing behind.
void require_writable(const std::string& path);

}  // namespace sparse_mla::files
