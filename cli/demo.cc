#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/case.h"
#include "cli/command.h"
#include "cli/reference_check.h"
#include "cli/runner.h"
#include "cli/table.h"
#include "cli/timing.h"

namespace sparse_mla::cli {
namespace {

struct Row {
  std::string shape;
  double ms;
  Accuracy accuracy;
  Tolerance tolerance;
  bool ok() const { return accuracy.ok(tolerance); }
};

Row run_case(const files::AnyCall& call, Tolerance tolerance, Backend backend) {
  const CallWithOutputs work(call, /*decode_lse=*/true);
  const Times times = time_runs(3, [&work, backend] { run_call(work.call(), backend); });
  return {shape_text(call), times.median_ms, accuracy_of(work.call(), 0, work.rows()), tolerance};
}

Row run_prefill(std::uint64_t seed, Backend backend) {
  const PrefillShape shape = {.s_q = 8, .s_kv = 8192, .h_q = 128, .d_qk = 576, .topk = 2048};
  const PrefillCase made(shape, seed);
  return run_case(made.call(), prefill_tolerance(backend, shape.d_qk, shape.topk), backend);
}

Row run_decode(std::uint64_t seed, Backend backend) {
  const DecodeShape shape = {.n = 8, .h = 128, .d = 512, .pages = 16384, .tokens = 640};
  const DecodeCase made(shape, seed);
  return run_case(made.call(), decode_tolerance(), backend);
}

nlohmann::ordered_json to_json(const Row& row, Backend backend) {
  return {{"backend", backend_name(backend)},
          {"shape", row.shape},
          {"ms", row.ms},
          {"error", row.accuracy.out.relative()},
          {"error_bound", row.tolerance.out},
          {"lse_error", row.accuracy.lse.max_abs()},
          {"lse_error_bound", row.tolerance.lse},
          {"verdict", row.ok() ? "ok" : "off"}};
}

class Demo final : public Command {
 public:
  explicit Demo(CLI::App& app) : Command(app) {
    app.add_flag("--json", json_, "print JSON");
    add_seed_option(app, seed_, "of the two calls");
    add_backend_option(app, backend_);
  }

  int run() override {
    const Backend backend = backend_to_run(backend_);
    bool ok = true;
    Table table({"backend", "shape", "ms", "error", "lse error", "verdict"});
    nlohmann::ordered_json cases = nlohmann::ordered_json::array();
    for (const auto run_one : {run_prefill, run_decode}) {
      const Row row = run_one(seed_, backend);
      ok = ok && row.ok();
      table.add({std::string(backend_name(backend)), row.shape, number(row.ms), number(row.accuracy.out.relative()),
                 number(row.accuracy.lse.max_abs()), row.ok() ? "ok" : "off"});
      cases.push_back(to_json(row, backend));
    }
    if (json_) {
      const nlohmann::ordered_json all = {{"ok", ok}, {"seed", seed_}, {"cases", cases}};
      std::cout << all.dump(2) << '\n';
    } else {
      std::cout << table << "error: ||out - reference|| / ||reference||, lse error: largest |lse - reference|, both"
                << " against float64 on the same values\n";
    }
    return ok ? 0 : kBroken;
  }

 private:
  bool json_ = false;
  std::uint64_t seed_ = 1;
  std::string backend_ = "auto";
};

}  // namespace

std::unique_ptr<Command> make_demo(CLI::App& root) {
  return std::make_unique<Demo>(*root.add_subcommand("demo", "run two small calls and hold them against float64"));
}

}  // namespace sparse_mla::cli
