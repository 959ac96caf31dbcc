// What a row of the rule table is made of. The tables themselves: prefill_rules.cc, decode_rules.cc and kv_rules.cc.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse_mla/contract.h"
#include "sparse_mla/kv_cache.h"

namespace sparse_mla::contract {

// Text that is a template argument, so that one rule can be written for any argument's name.
template <std::size_t kLength>
struct Text {
  char letters[kLength + 1] = {};

  constexpr Text() = default;
  constexpr Text(const char (&literal)[kLength + 1]) {
    for (std::size_t i = 0; i < kLength; ++i) letters[i] = literal[i];
  }
  constexpr std::string_view view() const { return {letters, kLength}; }
};
template <std::size_t kSize>
Text(const char (&)[kSize]) -> Text<kSize - 1>;

template <std::size_t... kLengths>
constexpr auto join(const Text<kLengths>&... parts) {
  Text<(kLengths + ...)> all;
  std::size_t end = 0;
  for (std::string_view part : {parts.view()...}) {
    for (char letter : part) all.letters[end++] = letter;
  }
  return all;
}

// "kv_indices" to "kv-indices", "second_pool.lse" to "second-pool-lse": the form that slugs have.
template <std::size_t kLength>
constexpr Text<kLength> dashed(Text<kLength> text) {
  for (char& letter : text.letters) {
    if (letter == '_' || letter == '.') letter = '-';
  }
  return text;
}

// A view of joined template text; lives as long as the program.
template <Text... kParts>
struct Joined {
  static constexpr auto kAll = join(kParts...);
};
template <Text... kParts>
constexpr std::string_view joined = Joined<kParts...>::kAll.view();

struct Field {
  std::string_view name;
  std::string value;
};

// What a check found when its rule is broken. Templates are filled from here: {shape}, {dtype}, {device} and {strides}
// are those of `tensor`, other names come from `fields`, and then from the call (see named_value of each table).
struct Facts {
  std::string expected;
  std::string got;
  const Tensor* tensor = nullptr;
  std::vector<Field> fields = {};
  std::string_view argument = {};  // where the rule is about several arguments: the one at fault
};

// Preconditions. A rule lists in `needs` what must hold before its question means anything; `known` of the call's table
// finds once per call what holds. The rule that demands such a thing tests the same bit, so no condition is written
// twice. A check whose precondition is narrower (a value rule needs the right dtype) calls the predicate of the rule
// that demands it.
enum Known : std::uint32_t {
  kNothing = 0,
  kQRank = 1u << 0,             // q is 3-D
  kKvRank = 1u << 1,            // kv is 3-D; unified_kv is 2-D
  kIndicesRank = 1u << 2,       // indices is 3-D; kv_indices is 1-D
  kQDevice = 1u << 3,           // q's device is one that the other tensors can follow
  kValueWidth = 1u << 4,        // d_v is a width that the outputs can have
  kQDType = 1u << 5,            // decode's q is fp16 or bf16
  kSecondKvRank = 1u << 6,      // second_pool.unified_kv is 2-D
  kSecondIndicesRank = 1u << 7,  // second_pool.kv_indices is 1-D
  kSourceRows = 1u << 8,        // how many rows a transfer's source has, and of which D
  kTargetRows = 1u << 9         // the same of its target
};

template <class Call>
struct Input {
  const Call& call;
  const CheckOptions& options;
  const ValueSource& values;
  std::uint32_t known = kNothing;

  bool knows(std::uint32_t needs) const { return (known & needs) == needs; }
};

template <class Call>
struct Rule {
  std::string_view id;  // RuleInfo::contract_id
  std::string_view slug;
  std::string_view argument;
  RuleScope scope = RuleScope::kBoth;
  RuleStage stage = RuleStage::kMetadata;
  std::uint32_t needs = kNothing;
  std::string_view message;
  std::string_view fix;
  // Nothing where the rule holds or does not apply (an argument that is None).
  std::optional<Facts> (*check)(const Input<Call>&) = nullptr;
};

// Blocks of rules, one after the other.
template <class Call, std::size_t... kCounts>
constexpr auto concatenate(const std::array<Rule<Call>, kCounts>&... blocks) {
  std::array<Rule<Call>, (kCounts + ...)> all;
  std::size_t end = 0;
  for (std::span<const Rule<Call>> block : {std::span<const Rule<Call>>(blocks)...}) {
    for (const Rule<Call>& rule : block) all[end++] = rule;
  }
  return all;
}

// The same rules for another scope.
template <class Call, std::size_t kCount>
constexpr std::array<Rule<Call>, kCount> scoped(std::array<Rule<Call>, kCount> rules, RuleScope scope) {
  for (Rule<Call>& rule : rules) rule.scope = scope;
  return rules;
}

// What a call's table provides, one specialisation each in the tables' files.
template <class Call>
struct Table;

template <>
struct Table<PrefillCall> {
  static constexpr EntryPoint kEntryPoint = EntryPoint::kPrefill;
  static constexpr ErrorClass kErrorClass = ErrorClass::kValueError;
  static constexpr std::string_view kGeneralName = "prefill";
  static std::span<const Rule<PrefillCall>> rules() noexcept;
  static std::uint32_t known(const PrefillCall& call, const CheckOptions& options) noexcept;
  // The value behind a placeholder that every rule may use; nothing for an unknown name.
  static std::optional<std::string> named_value(const PrefillCall& call, std::string_view name);
};

template <>
struct Table<DecodeCall> {
  static constexpr EntryPoint kEntryPoint = EntryPoint::kDecode;
  static constexpr ErrorClass kErrorClass = ErrorClass::kRuntimeError;
  static constexpr std::string_view kGeneralName = "decode";
  static std::span<const Rule<DecodeCall>> rules() noexcept;
  static std::uint32_t known(const DecodeCall& call, const CheckOptions& options) noexcept;
  static std::optional<std::string> named_value(const DecodeCall& call, std::string_view name);
};

template <>
struct Table<KvCall> {
  static constexpr EntryPoint kEntryPoint = EntryPoint::kKvTransfer;
  static constexpr ErrorClass kErrorClass = ErrorClass::kValueError;
  static constexpr std::string_view kGeneralName = "kv_transfer";
  static std::span<const Rule<KvCall>> rules() noexcept;
  static std::uint32_t known(const KvCall& call, const CheckOptions& options) noexcept;
  static std::optional<std::string> named_value(const KvCall& call, std::string_view name);
};

}  // namespace sparse_mla::contract
