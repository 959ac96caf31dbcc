// How much memory a piece of work takes beyond what was there before it.
#pragma once

#include <cstdint>
#include <optional>

namespace sparse_mla::cli {

class PeakMemory {
 public:
  // Starts watching. Linux only; elsewhere extra_bytes() has no answer.
  PeakMemory();
  // The largest resident size since, less the resident size at the start.
  std::optional<std::int64_t> extra_bytes() const;

 private:
  std::optional<std::int64_t> before_;
};

}  // namespace sparse_mla::cli
