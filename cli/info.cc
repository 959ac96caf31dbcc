#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "cli/command.h"
#include "cli/table.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "files/faults.h"

namespace sparse_mla::cli {
namespace {

// What Linux calls the processor; empty where it does not say.
std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return {};
}

nlohmann::ordered_json to_json(const cuda::DeviceInfo& device) {
  return {{"index", device.index},
          {"name", device.name},
          {"compute_capability", std::to_string(device.major) + "." + std::to_string(device.minor)},
          {"multiprocessors", device.multiprocessors},
          {"l2_bytes", device.l2_bytes},
          {"memory_bytes", device.memory_bytes}};
}

nlohmann::ordered_json gather() {
  const std::string reason = cuda::unavailable_reason();
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const cuda::DeviceInfo& device : cuda::devices()) devices.push_back(to_json(device));
  return {{"version", SPARSE_MLA_VERSION},
          {"best_backend", backend_name(best_backend())},
          {"cpu",
           {{"model", cpu_model()},
            {"threads", usable_cores()},
            {"simd_target", cpu::simd_target()},
            {"simd_targets", cpu::simd_targets()}}},
          {"cuda",
           {{"compiled_in", cuda::compiled_in()},
            {"available", reason.empty()},
            {"unavailable_reason", reason},
            {"devices", devices}}}};
}

void print_text(const nlohmann::ordered_json& info) {
  const auto& cpu = info.at("cpu");
  const auto& cuda = info.at("cuda");
  const std::string reason = cuda.at("unavailable_reason").get<std::string>();
  Table table({"version", info.at("version").get<std::string>()});
  table.add({"best backend", info.at("best_backend").get<std::string>()});
  table.add({"cpu", cpu.at("model").get<std::string>() + ", " + cpu.at("threads").dump() + " threads"});
  table.add({"cpu SIMD", cpu.at("simd_target").get<std::string>() + " (of " +
                             files::listed(cpu.at("simd_targets").get<std::vector<std::string>>()) + ")"});
  table.add({"cuda", reason.empty() ? "available" : "unavailable: " + reason});
  for (const auto& device : cuda.at("devices")) {
    table.add({"cuda:" + device.at("index").dump(),
               device.at("name").get<std::string>() + ", sm_" + device.at("compute_capability").get<std::string>() +
                   ", " + device.at("multiprocessors").dump() + " multiprocessors, " +
                   std::to_string(device.at("memory_bytes").get<std::size_t>() >> 30) + " GiB"});
  }
  std::cout << table;
}

class Info final : public Command {
 public:
  explicit Info(CLI::App& app) : Command(app) { app.add_flag("--json", json_, "print JSON"); }

  int run() override {
    const nlohmann::ordered_json info = gather();
    if (json_) {
      std::cout << info.dump(2) << '\n';
    } else {
      print_text(info);
    }
    return 0;
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_info(CLI::App& root) {
  return std::make_unique<Info>(*root.add_subcommand("info", "version, backends, CPU features, devices"));
}

}  // namespace sparse_mla::cli
