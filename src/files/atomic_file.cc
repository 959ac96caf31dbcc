#include "files/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "files/faults.h"

namespace sparse_mla::files {
namespace fs = std::filesystem;
namespace {

// Unique within this process and among processes.
std::string temporary_name(const fs::path& target) {
  static std::atomic<unsigned> counter{0};
  const std::string suffix = "." + std::to_string(::getpid()) + "." + std::to_string(counter++) + ".tmp";
  return (target.parent_path() / ("." + target.filename().string() + suffix)).string();
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  if (error) throw FileError(path, Fault::kCannotWrite, {{"reason", error.message()}});
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) throw FileError(path, Fault::kNotAFile);
  target_ = target.string();
  const std::string name = temporary_name(target);
  fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail();
  temporary_ = name;
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail() const {
  throw FileError(path_, Fault::kCannotWrite, {{"reason", std::generic_category().message(errno)}});
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;  // Linux writes at most 2 GiB at once
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), std::min(bytes.size(), kPiece));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail();
  temporary_.clear();
}

void require_writable(const std::string& path) { const AtomicFile probe(path); }

}  // namespace sparse_mla::files
