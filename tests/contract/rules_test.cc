// The table, rule by rule: each one alone with its whole message, and which of two broken rules is raised.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "contract/cases.h"

namespace sparse_mla::contract_test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

template <class Valid>
const std::vector<Case<Valid>>& cases_of() {
  if constexpr (std::is_same_v<Valid, ValidPrefill>) {
    return prefill_cases();
  } else if constexpr (std::is_same_v<Valid, ValidKv>) {
    return kv_cases();
  } else {
    return decode_cases();
  }
}

std::vector<std::string_view> slugs_of(const std::vector<Violation>& violations) {
  std::vector<std::string_view> slugs;
  for (const Violation& violation : violations) slugs.push_back(violation.slug);
  return slugs;
}

std::size_t place(std::string_view slug) {
  const auto at = std::ranges::find(rules(), slug, &RuleInfo::slug);
  EXPECT_NE(at, rules().end()) << slug;
  return static_cast<std::size_t>(at - rules().begin());
}
const RuleInfo& rule(std::string_view slug) { return rules()[place(slug)]; }

// What `enforce` raises, as a violation; its type must be the error class's.
template <class Call>
std::optional<Violation> raised(const Call& call, const CheckOptions& options) {
  try {
    enforce(call, options);
  } catch (const ContractError& error) {
    const auto* as_exception = dynamic_cast<const std::exception*>(&error);
    EXPECT_NE(as_exception, nullptr);
    if (as_exception != nullptr) {
      EXPECT_EQ(as_exception->what(), error.violation().message);
    }
    const bool is_value_error = error.violation().error_class == ErrorClass::kValueError;
    EXPECT_EQ(dynamic_cast<const std::invalid_argument*>(&error) != nullptr, is_value_error);
    EXPECT_EQ(dynamic_cast<const std::runtime_error*>(&error) != nullptr, !is_value_error);
    return error.violation();
  }
  return std::nullopt;
}

template <class Valid>
class EveryRule : public ::testing::Test {};
using EntryPoints = ::testing::Types<ValidPrefill, ValidDecode, ValidKv>;
TYPED_TEST_SUITE(EveryRule, EntryPoints);

TYPED_TEST(EveryRule, HoldsForTheValidCalls) {
  for (bool contract : {true, false}) {
    TypeParam valid;
    prepare(valid, contract);
    EXPECT_THAT(slugs_of(check(valid.call, valid.options)), IsEmpty()) << contract;
    EXPECT_NO_THROW(enforce(valid.call, valid.options)) << contract;
  }
}

TYPED_TEST(EveryRule, BrokenAloneIsReportedAloneWithItsWholeMessage) {
  for (const auto& one : cases_of<TypeParam>()) {
    SCOPED_TRACE(one.slug);
    TypeParam valid;
    prepare(valid, one.contract);
    one.break_it(valid);
    std::vector<std::string_view> expected = one.together;
    if (expected.empty()) expected = {one.slug};
    const std::vector<Violation> violations = check(valid.call, valid.options);
    EXPECT_THAT(slugs_of(violations), ElementsAreArray(expected));
    const auto at = std::ranges::find(violations, one.slug, &Violation::slug);
    if (at == violations.end()) continue;
    EXPECT_EQ(at->message, one.message);
    EXPECT_EQ(at->argument, one.argument);
    EXPECT_EQ(at->error_class, rule(one.slug).error_class);
    EXPECT_THAT(at->expected, Not(IsEmpty()));
    EXPECT_THAT(at->got, Not(IsEmpty()));
    EXPECT_THAT(at->fix, Not(IsEmpty()));
    EXPECT_THAT(at->fix, Not(HasSubstr("{")));
    const std::optional<Violation> first = raised(valid.call, valid.options);
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->slug, expected.front());
    EXPECT_EQ(first->message, violations.front().message);
  }
}

TYPED_TEST(EveryRule, OfAdjacentPairsTheEarlierIsRaised) {
  // In the table's order, one case for each rule.
  std::map<std::size_t, const Case<TypeParam>*> ordered;
  for (const auto& one : cases_of<TypeParam>()) {
    if (one.together.empty()) ordered.emplace(place(one.slug), &one);
  }
  int pairs = 0;
  for (auto later = std::next(ordered.begin()); later != ordered.end(); ++later) {
    const auto& first = *std::prev(later)->second;
    const auto& second = *later->second;
    SCOPED_TRACE(testing::Message() << first.slug << " and " << second.slug);
    TypeParam valid;
    prepare(valid, first.contract);
    if (rule(second.slug).scope != RuleScope::kBoth && first.contract != second.contract) continue;
    second.break_it(valid);
    first.break_it(valid);
    const std::vector<std::string_view> slugs = slugs_of(check(valid.call, valid.options));
    // Some pairs cannot be had: the second's tensor is replaced by the first's, or a third rule is broken with them.
    if (slugs != std::vector{first.slug, second.slug}) continue;
    EXPECT_EQ(raised(valid.call, valid.options)->slug, first.slug);
    ++pairs;
  }
  EXPECT_GE(pairs, static_cast<int>(ordered.size()) * 2 / 5) << "of " << ordered.size() - 1;
}

