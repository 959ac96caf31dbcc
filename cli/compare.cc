#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/command.h"
#include "cli/difference.h"
#include "cli/table.h"
#include "files/captured_call.h"

namespace sparse_mla::cli {
namespace {

Difference difference(const files::NamedTensor& got, const files::NamedTensor& expected) {
  Difference total;
  for (std::int64_t i = 0; i < got.tensor.elements(); ++i) {
    total.add(value_at(got.tensor, i, got.name), value_at(expected.tensor, i, expected.name));
  }
  return total;
}

const files::NamedTensor& counterpart(const files::NamedTensor& named, const files::SafetensorsFile& file) {
  for (const files::NamedTensor& other : file.tensors()) {
    if (other.name != named.name) continue;
    if (!std::ranges::equal(other.tensor.sizes(), named.tensor.sizes())) {
      throw std::runtime_error(file.path() + ": " + named.name + " has shape " + shape_string(other.tensor) +
                               ", the other file's has " + shape_string(named.tensor));
    }
    return other;
  }
  throw std::runtime_error(file.path() + ": lacks the tensor " + named.name + "; found " + files::listed(file.names()));
}

// CLI11's own NonNegativeNumber answers with the largest double, written out.
std::string error_unless_tolerance(const std::string& text) {
  double value = -1;
  if (!CLI::detail::lexical_cast(text, value) || !(value >= 0)) return "must be a number of at least 0, got " + text;
  return {};
}

class Compare final : public Command {
 public:
  explicit Compare(CLI::App& app) : Command(app) {
    app.add_option("A", a_, "result file (.safetensors)")->required();
    app.add_option("B", b_, "result file that A is held against")->required();
    app.add_option("--tol", tolerance_, "largest relative error of a tensor, ||A - B|| / ||B||")
        ->check(error_unless_tolerance)
        ->capture_default_str();
    app.add_flag("--json", json_, "print JSON");
  }

  int run() override {
    const files::SafetensorsFile a = files::read_result(a_);
    const files::SafetensorsFile b = files::read_result(b_);
    for (const files::NamedTensor& named : b.tensors()) counterpart(named, a);
    Table table({"tensor", "relative", "max abs", "cosine", "NaN/Inf off", "verdict"});
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    bool all_near = true;
    for (const files::NamedTensor& named : a.tensors()) {
      const Difference d = difference(named, counterpart(named, b));
      const bool near = d.special_mismatches() == 0 && d.relative() <= tolerance_;
      all_near = all_near && near;
      table.add({named.name, number(d.relative()), number(d.max_abs()), number(d.cosine(), 8),
                 std::to_string(d.special_mismatches()), near ? "ok" : "off"});
      tensors.push_back({{"name", named.name},
                         {"relative", d.relative()},
                         {"max_abs", d.max_abs()},
                         {"cosine", d.cosine()},
                         {"special_mismatches", d.special_mismatches()},
                         {"ok", near}});
    }
    if (json_) {
      const nlohmann::ordered_json all = {{"ok", all_near}, {"tolerance", tolerance_}, {"tensors", tensors}};
      std::cout << all.dump(2) << '\n';
    } else {
      std::cout << table;
    }
    return all_near ? 0 : kBroken;
  }

 private:
  std::string a_, b_;
  double tolerance_ = 3e-3;  // contract part C: the CPU backend, and decode
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_compare(CLI::App& root) {
  return std::make_unique<Compare>(*root.add_subcommand("compare", "error between two result files"));
}

}  // namespace sparse_mla::cli
