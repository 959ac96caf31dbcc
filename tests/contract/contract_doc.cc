// Writes docs/contract.md from the rule table, so that the page cannot differ from the code.
//   sparse_mla_contract_doc                prints the page
//   sparse_mla_contract_doc --check FILE   exit 1 where FILE is not the page
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "sparse_mla/contract.h"

namespace sparse_mla {
namespace {

constexpr std::string_view kHead = R"(# The contract

<!-- Generated from the rule table by sparse_mla_contract_doc; never edited by hand. -->

What a call must hold, rule by rule, and what is said when it does not. The texts are an interface: they do not change.
`{x}` is filled in at run time; shapes print as Python tuples, dtypes and devices as torch prints them.

- The first broken rule, in the order below, is raised. `check` reports every broken rule in the same order, leaving out
  those that mean nothing because of another one (the width of a tensor of the wrong rank).
- `#` is the rule's number in the entry point's contract. `B8` is what the decode contract leaves to the implementation,
  `KV` a rule of the KV cache (docs/kv-formats.md), `D` a rule of this library's own.
- *Asked by*: `contract` is the entry point that the section names, `general` is the API with fewer conditions
  (`prefill`, `decode`), `both` is both. In a message `{call}` is the name of the function that was called.
- *Looks at*: `metadata` (shape, dtype, strides, addresses) always; `device` unless a captured call is checked without
  its device; `values` where they are asked for (`check_values=True`, `SPARSE_MLA_CHECK=1`, `check`) and on CPU tensors
  always; `run` when the call is about to run.
- A value rule names the first offender. An index outside the pool is "no token", never an error.
)";

std::string_view asked_by(RuleScope scope) {
  switch (scope) {
    case RuleScope::kContract:
      return "contract";
    case RuleScope::kGeneral:
      return "general";
    case RuleScope::kBoth:
      break;
  }
  return "both";
}

std::string_view looks_at(RuleStage stage) {
  switch (stage) {
    case RuleStage::kDevice:
      return "device";
    case RuleStage::kValues:
      return "values";
    case RuleStage::kRun:
      return "run";
    case RuleStage::kMetadata:
      break;
  }
  return "metadata";
}

void write_section(std::ostream& page, EntryPoint entry_point, std::string_view heading, ErrorClass error_class) {
  page << "\n## `" << entry_point_name(entry_point) << "` and " << heading << "\n\nRaises "
       << error_class_name(error_class) << " (C++: `"
       << (error_class == ErrorClass::kValueError ? "InvalidCall`, a std::invalid_argument"
                                                  : "RefusedCall`, a std::runtime_error")
       << ").\n\n| # | slug | argument | asked by | looks at | message | shortest fix "
          "|\n|---|---|---|---|---|---|---|\n";
  for (const RuleInfo& rule : rules()) {
    if (rule.entry_point != entry_point) continue;
    page << "| " << rule.contract_id << " | <a id=\"" << rule.slug << "\"></a>`" << rule.slug << "` | `"
         << rule.argument << "` | " << asked_by(rule.scope) << " | " << looks_at(rule.stage) << " | `" << rule.message
         << "` | " << rule.fix << " |\n";
  }
}

std::string contract_page() {
  std::ostringstream page;
  page << kHead;
  write_section(page, EntryPoint::kPrefill, "`prefill`", ErrorClass::kValueError);
  write_section(page, EntryPoint::kDecode, "`decode`", ErrorClass::kRuntimeError);
  write_section(page, EntryPoint::kKvTransfer, "the calls that append, dequantise, convert and gather",
                ErrorClass::kValueError);
  return page.str();
}

}  // namespace
}  // namespace sparse_mla

int main(int argc, char** argv) {
  const std::string page = sparse_mla::contract_page();
  if (argc == 1) {
    std::cout << page;
    return 0;
  }
  if (argc != 3 || std::string_view(argv[1]) != "--check") {
    std::cerr << "usage: sparse_mla_contract_doc [--check FILE]\n";
    return 1;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string committed{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file && committed == page) return 0;
  std::cerr << argv[2] << " is not what the rule table says; write it again with sparse_mla_contract_doc > " << argv[2]
            << "\n";
  return 1;
}
