#include "fma_peak.h"

#include <atomic>
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

// FLOPs done until `end`.
double work_until(std::chrono::steady_clock::time_point end) {
  double flops = 0;
  volatile float sink = 0;
  while (std::chrono::steady_clock::now() < end) {
    sink = multiply_add(sink * 0 + 1);
    flops += kFlopsPerCall;
  }
  return flops;
}

}  // namespace

double float32_fma_peak(int threads, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  const auto end = start + std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  std::vector<double> flops(threads, 0.0);
  {
    std::vector<std::jthread> workers;
    for (double& mine : flops) workers.emplace_back([&mine, end] { mine = work_until(end); });
  }
  return std::accumulate(flops.begin(), flops.end(), 0.0) / seconds;
}

}  // namespace sparse_mla::bench
