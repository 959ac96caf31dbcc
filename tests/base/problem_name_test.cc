#include "base/problem_name.h"

#include <random>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparse_mla {
namespace {

TEST(ProblemNameTest, ALineIsReadFieldByField) {
  const ProblemName name = parse_problem_name("prefill:sq4:skv300:hq8:dqk576:topk64:sink:len");
  EXPECT_EQ(name.entry_point, ProblemName::EntryPoint::kPrefill);
  EXPECT_EQ(name.rows, 4);
  EXPECT_EQ(name.kv_rows, 300);
  EXPECT_EQ(name.heads, 8);
  EXPECT_EQ(name.d, 576);
  EXPECT_EQ(name.value_width(), 512);
  EXPECT_EQ(name.topk, 64);
  EXPECT_TRUE(name.sink && name.lengths);
  EXPECT_FALSE(name.holes || name.duplicates || name.strided);
}

TEST(ProblemNameTest, FieldsStandInAnyOrderAndDefaultsFillTheRest) {
  EXPECT_EQ(parse_problem_name("decode:fp8:h16:n3"), parse_problem_name("decode:n3:h16:fp8"));
  ProblemName expected;
  EXPECT_EQ(parse_problem_name("prefill"), expected);
  EXPECT_EQ(parse_problem_name("decode:d128").value_width(), 128);
}

TEST(ProblemNameTest, EveryNameSurvivesARoundTrip) {
  std::mt19937 random(1);
  const auto coin = [&] { return random() % 2 == 1; };
  for (int i = 0; i < 500; ++i) {
    ProblemName name;
    const bool decode = coin();
    name.entry_point = decode ? ProblemName::EntryPoint::kDecode : ProblemName::EntryPoint::kPrefill;
    name.rows = random() % 10;
    name.kv_rows = random() % 100000;
    name.topk = random() % 3000;
    name.heads = static_cast<int>(random() % 129);
    name.d = static_cast<int>(random() % 600);
    name.d_v = coin() ? static_cast<int>(random() % 600) : 0;
    name.sink = coin();
    name.lengths = coin();
    name.holes = coin();
    name.duplicates = coin();
    name.strided = coin();
    name.float16 = decode && coin();
    name.scale_spread = decode && coin();
    name.second_pool = decode && coin();
    if (decode && coin()) name.kv_format = ProblemName::KvFormat::kFp8;
    name.data = static_cast<ProblemName::Data>(random() % 4);
    name.seed = random();
    if (name.seed > 1'000'000'000) name.seed %= 1'000'000'000;
    EXPECT_EQ(parse_problem_name(to_string(name)), name) << to_string(name);
  }
}

TEST(ProblemNameTest, AWordThatIsUnknownIsQuoted) {
  const auto message = [](const char* text) {
    try {
      parse_problem_name(text);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message("attention:sq1"), "problem \"attention:sq1\": \"attention\" is neither prefill nor decode");
  EXPECT_EQ(message("prefill:sq4:n3"), "problem \"prefill:sq4:n3\": \"n3\" is no field of this entry point");
  EXPECT_EQ(message("prefill:fp8"), "problem \"prefill:fp8\": \"fp8\" is no field of this entry point");
  EXPECT_EQ(message("decode:n3x"), "problem \"decode:n3x\": \"n3x\" does not end in a number");
  EXPECT_EQ(message("decode:n99999999999999999999"),
            "problem \"decode:n99999999999999999999\": \"n99999999999999999999\" does not end in a number");
  EXPECT_THAT(message("prefill::sink"), testing::HasSubstr("\"\" is no field"));
  EXPECT_THAT(message(""), testing::HasSubstr("neither prefill nor decode"));
}

}  // namespace
}  // namespace sparse_mla
