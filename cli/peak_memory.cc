#include "cli/peak_memory.h"

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace sparse_mla::cli {
namespace {

// A line "VmHWM:     1234 kB" of /proc/self/status.
std::optional<std::int64_t> status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(field)) continue;
    std::int64_t kibibytes = 0;
    if (std::istringstream(line.substr(field.size() + 1)) >> kibibytes) return kibibytes * 1024;
  }
  return std::nullopt;
}

}  // namespace

PeakMemory::PeakMemory() {
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;  // the high-water mark becomes the present size
  if (reset) before_ = status_bytes("VmRSS");
}

std::optional<std::int64_t> PeakMemory::extra_bytes() const {
  const std::optional<std::int64_t> peak = status_bytes("VmHWM");
  if (!before_ || !peak) return std::nullopt;
  return *peak - *before_;
}

}  // namespace sparse_mla::cli
