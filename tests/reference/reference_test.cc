// The reference against answers that are known without it.
#include "reference/reference.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/float_formats.h"
#include "support/problem_maker.h"

namespace sparse_mla::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint8_t kOne = 0x38;  // 1.0 in e4m3fn

// One query of ones in 2 dimensions, kv rows (x, y) of e4m3 codes, scale 1: S = x + y, value = x.
struct Tiny {
  std::vector<std::uint8_t> q{kOne, kOne};
  std::vector<std::uint8_t> kv;
  std::vector<std::int32_t> indices;
  float sink = 0;

  explicit Tiny(const std::vector<std::pair<float, float>>& rows) {
    for (const auto& [x, y] : rows) {
      indices.push_back(static_cast<std::int32_t>(kv.size() / 2));
      kv.push_back(e4m3fn_from_float(x));
      kv.push_back(e4m3fn_from_float(y));
    }
  }
  PrefillProblem problem(bool with_sink = false) const {
    PrefillProblem p;
    p.s_q = 1;
    p.s_kv = static_cast<std::int64_t>(kv.size() / 2);
    p.topk = p.indices_row_stride = static_cast<std::int64_t>(indices.size());
    p.h_q = p.d_v = 1;
    p.d_qk = 2;
    p.q = q.data();
    p.q_row_stride = p.q_head_stride = p.kv_row_stride = 2;
    p.kv = kv.data();
    p.indices = indices.data();
    p.attn_sink = with_sink ? &sink : nullptr;
    return p;
  }
};

TEST(Reference, OneTokenIsItsOwnValue) {
  const auto result = reference::prefill(Tiny({{1.5f, 2.0f}}).problem());
  EXPECT_EQ(result.out, std::vector<double>{1.5});
  EXPECT_EQ(result.max_logits, std::vector<double>{3.5});
  EXPECT_EQ(result.lse, std::vector<double>{3.5});
}

TEST(Reference, TwoTokensWeighByTheirExponentials) {
  const auto result = reference::prefill(Tiny({{1.0f, 0.0f}, {3.0f, 0.5f}}).problem());
  const double a = std::exp(1.0), b = std::exp(3.5);
  EXPECT_NEAR(result.out[0], (a * 1.0 + b * 3.0) / (a + b), 1e-15);
  EXPECT_NEAR(result.lse[0], std::log(a + b), 1e-15);
  EXPECT_EQ(result.max_logits[0], 3.5);
}

TEST(Reference, ScalesMultiplyQueryKeyAndValue) {
  Tiny tiny({{1.0f, 0.0f}, {2.0f, 0.5f}});
  PrefillProblem p = tiny.problem();
  const float q_scale = 0.5f, kv_scale = 4.0f;
  p.q_scale = &q_scale;
  p.kv_scale = &kv_scale;
  p.sm_scale = 0.25f;
  const auto result = reference::prefill(p);
  const double a = std::exp(0.5), b = std::exp(1.25);
  EXPECT_NEAR(result.out[0], 4.0 * (a * 1.0 + b * 2.0) / (a + b), 1e-14);
  EXPECT_NEAR(result.lse[0], std::log(a + b), 1e-15);
}

TEST(Reference, TheSinkJoinsTheDenominatorAndNotTheLse) {
  Tiny tiny({{2.0f, 0.0f}});
  tiny.sink = 2.0f;
  auto result = reference::prefill(tiny.problem(true));
  EXPECT_EQ(result.out[0], 1.0);
  EXPECT_EQ(result.lse[0], 2.0);
  tiny.sink = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(reference::prefill(tiny.problem(true)).out[0], 2.0);
  tiny.sink = std::numeric_limits<float>::infinity();
  EXPECT_EQ(reference::prefill(tiny.problem(true)).out[0], 0.0);
}

TEST(Reference, DuplicatesCountEachTime) {
  Tiny tiny({{1.0f, 0.0f}, {3.0f, 0.0f}});
  tiny.indices = {0, 1, 1};
  const double a = std::exp(1.0), b = 2 * std::exp(3.0);
  const auto result = reference::prefill(tiny.problem());
  EXPECT_NEAR(result.out[0], (a * 1.0 + b * 3.0) / (a + b), 1e-15);
  EXPECT_NEAR(result.lse[0], std::log(a + b), 1e-15);
}

