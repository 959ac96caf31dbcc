// One case for each rule of the table: what breaks it, alone, in an otherwise valid call, and the whole message.
// A new rule needs a case here; RuleTable.EveryRuleHasACase says so.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "contract/valid_calls.h"

namespace sparse_mla::contract_test {

template <class Valid>
struct Case {
  using Break = void (*)(Valid& valid);

  std::string_view slug;
  bool contract;  // or the general API
  Break break_it;
  std::string message;
  std::string argument;
  // Rules that cannot hold where this one is broken, in the table's order with this one among them.
  std::vector<std::string_view> together;

  Case(std::string_view slug, bool contract, Break break_it, std::string message, std::string argument,
       std::vector<std::string_view> together = {})
      : slug(slug),
        contract(contract),
        break_it(break_it),
        message(std::move(message)),
        argument(std::move(argument)),
        together(std::move(together)) {}
};

const std::vector<Case<ValidPrefill>>& prefill_cases();
const std::vector<Case<ValidDecode>>& decode_cases();
const std::vector<Case<ValidKv>>& kv_cases();

// The valid call of a case: of the general API or of the contract.
inline void prepare(ValidPrefill& valid, bool contract) { valid.options.contract = contract; }
// For transfers, which have one set of rules: an append with given scales, or a gather.
inline void prepare(ValidKv& valid, bool append) {
  if (append) valid.make_append();
}
inline void prepare(ValidDecode& valid, bool contract) {
  if (!contract) valid.make_general();
}

}  // namespace sparse_mla::contract_test
