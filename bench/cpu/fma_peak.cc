#include "fma_peak.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace sparse_mla::bench {
namespace {

using Vector = float __attribute__((vector_size(64)));
constexpr int kSums = 12;      // enough independent chains to hide the latency of two units
constexpr int kTurns = 20000;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2,fma", "default")))
#endif
float multiply_add(float start) {
  Vector sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Vector{} + start + static_cast<float>(i);
  const Vector factor = Vector{} + (0.999f + 1e-7f * start);
  const Vector term = Vector{} + start;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factor + term;
  }
  Vector total{};
  for (const Vector& sum : sums) total += sum;
  return total[0] + total[15];
}

constexpr double kFlopsPerCall = 2.0 * kTurns * kSums * 16;

// The best rate of any stretch of about 50 microseconds until `end`: what the core does when nobody disturbs it.
double best_rate_until(std::chrono::steady_clock::time_point end) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  volatile float sink = 0;
  for (auto now = Clock::now(); now < end;) {
    const auto start = now;
    sink = multiply_add(sink * 0 + 1);
    now = Clock::now();
    best = std::max(best, kFlopsPerCall / std::chrono::duration<double>(now - start).count());
  }
  return best;
}

}  // namespace

double float32_fma_peak(int threads, double seconds) {
  const auto length = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  const auto end = std::chrono::steady_clock::now() + length;
  std::vector<double> rates(threads, 0.0);
  {
    std::vector<std::jthread> workers;
    for (double& mine : rates) workers.emplace_back([&mine, end] { mine = best_rate_until(end); });
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace sparse_mla::bench
