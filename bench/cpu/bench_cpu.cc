// Times the CPU backend on named problems and prints one JSON object: seconds, GFLOP/s, the fraction of the float32
// multiply-add peak measured in the same run, the memory that a call adds, and the error of the first rows.
//
//   bench_cpu [--threads N] [--repeats N] [--target NAME] [PROBLEM...]
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "cpu/cpu.h"
#include "fma_peak.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/problem_maker.h"

namespace sparse_mla::bench {
namespace {

using nlohmann::json;

struct Options {
  int threads = usable_cores();
  int repeats = 7;
  std::string target;
  std::vector<std::string> problems;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw std::invalid_argument(word + " needs a value");
      return argv[i + 1];
    };
    if (word == "--threads") {
      options.threads = std::stoi(value());
      ++i;
    } else if (word == "--repeats") {
      options.repeats = std::stoi(value());
      ++i;
    } else if (word == "--target") {
      options.target = value();
      ++i;
    } else {
      options.problems.push_back(word);
    }
  }
  if (options.problems.empty()) {
    options.problems = {"prefill:sq64:skv8192:hq128:dqk576:topk2048",
                        "decode:n32:pages65536:h128:d512:tokens640:fp8"};
  }
  return options;
}

// Kilobytes of a field of /proc/self/status; 0 where there is none.
long status_kilobytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    long kilobytes = 0;
    if (word == field + ":" && status >> kilobytes) return kilobytes;
  }
  return 0;
}

// Peak resident memory that `call` adds; the high-water mark starts anew before it.
long peak_extra_bytes(const std::function<void()>& call) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const long before = status_kilobytes("VmRSS");
  call();
  return (status_kilobytes("VmHWM") - before) * 1024;
}

// CPU time of all threads of this process: what a busy machine leaves alone.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

json timed(const std::function<void()>& call, double flops, int repeats, double peak) {
  const long extra = peak_extra_bytes(call);
  std::vector<double> seconds, cpu;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = cpu_seconds();
    call();
    cpu.push_back(cpu_seconds() - cpu_start);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return {{"seconds_best", seconds.front()},
          {"seconds_median", seconds[seconds.size() / 2]},
          {"cpu_seconds_best", *std::min_element(cpu.begin(), cpu.end())},
          {"gflops", flops / seconds.front() / 1e9},
          {"fraction_of_float32_fma_peak", flops / seconds.front() / peak},
          {"peak_extra_bytes", extra}};
}

// The error of the first two rows, from the outputs of the timed calls.
json error_of(const test::Outputs& got, const std::vector<double>& out, const std::vector<double>& max,
              const std::vector<double>& lse, DType out_dtype) {
  test::Outputs rows = got;
  rows.out.resize(out.size());
  rows.lse.resize(lse.size());
  rows.max_logits.resize(max.size());
  const test::Comparison result =
      test::compare(rows, out, max, lse, test::float32_tolerance(out_dtype, static_cast<std::int64_t>(out.size())));
  return {{"out_relative_norm", result.out_error}, {"lse_absolute", result.lse_error}, {"ok", result.ok()}};
}

json bench(const std::string& text, const Options& options, double peak) {
  const ProblemName name = parse_problem_name(text);
  const double pairs = static_cast<double>(name.rows) * name.heads * static_cast<double>(name.topk);
  const double flops = 2.0 * pairs * (name.d + name.value_width());
  json record;
  if (name.entry_point == ProblemName::EntryPoint::kPrefill) {
    test::MadePrefill made(name);
    const PrefillProblem problem = made.problem();
    record = timed([&] { cpu::prefill(problem, options.threads); }, flops, options.repeats, peak);
    const auto ref = reference::prefill(problem, 0, std::min<std::int64_t>(2, name.rows));
    record["error"] = error_of(test::outputs_of(problem), ref.out, ref.max_logits, ref.lse, DType::kBFloat16);
  } else {
    test::MadeDecode made(name);
    const DecodeProblem problem = made.problem();
    record = timed([&] { cpu::decode(problem, options.threads); }, flops, options.repeats, peak);
    const auto ref = reference::decode(problem, 0, std::min<std::int64_t>(2, name.rows));
    record["error"] = error_of(test::outputs_of(problem), ref.out, {}, ref.lse, problem.q_dtype);
  }
  record["problem"] = to_string(name);
  record["flops"] = flops;
  return record;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  cpu::force_simd_target(options.target);
  const double peak = float32_fma_peak(options.threads, 0.5);
  json report = {{"simd_target", cpu::simd_target()},
                 {"threads", options.threads},
                 {"float32_fma_peak_gflops", peak / 1e9},
                 {"results", json::array()}};
  for (const std::string& text : options.problems) report["results"].push_back(bench(text, options, peak));
  std::cout << report.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace sparse_mla::bench

int main(int argc, char** argv) {
  try {
    return sparse_mla::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "bench_cpu: " << error.what() << '\n';
    return 1;
  }
}