TEST(Reference, InvalidIndicesAndClampedLengthsLeaveTokensOut) {
  Tiny tiny({{1.0f, 0.0f}, {3.0f, 0.0f}});
  tiny.indices = {-1, 2, 0, std::numeric_limits<std::int32_t>::max(), 1};
  PrefillProblem p = tiny.problem();
  std::int32_t length = 4;
  p.topk_length = &length;
  EXPECT_EQ(reference::prefill(p).out[0], 1.0);
  length = 400;
  EXPECT_GT(reference::prefill(p).out[0], 2.0);
  for (std::int32_t none : {0, -3, 2}) {
    length = none;
    const auto result = reference::prefill(p);
    EXPECT_EQ(result.out[0], 0.0);
    EXPECT_EQ(result.lse[0], kInfinity);
    EXPECT_EQ(result.max_logits[0], -kInfinity);
  }
}

TEST(Reference, HugeLogitsDoNotOverflow) {
  PrefillProblem p = Tiny({{1.0f, 0.0f}, {3.0f, 0.0f}}).problem();
  Tiny tiny({{1.0f, 0.0f}, {3.0f, 0.0f}});
  p = tiny.problem();
  p.sm_scale = 1e30f;
  const auto result = reference::prefill(p);
  EXPECT_EQ(result.out[0], 3.0);
  EXPECT_NEAR(result.lse[0], 3.0 * double{1e30f}, 1e16);
}

TEST(Reference, SomeRowsAreTheSameRows) {
  MadePrefill made(parse_problem_name("prefill:sq5:skv60:hq3:dqk64:topk20:sink:holes"));
  const auto all = reference::prefill(made.problem());
  const auto some = reference::prefill(made.problem(), 2, 2);
  EXPECT_EQ(some.out, std::vector<double>(all.out.begin() + 2 * 3 * 64, all.out.begin() + 4 * 3 * 64));
  EXPECT_EQ(some.lse, std::vector<double>(all.lse.begin() + 6, all.lse.begin() + 12));
  EXPECT_EQ(reference::prefill(made.problem(), 3).lse.size(), 6u);
}

TEST(Reference, ReadsEveryCodeOfEveryFormat) {
  // One token: out is the token's values.
  for (const DType dtype : {DType::kFloat8E4M3FN, DType::kBFloat16, DType::kFloat16}) {
    const int codes = dtype == DType::kFloat8E4M3FN ? 256 : 65536;
    std::vector<std::uint16_t> q(codes, 0), kv16(codes);
    std::vector<std::uint8_t> kv8(codes);
    std::vector<double> expected(codes);
    for (int code = 0; code < codes; ++code) {
      const float value = dtype == DType::kFloat8E4M3FN ? float_from_e4m3fn(static_cast<std::uint8_t>(code))
                          : dtype == DType::kBFloat16   ? float_from_bf16(static_cast<std::uint16_t>(code))
                                                        : float_from_f16(static_cast<std::uint16_t>(code));
      const int kept = std::isfinite(value) ? code : 0;
      expected[code] = std::isfinite(value) ? value : 0;
      kv8[code] = static_cast<std::uint8_t>(kept);
      kv16[code] = static_cast<std::uint16_t>(kept);
    }
    const std::int32_t index = 0, indptr[] = {0, 1};
    DecodeProblem p;
    p.n = p.h = 1;
    p.d = p.d_v = codes;
    p.q = q.data();
    p.pool.total_pages = p.pool.total_indices = 1;
    p.pool.kv_dtype = dtype;
    p.pool.kv = dtype == DType::kFloat8E4M3FN ? static_cast<const void*>(kv8.data()) : kv16.data();
    p.pool.indices = &index;
    p.pool.indptr = indptr;
    EXPECT_EQ(reference::decode(p).out, expected) << torch_name(dtype);
  }
}

