#include "files/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "files/faults.h"

namespace sparse_mla::files {
namespace fs = std::filesystem;
namespace {

// Unlike any other of this process, and seldom like another process's. Short, since the target's name may be as long as
// a name can be.
std::string temporary_name(const fs::path& folder) {
  static std::atomic<unsigned> counter{0};
  return (folder / (".sparse-mla." + std::to_string(::getpid()) + "." + std::to_string(counter++) + ".tmp")).string();
}

// What a write to `path` must replace: symbolic links are followed, also one whose target is not there yet.
fs::path resolved(const fs::path& path, std::error_code& error) {
  constexpr int kMostLinks = 40;  // as Linux
  fs::path target = fs::weakly_canonical(path, error);
  for (int links = 0; !error && fs::is_symlink(fs::symlink_status(target, error)); ++links) {
    if (links == kMostLinks) error = std::make_error_code(std::errc::too_many_symbolic_link_levels);
    if (!error) target = target.parent_path() / fs::read_symlink(target, error);
    if (!error) target = fs::weakly_canonical(target, error);
  }
  // That nothing is there is no error of a file to be written.
  if (error == std::errc::no_such_file_or_directory) error.clear();
  return target;
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  std::error_code error;
  const fs::path target = resolved(path, error);
  if (error) throw FileError(path, Fault::kCannotWrite, {{"reason", error.message()}});
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) throw FileError(path, Fault::kNotAFile);
  target_ = target.string();
  // A name that is taken is one that a killed process with this one's number has left, as happens in containers.
  constexpr int kMostNames = 1000;
  for (int i = 0; i < kMostNames && temporary_.empty(); ++i) {
    std::string name = temporary_name(target.parent_path());
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST) {
      fail();
    }
  }
  if (temporary_.empty()) fail();
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
