// From a text to its rule: real messages, messages with random values, and the cases that the page is held to as well.
#include "catalog/catalog.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "contract/cases.h"
#include "files/faults.h"

namespace sparse_mla::catalog {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::SizeIs;

const Catalog& all() {
  static const Catalog catalog;
  return catalog;
}

std::string slug_of(const Found& found) { return found.rule == nullptr ? "none" : found.rule->slug; }

TEST(Catalog, HasARecordForEachRuleAndFault) {
  std::set<std::string> told, known;
  for (const Rule& rule : all().rules()) told.insert(rule.slug);
  for (const RuleInfo& rule : sparse_mla::rules()) known.insert(std::string(rule.slug));
  for (const files::FaultInfo& fault : files::kFaults) known.insert(std::string(fault.slug));
  EXPECT_EQ(told, known);
}

TEST(Catalog, FindsASlugAndAnId) {
  for (const Rule& rule : all().rules()) {
    EXPECT_EQ(slug_of(all().find(rule.slug)), rule.slug);
    EXPECT_EQ(slug_of(all().find("see " + rule.id + " for more")), rule.slug);
  }
}

template <class Valid>
void expect_found(const std::vector<contract_test::Case<Valid>>& cases, const std::string& error, const std::string& call) {
  for (const auto& one : cases) {
    const Found found = all().find("  File \"a.py\", line 3, in run\n    " + call + "(q)\n" + error + ": " + one.message + "\n");
    EXPECT_EQ(slug_of(found), one.slug) << one.message;
  }
}
TEST(Catalog, FindsTheRuleBehindEachMessageThatACallGives) {
  expect_found(contract_test::prefill_cases(), "ValueError", "prefill");
  expect_found(contract_test::decode_cases(), "RuntimeError", "decode");
  expect_found(contract_test::kv_cases(), "ValueError", "kv_transfer");
}

// What a placeholder may hold, at random.
std::string random_value(const std::string& name, std::mt19937& random) {
  const auto one_of = [&random](std::vector<std::string> choices) { return choices[random() % choices.size()]; };
  const auto number = [&random] { return std::to_string(static_cast<int>(random() % 5000)); };
  if (name.ends_with("shape") || name == "strides") {
    return one_of({"()", "(" + number() + ",)", "(" + number() + ", " + number() + ", " + number() + ")"});
  }
  if (name.ends_with("dtype")) return one_of({"torch.bfloat16", "torch.float8_e5m2", "torch.int64", "torch.float8_e4m3fnuz"});
  if (name.ends_with("device")) return one_of({"cpu", "cuda:0", "cuda:7", "meta"});
  if (name == "pair") return "source and target.scales";
  if (name == "format") return one_of({"plain", "q8kv8_576", "v4_584"});
  if (name == "why") return "which has 5 exponent and 2 mantissa bits, not 4 and 3";
  if (name == "position") return one_of({"[" + number() + "]", "[" + number() + ", " + number() + "]", "[()]"});
  if (name == "value" || name == "previous" || name.ends_with("m_scale") || name.ends_with("x_scale")) {
    return one_of({"nan", "-inf", "inf", number(), "-0.5", "1.0000000000000001e-05"});
  }
  return number();
}

std::string with_random_values(const Rule& rule, const std::string& name_value, std::mt19937& random) {
  std::string message;
  std::string_view rest = rule.message;
  for (std::size_t open = rest.find('{'); open != std::string_view::npos; open = rest.find('{')) {
    const std::size_t close = rest.find('}', open);
    const std::string name(rest.substr(open + 1, close - open - 1));
    std::string value = name == "name" ? name_value : random_value(name, random);
    if (rule.message.find("must be {expected}") != std::string::npos && name == "expected") value = "torch.float16";
    if (rule.slug == "kv-scales-given") value = name == "expected" ? "None" : "a tensor";
    if (rule.slug.ends_with("-rank") && name == "expected") value = "(rows, D)";
    message.append(rest.substr(0, open)).append(value);
    rest.remove_prefix(close + 1);
  }
  return message.append(rest);
}

// Its own rule is found; another one may be possible too only where the two say the same, for another exception.
TEST(Catalog, MessagesWithRandomValuesAreThoseOfTheirOwnRuleAlone) {
  std::mt19937 random(7);
  for (const Rule& rule : all().rules()) {
    if (rule.error_class == "FileError") continue;
    for (int i = 0; i < 5; ++i) {
      const bool is_transfer = rule.entry_point == "kv_transfer";
      const std::string message = with_random_values(rule, is_transfer ? "source_slots" : "attn_sink", random);
      const Found found = all().find(rule.error_class + ": " + message);
      ASSERT_EQ(slug_of(found), rule.slug) << message;
      for (const catalog::Rule* other : found.also_possible) {
        EXPECT_NE(other->error_class, rule.error_class) << message << ": " << other->slug;
      }
    }
  }
}

TEST(Catalog, FindsTheFaultBehindEachMessageOfAFile) {
  const std::map<std::string, std::string> values = {
      {"reason", "No such file or directory"}, {"where", "line 3, column 7"}, {"got", "\"x\""}, {"known", "q, kv"},
      {"found", "none"}, {"field", "shape"}, {"expected", "a number"}, {"name", "\"q\""}, {"other", "\"kv\""},
      {"key", "sm_scale"}, {"entry_point", "sparse_mla_q8kv8_prefill_fwd"}, {"dtype", "F8_E4M3"}, {"shape", "(1, 2)"}};
  for (const files::FaultInfo& fault : files::kFaults) {
    std::string message;
    std::string_view rest = fault.message;
    for (std::size_t open = rest.find('{'); open != std::string_view::npos; open = rest.find('{', open)) {
      const std::size_t close = rest.find('}', open);
      if (close == std::string_view::npos) break;
      const std::string name(rest.substr(open + 1, close - open - 1));
      if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos) {
        ++open;
        continue;
      }
      const auto value = values.find(name);
      message.append(rest.substr(0, open));
      const bool bare = fault.slug.starts_with("description-") && fault.slug != "description-unknown-argument";
      message.append(name == "name" && bare ? "sm_scale" : value == values.end() ? "42" : value->second);
      rest.remove_prefix(close + 1);
      open = 0;
    }
    message.append(rest);
    const Found found = all().find("sparse-mla: /data/my call.safetensors: " + message);
    EXPECT_EQ(slug_of(found), fault.slug) << message;
    EXPECT_THAT(found.also_possible, SizeIs(0)) << message;
  }
}