TYPED_TEST(EveryRule, OfAnyPairReportsComeInTheTablesOrder) {
  for (const auto& one : cases_of<TypeParam>()) {
    for (const auto& other : cases_of<TypeParam>()) {
      if (one.contract != other.contract) continue;
      TypeParam valid;
      prepare(valid, one.contract);
      one.break_it(valid);
      other.break_it(valid);
      const std::vector<std::string_view> slugs = slugs_of(check(valid.call, valid.options));
      EXPECT_TRUE(std::ranges::is_sorted(slugs, {}, place)) << one.slug << " and " << other.slug;
      const std::optional<Violation> first = raised(valid.call, valid.options);
      ASSERT_EQ(first.has_value(), !slugs.empty());
      if (first) {
        EXPECT_EQ(first->slug, slugs.front()) << one.slug << " and " << other.slug;
      }
    }
  }
}

TEST(RuleTable, EveryRuleHasACase) {
  std::set<std::string_view> told;
  for (const auto& one : prefill_cases()) told.insert(one.slug);
  for (const auto& one : decode_cases()) told.insert(one.slug);
  for (const auto& one : kv_cases()) told.insert(one.slug);
  std::set<std::string_view> known;
  for (const RuleInfo& info : rules()) known.insert(info.slug);
  EXPECT_EQ(told, known);
}

TEST(RuleTable, SlugsAreUniqueAndWellFormed) {
  std::set<std::string_view> seen;
  for (const RuleInfo& info : rules()) {
    EXPECT_TRUE(seen.insert(info.slug).second) << info.slug;
    EXPECT_EQ(info.slug.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string_view::npos)
        << info.slug;
    const std::string_view prefix = info.entry_point == EntryPoint::kPrefill  ? "prefill-"
                                    : info.entry_point == EntryPoint::kDecode ? "decode-"
                                                                              : "kv-";
    EXPECT_TRUE(info.slug.starts_with(prefix)) << info.slug;
    EXPECT_FALSE(info.argument.empty() || info.message.empty() || info.fix.empty()) << info.slug;
  }
}

TEST(RuleTable, ErrorClassIsTheEntryPoints) {
  for (const RuleInfo& info : rules()) {
    EXPECT_EQ(error_class_name(info.error_class),
              info.entry_point == EntryPoint::kDecode ? "RuntimeError" : "ValueError");
  }
}

// The numbers of contract.md in the order that the table must have; what is this library's own is left out.
TEST(RuleTable, ContractsRulesComeInItsOrder) {
  std::vector<std::string_view> ids;
  for (const RuleInfo& info : rules()) {
    if (info.contract_id != "D" && info.contract_id != "B8" && info.contract_id != "KV") ids.push_back(info.contract_id);
  }
  EXPECT_THAT(ids, ElementsAre("A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10", "A11", "A12", "A13", "A14",
                               "A15", "A16", "A17", "A18", "A19", "A20", "A21", "A22", "A23", "A24", "A25", "A26",
                               "A27", "A28", "A29", "A30", "A31", "A32", "A33", "A34", "A35", "A36", "A37", "A32",
                               "A33", "A34", "A35", "A36", "A37", "A38", "A39", "A40", "A41", "A38", "A39", "A40",
                               "A41", "A38", "A39", "A40", "A41", "A42", "B1", "B2", "B3", "B4", "B5", "B6", "B7"));
  const auto first_b8 = std::ranges::find(rules(), "B8", &RuleInfo::contract_id);
  EXPECT_LT(place("decode-unified-kv-dtype"), static_cast<std::size_t>(first_b8 - rules().begin()));
}

TEST(RuleTable, ContractsRulesAreAskedByTheContract) {
  for (const RuleInfo& info : rules()) {
    EXPECT_TRUE(info.contract_id == "D" || info.scope != RuleScope::kGeneral) << info.slug;
  }
}

}  // namespace
}  // namespace sparse_mla::contract_test
