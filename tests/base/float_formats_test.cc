#include "base/float_formats.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace sparse_mla {
namespace {

// The value of an e4m3fn code straight from the OCP formula, in double.
double e4m3fn_by_formula(int code) {
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  const int exponent = (code >> 3) & 0xF;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa / 8.0, -6);
  return sign * std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
}

TEST(E4m3fn, EveryCodeHasTheValueOfTheFormula) {
  for (int code = 0; code < 256; ++code) {
    const double expected = e4m3fn_by_formula(code);
    const float got = float_from_e4m3fn(static_cast<std::uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else {
      EXPECT_EQ(got, static_cast<float>(expected)) << code;
      EXPECT_EQ(std::signbit(got), (code & 0x80) != 0) << code;
    }
  }
}

TEST(E4m3fn, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(e4m3fn_from_float(float_from_e4m3fn(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(E4m3fn, RoundsToNearestWithTiesToEven) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = float_from_e4m3fn(static_cast<std::uint8_t>(code));
    const float high = float_from_e4m3fn(static_cast<std::uint8_t>(code + 1));
    const float middle = 0.5f * (low + high);  // exact: one bit more than either
    EXPECT_EQ(e4m3fn_from_float(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(e4m3fn_from_float(std::nextafter(middle, low)), code) << code;
    EXPECT_EQ(e4m3fn_from_float(std::nextafter(middle, high)), code + 1) << code;
    EXPECT_EQ(e4m3fn_from_float(-middle), (code % 2 == 0 ? code : code + 1) | 0x80) << code;
  }
}

TEST(E4m3fn, SaturatesAndKeepsNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float value : {448.0f, 449.0f, 464.0f, 1e30f, infinity}) {
    EXPECT_EQ(e4m3fn_from_float(value), 0x7E) << value;
    EXPECT_EQ(e4m3fn_from_float(-value), 0xFE) << value;
  }
  EXPECT_EQ(e4m3fn_from_float(std::nanf("")) & 0x7F, 0x7F);
}

TEST(Bf16, EveryPatternSurvivesARoundTrip) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = float_from_bf16(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(value))));
    } else {
      EXPECT_EQ(bf16_from_float(value), bits);
    }
  }
}

TEST(Bf16, TiesGoToEven) {
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3F808001u)), 0x3F81);
}

TEST(F16, EveryPatternSurvivesARoundTripAndMatchesTheFormula) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = float_from_f16(static_cast<std::uint16_t>(bits));
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(value))));
      continue;
    }
    if (exponent < 31) {
      const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
      EXPECT_EQ(std::fabs(value), static_cast<float>(magnitude)) << bits;
    }
    EXPECT_EQ(f16_from_float(value), bits);
  }
}

TEST(F16, RoundsToNearestEvenAndOverflowsToInfinity) {
  for (int bits = 0; bits < 0x7BFF; ++bits) {
    const double low = float_from_f16(static_cast<std::uint16_t>(bits));
    const double high = float_from_f16(static_cast<std::uint16_t>(bits + 1));
    EXPECT_EQ(f16_from_float(static_cast<float>(0.5 * (low + high))), bits % 2 == 0 ? bits : bits + 1) << bits;
  }
  EXPECT_EQ(f16_from_float(65519.0f), 0x7BFF);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7C00);
}

}  // namespace
}  // namespace sparse_mla
