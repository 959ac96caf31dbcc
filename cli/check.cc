#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/command.h"
#include "files/captured_call.h"
#include "files/description.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::cli {
namespace {

struct Report {
  EntryPoint entry_point;
  std::vector<Violation> violations;
};

Report report_on(const files::AnyCall& call, const CheckOptions& rules) {
  const auto entry_point = std::holds_alternative<PrefillCall>(call) ? EntryPoint::kPrefill : EntryPoint::kDecode;
  return {entry_point, std::visit([&rules](const auto& one) { return check(one, rules); }, call)};
}

// A captured call is data that has left its device, so device rules are left aside; all its values can be read. A
// description says where its tensors are and may give some values.
Report report_on_file(const std::string& path, bool general) {
  const files::MappedFile file(path);
  if (files::looks_like_description(file.bytes())) {
    const files::DescribedCall described = files::read_description(path);
    return report_on(described.call,
                     {.contract = !general, .device_rules = true, .values = true, .value_source = &described.values});
  }
  const files::CapturedCall captured = files::read_captured_call(path);
  return report_on(captured.call, {.contract = !general, .device_rules = false, .values = true});
}

void print_json(const Report& report) {
  nlohmann::ordered_json violations = nlohmann::ordered_json::array();
  for (const Violation& violation : report.violations) {
    violations.push_back({{"slug", violation.slug},
                          {"message", violation.message},
                          {"error_class", error_class_name(violation.error_class)},
                          {"fix", violation.fix}});
  }
  const nlohmann::ordered_json all = {{"ok", report.violations.empty()},
                                      {"entry_point", entry_point_name(report.entry_point)},
                                      {"violations", violations}};
  std::cout << all.dump(2) << '\n';
}

void print_text(const std::string& path, const Report& report) {
  const std::size_t count = report.violations.size();
  std::cout << path << ": " << entry_point_name(report.entry_point) << ", "
            << (count == 0 ? "no broken rule" : count == 1 ? "1 broken rule" : std::to_string(count) + " broken rules")
            << '\n';
  for (const Violation& violation : report.violations) {
    std::cout << '\n' << error_class_name(violation.error_class) << ": " << violation.message << '\n'
              << "  rule      " << violation.slug << '\n'
              << "  expected  " << violation.expected << '\n'
              << "  got       " << violation.got << '\n'
              << "  fix       " << violation.fix << '\n';
  }
}

class Check final : public Command {
 public:
  explicit Check(CLI::App& app) : Command(app) {
    app.add_option("FILE", path_, "captured call (.safetensors), or a JSON description of one")->required();
    app.add_flag("--json", json_, "print JSON");
    app.add_flag("--general", general_, "the general API's conditions instead of the entry point's contract");
  }

  int run() override {
    const Report report = report_on_file(path_, general_);
    if (json_) {
      print_json(report);
    } else {
      print_text(path_, report);
    }
    return report.violations.empty() ? 0 : kBroken;
  }

 private:
  std::string path_;
  bool json_ = false, general_ = false;
};

}  // namespace

std::unique_ptr<Command> make_check(CLI::App& root) {
  return std::make_unique<Check>(*root.add_subcommand("check", "name every rule that a call breaks"));
}

}  // namespace sparse_mla::cli
