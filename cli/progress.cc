#include "cli/progress.h"

#include <unistd.h>

#include <iostream>

namespace sparse_mla::cli {

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)),
      total_(total),
      on_terminal_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (drawn_) std::cerr << "\r\033[K" << std::flush;
}

void Progress::set(std::int64_t done) {
  constexpr std::int64_t kWidth = 40;
  if (!on_terminal_ || total_ <= 0 || std::chrono::steady_clock::now() - start_ < std::chrono::seconds(1)) return;
  const auto filled = static_cast<std::size_t>(done * kWidth / total_);
  std::cerr << '\r' << label_ << " [" << std::string(filled, '#') << std::string(kWidth - filled, '.') << "] " << done
            << '/' << total_ << " rows" << std::flush;
  drawn_ = true;
}

}  // namespace sparse_mla::cli
