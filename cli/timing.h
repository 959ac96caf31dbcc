// Wall-clock times of repeated runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace sparse_mla::cli {

struct Times {
  double median_ms = 0;
  double least_ms = 0;
  double most_ms = 0;
  int runs = 0;
};

// One run to warm up, then `repeats` timed ones.
template <class Work>
Times time_runs(int repeats, const Work& work) {
  work();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back(), repeats};
}

}  // namespace sparse_mla::cli
