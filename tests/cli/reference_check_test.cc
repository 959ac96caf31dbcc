// What demo and bench judge by: a wrong result never gets the verdict "ok".
#include "cli/reference_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cli/case.h"
#include "cli/runner.h"

namespace sparse_mla::cli {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Difference difference(std::initializer_list<std::pair<double, double>> pairs) {
  Difference total;
  for (const auto& [got, expected] : pairs) total.add(got, expected);
  return total;
}

TEST(Difference, IsRelativeToTheExpectation) {
  const Difference d = difference({{3, 3}, {4, 4}, {0.5, 0}});
  EXPECT_DOUBLE_EQ(d.relative(), 0.1);
  EXPECT_DOUBLE_EQ(d.max_abs(), 0.5);
  EXPECT_DOUBLE_EQ(d.cosine(), 25 / std::sqrt(25 * 25.25));
  EXPECT_TRUE(d.within(0.1000001));
  EXPECT_FALSE(d.within(0.0999999));
}

TEST(Difference, ZerosNaNAndNothingAreNeverWithin) {
  EXPECT_FALSE(difference({}).within(10));
  EXPECT_FALSE(difference({}).within_absolute(10));
  EXPECT_FALSE(difference({{0, 1}, {0, 2}}).within(0.99));
  EXPECT_FALSE(difference({{0, 0}, {0, 0}}).within(10));
  EXPECT_FALSE(difference({{1, 1}, {kNaN, 2}}).within(10));
  EXPECT_FALSE(difference({{1, 1}, {kInfinity, 2}}).within(10));
  EXPECT_FALSE(difference({{1, 1}, {2, kInfinity}}).within(10));
  EXPECT_FALSE(difference({{1, 1}, {-kInfinity, kInfinity}}).within_absolute(10));
  EXPECT_FALSE(difference({{kNaN, kNaN}}).within(10));
  EXPECT_TRUE(difference({{1, 1}, {kInfinity, kInfinity}}).within(0));
}

TEST(Difference, PartsAddUp) {
  Difference total = difference({{1, 2}, {kNaN, 1}});
  total.add(difference({{5, 3}}));
  EXPECT_EQ(total.count(), 3);
  EXPECT_EQ(total.special_mismatches(), 1);
  EXPECT_DOUBLE_EQ(total.relative(), std::sqrt(5.0 / 13.0));
  EXPECT_DOUBLE_EQ(total.max_abs(), 2);
}

void expect_only_the_right_result_is_ok(const files::AnyCall& call, const Argument& out, const Argument& lse,
                                        const Tolerance& tolerance) {
  const std::int64_t rows = row_count(call);
  EXPECT_FALSE(accuracy_of(call, 0, rows).ok(tolerance)) << "outputs of zeros, before the call has run";
  run_call(call, Backend::kCpu);
  EXPECT_TRUE(accuracy_of(call, 0, rows).ok(tolerance));

  const Tensor& out_tensor = *out.tensor();
  auto* out_bits = out_tensor.as<std::uint16_t>();
  const std::vector<std::uint16_t> right(out_bits, out_bits + out_tensor.elements());
  std::fill_n(out_bits, out_tensor.elements(), std::uint16_t{0});
  EXPECT_FALSE(accuracy_of(call, 0, rows).ok(tolerance)) << "out of zeros";
  std::fill_n(out_bits, out_tensor.elements(), std::uint16_t{0x7FC0});
  EXPECT_FALSE(accuracy_of(call, 0, rows).ok(tolerance)) << "out of NaN";
  std::copy(right.begin(), right.end(), out_bits);
  out_bits[out_tensor.elements() / 2] = 0x7FC0;
  EXPECT_FALSE(accuracy_of(call, 0, rows).ok(tolerance)) << "one NaN in out";
  std::rotate(out_bits, out_bits + 64, out_bits + out_tensor.elements());
  EXPECT_FALSE(accuracy_of(call, 0, rows).ok(tolerance)) << "out at the wrong place";
  std::copy(right.begin(), right.end(), out_bits);
  EXPECT_TRUE(accuracy_of(call, 0, rows).ok(tolerance));

  float& one_lse = lse.tensor()->as<float>()[lse.tensor()->elements() - 1];
  for (const float wrong : {0.0f, std::numeric_limits<float>::quiet_NaN(), one_lse * 1.4427f, one_lse + 0.001f}) {
    const float kept = std::exchange(one_lse, wrong);
    EXPECT_FALSE(accuracy_of(call, 0, rows).ok(tolerance)) << "lse " << wrong << " instead of " << kept;
    one_lse = kept;
  }
}

TEST(Verdict, PrefillIsOkOnlyWhenItIsRight) {
  const PrefillCase made({.s_q = 3, .s_kv = 300, .h_q = 8, .d_qk = 576, .topk = 128}, 3);
  const CallWithOutputs work(made.call(), false);
  const auto& call = std::get<PrefillCall>(work.call());
  expect_only_the_right_result_is_ok(work.call(), call.out, call.lse, prefill_tolerance(Backend::kCpu, 576, 128));
}

TEST(Verdict, DecodeIsOkOnlyWhenItIsRight) {
  const DecodeCase made({.n = 3, .h = 8, .d = 128, .pages = 200, .tokens = 64}, 3);
  const CallWithOutputs work(made.call(), true);
  const auto& call = std::get<DecodeCall>(work.call());
  expect_only_the_right_result_is_ok(work.call(), call.out, call.lse, decode_tolerance());
}

// The progress bar cuts a call into steps of rows; every step is a call that gives the same bits.
template <class Case, class Call>
void expect_steps_give_the_same_bits(const Case& made) {
  const CallWithOutputs whole(made.call(), true);
  const CallWithOutputs stepped(made.call(), true);
  run_call(whole.call(), Backend::kCpu);
  for (std::int64_t row = 0; row < stepped.rows(); row += 2) {
    run_call(rows_of(stepped.call(), row, std::min<std::int64_t>(2, stepped.rows() - row)), Backend::kCpu);
  }
  const Tensor& a = *std::get<Call>(whole.call()).out.tensor();
  const Tensor& b = *std::get<Call>(stepped.call()).out.tensor();
  EXPECT_TRUE(std::equal(a.as<std::uint16_t>(), a.as<std::uint16_t>() + a.elements(), b.as<std::uint16_t>()));
}

TEST(Rows, StepsOfACallGiveTheBitsOfTheWhole) {
  const PrefillCase prefill({.s_q = 5, .s_kv = 99, .h_q = 8, .d_qk = 512, .topk = 64, .sink = true, .lengths = true},
                            5);
  expect_steps_give_the_same_bits<PrefillCase, PrefillCall>(prefill);
  const DecodeCase decode({.n = 5, .h = 8, .d = 64, .pages = 99, .tokens = 40, .ragged = true}, 5);
  expect_steps_give_the_same_bits<DecodeCase, DecodeCall>(decode);
}

}  // namespace
}  // namespace sparse_mla::cli
