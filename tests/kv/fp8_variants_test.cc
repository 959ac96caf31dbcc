#include "kv/fp8_variants.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kv/caches.h"
#include "sparse_mla/kv_cache.h"

namespace sparse_mla {
namespace {

using kv::float8_value;

TEST(Fp8Variants, KnownCodesHaveTheirValues) {
  EXPECT_EQ(float8_value(DType::kFloat8E4M3FN, 0x7E), 448.0);
  EXPECT_EQ(float8_value(DType::kFloat8E4M3FNUZ, 0x7F), 240.0);
  EXPECT_EQ(float8_value(DType::kFloat8E4M3FNUZ, 0x01), 0x1p-10);
  EXPECT_TRUE(std::isnan(float8_value(DType::kFloat8E4M3FNUZ, 0x80)));
  EXPECT_EQ(float8_value(DType::kFloat8E5M2, 0x7B), 57344.0);
  EXPECT_TRUE(std::isinf(float8_value(DType::kFloat8E5M2, 0x7C)));
  EXPECT_TRUE(std::isnan(float8_value(DType::kFloat8E5M2, 0x7D)));
  EXPECT_EQ(float8_value(DType::kFloat8E5M2FNUZ, 0x7F), 57344.0);
  EXPECT_EQ(float8_value(DType::kFloat8E5M2FNUZ, 0x01), 0x1p-17);
}

TEST(Fp8Variants, E4m3fnuzMeansHalfOfTheSameE4m3fnCode) {
  for (int code = 0; code < 0x7F; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    EXPECT_EQ(float8_value(DType::kFloat8E4M3FNUZ, c), kv_test::e4m3_value(c) / 2) << code;
  }
}

class Conversion : public ::testing::TestWithParam<DType> {};

TEST_P(Conversion, GivesEveryCodeTheNearestE4m3fnOfItsQuotient) {
  std::vector<std::uint8_t> codes(256), converted(256);
  for (int c = 0; c < 256; ++c) codes[c] = static_cast<std::uint8_t>(c);
  for (const float scale : {1.0f, 0.5f, 128.0f, 0.3f}) {
    kv_to_e4m3fn(Tensor(codes.data(), GetParam(), {16, 16}), Tensor(converted.data(), DType::kFloat8E4M3FN, {16, 16}),
                 scale);
    for (int c = 0; c < 256; ++c) {
      const double value = float8_value(GetParam(), codes[c]);
      if (std::isnan(value)) {
        EXPECT_EQ(converted[c] & 0x7F, 0x7F) << c;
      } else {
        EXPECT_EQ(converted[c], kv_test::nearest_e4m3(static_cast<float>(value / scale))) << c << " scale " << scale;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(EveryFloat8, Conversion,
                         ::testing::Values(DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                                           DType::kFloat8E5M2FNUZ));

TEST(Fp8Variants, HalfTheScaleKeepsE4m3fnuzCodes) {
  const kv::CodeTable table = kv::e4m3fn_codes(DType::kFloat8E4M3FNUZ, 0.5f);
  for (int code = 0; code < 256; ++code) {
    if (code == 0x80) {
      EXPECT_EQ(table[code] & 0x7F, 0x7F);
    } else {
      EXPECT_EQ(table[code], (code & 0x7F) == 0x7F ? code - 1 : code) << code;
    }
  }
}

TEST(Fp8Variants, RefusesWhatItCannotConvert) {
  std::vector<std::uint8_t> memory(64);
  const Tensor e5m2(memory.data(), DType::kFloat8E5M2, {64}), e4m3fn(memory.data(), DType::kFloat8E4M3FN, {64});
  EXPECT_THROW(kv_to_e4m3fn(Tensor(memory.data(), DType::kUInt8, {64}), e4m3fn), std::invalid_argument);
  EXPECT_THROW(kv_to_e4m3fn(e5m2, e5m2), std::invalid_argument);
  EXPECT_THROW(kv_to_e4m3fn(e5m2, Tensor(memory.data(), DType::kFloat8E4M3FN, {32})), std::invalid_argument);
  EXPECT_THROW(kv_to_e4m3fn(e5m2, e4m3fn, 0.0f), std::invalid_argument);
  EXPECT_THROW(kv_to_e4m3fn(e5m2, e4m3fn, std::nanf("")), std::invalid_argument);
}

}  // namespace
}  // namespace sparse_mla
