#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/cores.h"
#include "bench/cpu/fma_peak.h"
#include "cli/bench_cuda.h"
#include "cli/case.h"
#include "cli/command.h"
#include "cli/peak_memory.h"
#include "cli/reference_check.h"
#include "cli/runner.h"
#include "cli/table.h"
#include "cli/timing.h"
#include "cpu/cpu.h"

namespace sparse_mla::cli {
namespace {

// The shapes that `make bench` sets beside PyTorch.
constexpr PrefillShape kPrefill = {.s_q = 64, .s_kv = 8192, .h_q = 128, .d_qk = 576, .topk = 2048};
constexpr DecodeShape kDecode = {.n = 32, .h = 128, .d = 512, .pages = 65536, .tokens = 640};
constexpr std::int64_t kCheckedRows = 2;  // each takes the reference about half a second

// A multiply and an add for each head, token and value: of q . k, and of P V.
double operations(const PrefillShape& s) {
  return 2.0 * static_cast<double>(s.s_q * s.h_q * s.topk) * static_cast<double>(s.d_qk + s.d_v);
}
double operations(const DecodeShape& s) {
  return 2.0 * static_cast<double>(s.n * s.h * s.tokens) * static_cast<double>(s.d + s.d);
}

struct Measured {
  std::string shape;
  double gflop;
  Times times;
  std::optional<std::int64_t> peak_extra_bytes;
  Accuracy accuracy;
  Tolerance tolerance;

  double gflops() const { return gflop / times.median_ms * 1e3; }
  bool ok() const { return accuracy.ok(tolerance); }
};

Measured measure(const files::AnyCall& call, double operations, Tolerance tolerance, int repeats) {
  const CallWithOutputs work(call, /*decode_lse=*/true);
  const PeakMemory memory;
  const Times times = time_runs(repeats, [&work] { run_call(work.call(), Backend::kCpu); });
  const std::optional<std::int64_t> extra = memory.extra_bytes();
  return {shape_text(call), operations * 1e-9, times, extra, accuracy_of(work.call(), 0, kCheckedRows), tolerance};
}

nlohmann::ordered_json to_json(const Measured& m, double peak_gflops) {
  nlohmann::ordered_json json = {{"shape", m.shape},
                                 {"median_ms", m.times.median_ms},
                                 {"least_ms", m.times.least_ms},
                                 {"most_ms", m.times.most_ms},
                                 {"runs", m.times.runs},
                                 {"gflop", m.gflop},
                                 {"gflops", m.gflops()},
                                 {"fraction_of_fma_peak", m.gflops() / peak_gflops},
                                 {"peak_extra_bytes", nullptr},
                                 {"checked_rows", kCheckedRows},
                                 {"error", m.accuracy.out.relative()},
                                 {"lse_error", m.accuracy.lse.max_abs()},
                                 {"verdict", m.ok() ? "ok" : "off"}};
  if (m.peak_extra_bytes) json["peak_extra_bytes"] = *m.peak_extra_bytes;
  return json;
}

std::vector<std::string> to_row(const Measured& m, double peak_gflops) {
  const std::string memory =
      m.peak_extra_bytes ? number(static_cast<double>(*m.peak_extra_bytes) / (1 << 20)) + " MiB" : "?";
  return {m.shape,
          number(m.times.median_ms, 4),
          number(m.times.least_ms, 4) + ".." + number(m.times.most_ms, 4),
          number(m.gflops(), 4),
          number(100 * m.gflops() / peak_gflops, 3) + "%",
          memory,
          number(m.accuracy.out.relative()),
          m.ok() ? "ok" : "off"};
}

class Bench final : public Command {
 public:
  explicit Bench(CLI::App& app) : Command(app) {
    app.add_flag("--json", json_, "print JSON");
    app.add_option("--backend", backend_, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
    app.add_option("--repeats", repeats_, "timed runs of a shape (cpu)")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--entry-point", cuda_.entry_point, "prefill, decode, kv (cuda) or all")
        ->check(CLI::IsMember({"prefill", "decode", "kv", "all"}))
        ->capture_default_str();
    app.add_option("--only", cuda_.only, "shapes whose name contains this (cuda)");
    app.add_option("--samples", cuda_.samples, "timed samples of a shape (cuda)")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_flag("!--no-ceilings", cuda_.ceilings, "leave the card's ceilings out (cuda)");
    app.add_flag("!--no-check", cuda_.check, "leave the comparison with float64 out (cuda)");
  }

  int run() override { return backend_ == "cuda" ? run_cuda() : run_cpu(); }

 private:
  int run_cuda() const {
    const nlohmann::ordered_json record = run_cuda_bench(cuda_);
    if (json_) std::cout << record.dump(2) << '\n';
    return 0;
  }

  int run_cpu() const {
    if (cuda_.entry_point == "kv") throw std::invalid_argument("on the CPU, bench_kv times transfers of cache rows");
    const int threads = usable_cores();
    const double peak = bench::float32_fma_peak(threads, 0.5) * 1e-9;
    const std::vector<Measured> all = measure_all();
    bool ok = true;
    for (const Measured& m : all) ok = ok && m.ok();
    if (json_) {
      print_json(all, threads, peak, ok);
    } else {
      print_text(all, threads, peak);
    }
    return ok ? 0 : kBroken;
  }

  std::vector<Measured> measure_all() const {
    std::vector<Measured> all;
    if (cuda_.entry_point == "prefill" || cuda_.entry_point == "all") {
      const PrefillCase made(kPrefill, 1);
      const Tolerance tolerance = prefill_tolerance(Backend::kCpu, kPrefill.d_qk, kPrefill.topk);
      all.push_back(measure(made.call(), operations(kPrefill), tolerance, repeats_));
    }
    if (cuda_.entry_point == "decode" || cuda_.entry_point == "all") {
      const DecodeCase made(kDecode, 1);
      all.push_back(measure(made.call(), operations(kDecode), decode_tolerance(), repeats_));
    }
    return all;
  }

  static void print_json(const std::vector<Measured>& all, int threads, double peak, bool ok) {
    nlohmann::ordered_json cases = nlohmann::ordered_json::array();
    for (const Measured& m : all) cases.push_back(to_json(m, peak));
    const nlohmann::ordered_json record = {{"ok", ok},
                                           {"backend", "cpu"},
                                           {"threads", threads},
                                           {"simd_target", cpu::simd_target()},
                                           {"fma_peak_gflops", peak},
                                           {"cases", cases}};
    std::cout << record.dump(2) << '\n';
  }

  static void print_text(const std::vector<Measured>& all, int threads, double peak) {
    Table table({"shape", "median ms", "range", "GFLOP/s", "of FMA peak", "extra memory", "error", "verdict"});
    for (const Measured& m : all) table.add(to_row(m, peak));
    std::cout << table << threads << " threads, " << cpu::simd_target() << ", float32 FMA peak " << number(peak, 4)
              << " GFLOP/s; error on " << kCheckedRows << " rows against float64\n";
  }

  bool json_ = false;
  std::string backend_ = "cpu";
  int repeats_ = 5;
  CudaBenchOptions cuda_;
};

}  // namespace

std::unique_ptr<Command> make_bench(CLI::App& root) {
  return std::make_unique<Bench>(*root.add_subcommand("bench", "time prefill and decode"));
}

}  // namespace sparse_mla::cli
