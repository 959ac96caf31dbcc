#include "cli/fma_peak.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <vector>

// Highway compiles the rest of this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/fma_peak.cc"
#include <hwy/foreach_target.h>
// The order matters to Highway.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sparse_mla::cli {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Work {
  double operations;
  float sink;  // keeps the arithmetic from being left out
};

// Ten chains hide the latency of four cycles of two units a cycle.
Work multiply_add(std::int64_t turns) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f);
  const auto term = hn::Set(d, 0.001f);
  auto a = hn::Set(d, 0.1f), b = hn::Set(d, 0.2f), c = hn::Set(d, 0.3f), e = hn::Set(d, 0.4f), f = hn::Set(d, 0.5f);
  auto g = hn::Set(d, 0.6f), h = hn::Set(d, 0.7f), i = hn::Set(d, 0.8f), j = hn::Set(d, 0.9f), k = hn::Set(d, 1.0f);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    a = hn::MulAdd(a, factor, term);
    b = hn::MulAdd(b, factor, term);
    c = hn::MulAdd(c, factor, term);
    e = hn::MulAdd(e, factor, term);
    f = hn::MulAdd(f, factor, term);
    g = hn::MulAdd(g, factor, term);
    h = hn::MulAdd(h, factor, term);
    i = hn::MulAdd(i, factor, term);
    j = hn::MulAdd(j, factor, term);
    k = hn::MulAdd(k, factor, term);
  }
  const auto left = hn::Add(hn::Add(a, b), hn::Add(c, hn::Add(e, f)));
  const auto right = hn::Add(hn::Add(g, h), hn::Add(i, hn::Add(j, k)));
  const double operations = static_cast<double>(turns) * 10 * 2 * static_cast<double>(hn::Lanes(d));
  return {operations, hn::GetLane(hn::Add(left, right))};
}

double gflops_of_one_thread() {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kTurns = 1'000'000;
  const Clock::time_point start = Clock::now();
  double operations = 0;
  volatile float sink = 0;
  double seconds = 0;
  while (seconds < 0.2) {
    const Work work = multiply_add(kTurns);
    operations += work.operations;
    sink = work.sink;
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  static_cast<void>(sink);
  return operations / seconds * 1e-9;
}

}  // namespace HWY_NAMESPACE
}  // namespace sparse_mla::cli
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparse_mla::cli {

HWY_EXPORT(gflops_of_one_thread);

double fma_peak_gflops(int threads) {
  std::vector<std::future<double>> parts;
  for (int i = 0; i < threads; ++i) {
    parts.push_back(std::async(std::launch::async, [] { return HWY_DYNAMIC_DISPATCH(gflops_of_one_thread)(); }));
  }
  double total = 0;
  for (std::future<double>& part : parts) total += part.get();
  return total;
}

}  // namespace sparse_mla::cli
#endif
