// A progress bar on standard error: on a terminal only, and only once the work has taken more than a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sparse_mla::cli {

class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();  // clears the bar's line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Whether anybody would see it; work need not be cut into steps otherwise.
  bool visible() const { return on_terminal_; }
  void set(std::int64_t done);

 private:
  std::string label_;
  std::int64_t total_;
  bool on_terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace sparse_mla::cli
