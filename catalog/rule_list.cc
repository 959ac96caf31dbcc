// Prints every way a call or a file can be refused, as JSON: what the catalogue must have a record for.
#include <iostream>
#include <nlohmann/json.hpp>

#include "files/faults.h"
#include "sparse_mla/contract.h"

namespace {

using nlohmann::ordered_json;

std::string_view asked_by(sparse_mla::RuleScope scope) {
  switch (scope) {
    case sparse_mla::RuleScope::kContract:
      return "contract";
    case sparse_mla::RuleScope::kGeneral:
      return "general";
    case sparse_mla::RuleScope::kBoth:
      break;
  }
  return "both";
}

std::string_view looks_at(sparse_mla::RuleStage stage) {
  switch (stage) {
    case sparse_mla::RuleStage::kDevice:
      return "device";
    case sparse_mla::RuleStage::kValues:
      return "values";
    case sparse_mla::RuleStage::kRun:
      return "run";
    case sparse_mla::RuleStage::kMetadata:
      break;
  }
  return "metadata";
}

}  // namespace

int main() {
  ordered_json all = ordered_json::array();
  for (const sparse_mla::RuleInfo& rule : sparse_mla::rules()) {
    all.push_back({{"slug", rule.slug},
                   {"contract", rule.contract_id},
                   {"entry_point", sparse_mla::entry_point_name(rule.entry_point)},
                   {"error_class", sparse_mla::error_class_name(rule.error_class)},
                   {"scope", asked_by(rule.scope)},
                   {"stage", looks_at(rule.stage)},
                   {"argument", rule.argument},
                   {"message", rule.message},
                   {"fix", rule.fix}});
  }
  for (const sparse_mla::files::FaultInfo& fault : sparse_mla::files::kFaults) {
    all.push_back({{"slug", fault.slug},
                   {"contract", ""},
                   {"entry_point", "files"},
                   {"error_class", "FileError"},
                   {"scope", "both"},
                   {"stage", "metadata"},
                   {"argument", "file"},
                   {"message", fault.message},
                   {"fix", ""}});
  }
  std::cout << all.dump(1) << '\n';
  return std::cout.flush() ? 0 : 1;
}