TEST(Reference, DecodeUsesOneScalePer64ValuesInKeyAndValue) {
  const int d = 128;
  std::vector<std::uint16_t> q(d, bf16_from_float(1.0f));
  std::vector<std::uint8_t> kv(2 * d, kOne);
  const float scales[] = {0.3f, 0.5f, 0.1f, 0.2f};
  const std::int32_t indices[] = {1, 0}, indptr[] = {0, 2};
  DecodeProblem p;
  p.n = p.h = 1;
  p.d = p.d_v = d;
  p.q = q.data();
  p.pool = {2, DType::kFloat8E4M3FN, kv.data(), d, scales, 2, indices, 2, indptr};
  p.softmax_scale = 0.01f;
  const auto result = reference::decode(p);
  const double a = std::exp(0.01f * 64.0 * (double{0.3f} + double{0.5f}));
  const double b = std::exp(0.01f * 64.0 * (double{0.1f} + double{0.2f}));
  EXPECT_NEAR(result.out[0], (a * 0.3f + b * 0.1f) / (a + b), 1e-12);
  EXPECT_NEAR(result.out[127], (a * 0.5f + b * 0.2f) / (a + b), 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(a + b), 1e-12);
}

TEST(Reference, ASecondPoolIsTheSameAsOneLongerList) {
  MadeDecode made(parse_problem_name("decode:n1:pages50:h2:d64:tokens20:fp8"));
  DecodeProblem whole = made.problem();
  DecodeProblem halves = whole;
  const std::int32_t first[] = {0, 13}, second[] = {13, 20};
  halves.pool.indptr = first;
  halves.second_pool = whole.pool;
  halves.second_pool.indptr = second;
  EXPECT_EQ(reference::decode(halves).out, reference::decode(whole).out);
  EXPECT_EQ(reference::decode(halves).lse, reference::decode(whole).lse);
}

TEST(Reference, PartialResultsMergeByTheirLse) {
  MadeDecode made(parse_problem_name("decode:n1:pages50:h2:d64:tokens20"));
  DecodeProblem p = made.problem();
  const auto whole = reference::decode(p);
  const std::int32_t first[] = {0, 13}, second[] = {13, 20};
  p.pool.indptr = first;
  const auto left = reference::decode(p);
  p.pool.indptr = second;
  const auto right = reference::decode(p);
  for (int head = 0; head < 2; ++head) {
    const double m = std::max(left.lse[head], right.lse[head]);
    const double a = std::exp(left.lse[head] - m), b = std::exp(right.lse[head] - m);
    for (int j = head * 64; j < (head + 1) * 64; ++j) {
      EXPECT_NEAR((a * left.out[j] + b * right.out[j]) / (a + b), whole.out[j], 1e-13);
    }
    EXPECT_NEAR(m + std::log(a + b), whole.lse[head], 1e-13);
  }
}

TEST(Reference, RoundedPIsTheNearestE4m3Number) {
  // P of the second token is exp(-0.5) = 0.60653; times 256 it is 155.27, between the e4m3 numbers 144 and 160.
  const Tiny tiny({{1.0f, 0.5f}, {4.0f, -3.0f}});
  const auto result = reference::prefill_with_e4m3_p(tiny.problem());
  const double p = std::exp(-0.5), rounded = 160.0 / 256.0;
  EXPECT_NEAR(result.out[0], (1.0 + rounded * 4.0) / (1.0 + p), 1e-15);
  EXPECT_NEAR(result.lse[0], 1.5 + std::log(1.0 + p), 1e-15);
}

TEST(Reference, RoundedPAgreesWithTheScalarConversionAndCostsAboutTwoPercent) {
  MadePrefill made(parse_problem_name("prefill:sq1:skv700:hq4:dqk576:topk512"));
  const auto exact = reference::prefill(made.problem());
  const auto rounded = reference::prefill_with_e4m3_p(made.problem());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.out.size(); ++i) {
    error += std::pow(rounded.out[i] - exact.out[i], 2);
    norm += std::pow(exact.out[i], 2);
  }
  EXPECT_GT(std::sqrt(error / norm), 5e-3);
  EXPECT_LT(std::sqrt(error / norm), 3e-2);
  EXPECT_EQ(rounded.lse, exact.lse);
}

}  // namespace
}  // namespace sparse_mla::test
