// Rules about values: where they read, what they name, and when they stay silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "contract/valid_calls.h"

namespace sparse_mla::contract_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(ValueRules, AreOffUnlessAskedFor) {
  ValidPrefill valid;
  valid.lengths[0] = -5;
  valid.options.values = false;
  EXPECT_THAT(check(valid.call, valid.options), IsEmpty());
}

TEST(ValueRules, NameTheFirstOffender) {
  ValidPrefill valid;
  valid.lengths = {300, -1, 0, 0};
  const std::vector<Violation> violations = check(valid.call, valid.options);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].got, "topk_length[0] = 300");
  EXPECT_EQ(violations[0].expected, "values from 0 to 256");
  EXPECT_EQ(violations[0].fix, "clamp it: topk_length.clamp(0, 256); topk_length[0] is 300");
}

TEST(ValueRules, LimitsThemselvesAreGood) {
  ValidPrefill valid;
  valid.lengths = {0, 256, 0, 0};
  EXPECT_THAT(check(valid.call, valid.options), IsEmpty());
}

TEST(ValueRules, IndicesOutsideThePoolAreNoTokenAndNoViolation) {
  ValidDecode valid;
  const std::vector<std::int32_t> indices{-1, 40, 1 << 30, std::numeric_limits<std::int32_t>::min(), 0, 0, 0, 0, 0};
  valid.call.pool.kv_indices.data = const_cast<std::int32_t*>(indices.data());
  EXPECT_THAT(check(valid.call, valid.options), IsEmpty());
}

TEST(ValueRules, IndptrMayStartLateAndEndEarly) {
  ValidDecode valid;
  valid.first.indptr = {2, 4, 4, 7};
  EXPECT_THAT(check(valid.call, valid.options), IsEmpty());
}

TEST(ValueRules, AreSilentWhereShapeOrDtypeIsWrong) {
  ValidPrefill valid;
  valid.call.topk_length = Tensor(nowhere(9), DType::kInt64, {2}, kGpu);  // reading it would crash
  const std::vector<Violation> violations = check(valid.call, valid.options);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].slug, "prefill-topk-length-shape-dtype");
}

TEST(ValueRules, DoNotReadATensorOnAnotherDeviceThanQ) {
  ValidPrefill valid(Device::cpu());
  valid.options.contract = false;
  valid.call.kv_scale = Tensor(nowhere(9), DType::kFloat32, {1}, kGpu);
  const std::vector<Violation> violations = check(valid.call, valid.options);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].slug, "prefill-kv-scale-device");
}

TEST(ValueRules, ATensorWithoutDataHasNoOffender) {
  ValidDecode valid;
  valid.options.run_rules = false;
  valid.call.pool.kv_indptr.data = nullptr;
  EXPECT_THAT(check(valid.call, valid.options), IsEmpty());
}

TEST(ValueRules, FindTheOnlyBadScaleOfMany) {
  constexpr std::int64_t kPages = 5000, kGroups = 8;
  std::vector<float> scales(kPages * kGroups, 1.0f);
  ValidDecode valid;
  valid.call.pool.unified_kv = Tensor(nowhere(1), DType::kFloat8E4M3FN, {kPages, 512}, kGpu);
  valid.call.pool.kv_scales = Tensor(scales.data(), DType::kFloat32, {kPages, kGroups}, kGpu);
  EXPECT_THAT(check(valid.call, valid.options), IsEmpty());
  for (std::int64_t bad :
       {std::int64_t{0}, std::int64_t{511}, std::int64_t{512}, std::int64_t{20011}, kPages * kGroups - 1}) {
    scales[bad] = -std::numeric_limits<float>::infinity();
    const std::vector<Violation> violations = check(valid.call, valid.options);
    ASSERT_THAT(violations, SizeIs(1)) << bad;
    EXPECT_EQ(violations[0].got,
              "kv_scales[" + std::to_string(bad / kGroups) + ", " + std::to_string(bad % kGroups) + "] = -inf");
    scales[bad] = std::numeric_limits<float>::max();  // large is not infinite
  }
  scales[77] = std::numeric_limits<float>::denorm_min();
  EXPECT_THAT(check(valid.call, valid.options), IsEmpty());
}

TEST(HostValues, ReadUnalignedMemory) {
  std::vector<char> bytes(4 * sizeof(std::int32_t) + 1);
  const std::int32_t values[4] = {1, 2, 300, 4};
  std::memcpy(bytes.data() + 1, values, sizeof(values));
  const Tensor tensor(bytes.data() + 1, DType::kInt32, {4});
  const auto offender = host_values().first_outside("x", tensor, 0, 256);
  ASSERT_TRUE(offender.has_value());
  EXPECT_EQ(offender->position, 2);
  EXPECT_EQ(offender->value, 300);
}

TEST(HostValues, PositionsAreRowMajorInAnyLayout) {
  std::vector<float> values(64, 1.0f);
  const std::array<std::int64_t, 3> shape{2, 3, 4};
  const std::array<std::int64_t, 3> strides{1, 16, 2};  // the first dimension is innermost
  const Tensor tensor(values.data(), DType::kFloat32, shape, strides, Device::cpu());
  values[1 * 1 + 2 * 16 + 3 * 2] = std::nanf("");
  values[0 * 1 + 2 * 16 + 1 * 2] = std::nanf("");
  const auto offender = host_values().first_not_finite("x", tensor);
  ASSERT_TRUE(offender.has_value());
  EXPECT_EQ(offender->position, 0 * 12 + 2 * 4 + 1);
  EXPECT_TRUE(std::isnan(offender->value));
}

// Stands for a pass on a device, or for the values that a description lists.
class ListedOffender final : public ValueSource {
 public:
  ListedOffender(std::string argument, Offender offender) : argument_(std::move(argument)), offender_(offender) {}

  std::optional<Offender> first_outside(std::string_view argument, const Tensor&, std::int64_t,
                                        std::int64_t) const override {
    return answer(argument);
  }
  std::optional<Offender> first_decrease(std::string_view argument, const Tensor&) const override {
    return answer(argument);
  }
  std::optional<Offender> first_not_finite(std::string_view argument, const Tensor&) const override {
    return answer(argument);
  }

 private:
  std::optional<Offender> answer(std::string_view argument) const {
    if (argument != argument_) return std::nullopt;
    return offender_;
  }
  std::string argument_;
  Offender offender_;
};

TEST(ValueSource, FeedsTheSameRules) {
  ValidPrefill prefill;
  const ListedOffender long_row("topk_length", {.position = 1, .value = 900});
  prefill.options.value_source = &long_row;
  std::vector<Violation> violations = check(prefill.call, prefill.options);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].message, "topk_length values must satisfy 0 <= topk_length <= topk (256)");
  EXPECT_EQ(violations[0].got, "topk_length[1] = 900");

  ValidDecode decode;
  decode.make_general();
  const ListedOffender bad_scale("second_pool.kv_scales", {.position = 19, .value = std::nan("")});
  decode.options.value_source = &bad_scale;
  violations = check(decode.call, decode.options);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].message, "second_pool.kv_scales must be finite, got nan at [2, 3]");
}

}  // namespace
}  // namespace sparse_mla::contract_test