TEST(Catalog, AnswersTheSharedCases) {
  std::ifstream file(SPARSE_MLA_MATCHING_CASES);
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 10u);
  for (const auto& one : cases) {
    const Found found = all().find(one.at("text").get<std::string>());
    SCOPED_TRACE(one.at("text"));
    if (one.at("slug").is_null()) {
      ASSERT_EQ(found.rule, nullptr) << slug_of(found);
      std::vector<std::string> nearest;
      for (const Rule* rule : found.nearest) nearest.push_back(rule->slug);
      EXPECT_EQ(nearest, one.at("nearest").get<std::vector<std::string>>());
      continue;
    }
    ASSERT_EQ(slug_of(found), one.at("slug"));
    EXPECT_EQ(filled_fix(*found.rule, found.values), one.at("fix"));
    std::vector<std::string> also;
    for (const Rule* rule : found.also_possible) also.push_back(rule->slug);
    EXPECT_EQ(also, one.value("also", std::vector<std::string>{}));
  }
}

TEST(Catalog, SurvivesAnyText) {
  std::mt19937 random(3);
  const std::string_view letters = "ab ({\"'[:,q=kv must be}])\n\t\\x00\xff-_.0123";
  for (int i = 0; i < 30; ++i) {
    std::string text;
    for (int j = 0; j < 3000; ++j) text += letters[random() % letters.size()];
    all().find(text);
  }
  EXPECT_THAT(all().find(std::string(1'000'000, 'q')).nearest, SizeIs(3));
  EXPECT_EQ(slug_of(all().find("is not valid JSON at " + std::string(100'000, 'x'))), "json-syntax");
  EXPECT_EQ(slug_of(all().find("")), "none");
}

}  // namespace
}  // namespace sparse_mla::catalog
