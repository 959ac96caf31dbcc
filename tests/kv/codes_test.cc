// Bit by bit: which code a value gets, and which value a code has, on every instruction set of this machine.
#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "cpu/cpu.h"
#include "kv/caches.h"

namespace sparse_mla::kv_test {
namespace {

constexpr int kWidth = 512;
constexpr int kBf16Codes = 1 << 16;

class Codes : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { cpu::force_simd_target(GetParam()); }
  void TearDown() override { cpu::force_simd_target(""); }
};

// All 2^16 bf16 numbers, 512 a row.
Plain every_bf16() {
  Plain rows(DType::kBFloat16, kBf16Codes / kWidth, kWidth);
  auto* bits = rows.rows.data.as<std::uint16_t>();
  for (int i = 0; i < kBf16Codes; ++i) bits[i] = static_cast<std::uint16_t>(i);
  return rows;
}

// Their codes in a q8kv8_512 cache of this scale, in order.
std::vector<std::uint8_t> codes_of_every_bf16(float scale) {
  Plain rows = every_bf16();
  Cache cache(KvFormat::kQ8Kv8_512, kBf16Codes / kWidth, kWidth);
  cache.scales[0] = scale;
  kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.rows));
  std::vector<std::uint8_t> codes;
  for (std::int64_t row = 0; row < cache.count; ++row) {
    const auto* from = cache.rows.data.as<std::uint8_t>() + row * cache.rows.data.strides[0];
    codes.insert(codes.end(), from, from + kWidth);
  }
  return codes;
}

TEST_P(Codes, EveryBf16GetsTheNearestCodeOfItsQuotient) {
  for (const float scale : {1.0f, 0.37f, 3.1f, 0x1p-30f, 1.7e9f, 0x1p-120f, 2.9e-33f}) {
    const std::vector<std::uint8_t> codes = codes_of_every_bf16(scale);
    for (int i = 0; i < kBf16Codes; ++i) {
      const double x = bf16_value(static_cast<std::uint16_t>(i));
      if (std::isnan(x)) {
        ASSERT_EQ(codes[i] & 0x7F, 0x7F) << i;
        continue;
      }
      const auto quotient = static_cast<float>(x / scale);  // one rounding: 53 bits are more than twice 24 and two
      ASSERT_EQ(codes[i], nearest_e4m3(quotient)) << "bf16 " << i << " under scale " << scale;
    }
  }
}

// FNV-1a over the codes that torch 2.14's `.to(torch.float8_e4m3fn)` gives the 34754 bf16 numbers of at most 448.
TEST_P(Codes, EqualTorchsOnEveryBf16UpToTheLimit) {
  const std::vector<std::uint8_t> codes = codes_of_every_bf16(1.0f);
  std::uint64_t hash = 0xcbf29ce484222325;
  int count = 0;
  for (int i = 0; i < kBf16Codes; ++i) {
    if (!(std::fabs(bf16_value(static_cast<std::uint16_t>(i))) <= 448)) continue;
    hash = (hash ^ codes[i]) * 0x100000001b3;
    ++count;
  }
  EXPECT_EQ(count, 34754);
  EXPECT_EQ(hash, 0x2b5889fa6ad3c93u);
}

TEST_P(Codes, EveryCodeHasItsValueTimesTheScale) {
  for (const float scale : {1.0f, 0.37f, 0x1p-30f, 1.7e9f, 1e-38f}) {
    Cache cache(KvFormat::kQ8Kv8_512, 1, kWidth);
    cache.scales[0] = scale;
    for (int i = 0; i < kWidth; ++i) cache.rows.data.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
    Plain out(DType::kFloat32, 1, kWidth);
    kv_transfer(kv_dequantise_call(cache.rows, std::nullopt, out.rows.data));
    for (int i = 0; i < 256; ++i) {
      const auto expected = static_cast<float>(e4m3_value(static_cast<std::uint8_t>(i)) * scale);
      const auto got = static_cast<float>(out.get(0, i));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(expected)) << i << " scale " << scale;
      }
    }
  }
}

TEST_P(Codes, QuotientsThatLieOnOrBesideATieRoundAsTheFormulaDoes) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<float> mantissa(1.0f, 2.0f);
  Plain rows(DType::kFloat32, 1, kWidth);
  for (int round = 0; round < 200; ++round) {
    const float scale = std::ldexp(mantissa(random), static_cast<int>(random() % 60) - 30);
    for (int i = 0; i < kWidth; ++i) {
      const int code = i % 126;
      const double tie = (e4m3_value(static_cast<std::uint8_t>(code)) + e4m3_value(static_cast<std::uint8_t>(code + 1))) / 2;
      float x = static_cast<float>(tie * scale);
      for (int step = static_cast<int>(random() % 5) - 2; step != 0; step += step < 0 ? 1 : -1) {
        x = std::nextafter(x, step < 0 ? 0.0f : HUGE_VALF);
      }
      rows.set(0, i, i % 2 == 0 ? x : -x);
    }
    Cache cache(KvFormat::kQ8Kv8_512, 1, kWidth);
    cache.scales[0] = scale;
    kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.rows));
    for (int i = 0; i < kWidth; ++i) {
      const auto quotient = static_cast<float>(rows.get(0, i) / scale);
      ASSERT_EQ(cache.rows.data.as<std::uint8_t>()[i], nearest_e4m3(quotient)) << rows.get(0, i) << " / " << scale;
    }
  }
}

TEST_P(Codes, EveryFp16AndBf16SurvivesItsOwnFormat) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Plain rows(dtype, kBf16Codes / kWidth, kWidth);
    auto* bits = rows.rows.data.as<std::uint16_t>();
    for (int i = 0; i < kBf16Codes; ++i) bits[i] = static_cast<std::uint16_t>(i);
    const KvFormat format = dtype == DType::kFloat16 ? KvFormat::kUnifiedFp16 : KvFormat::kUnifiedBf16;
    Cache cache(format, kBf16Codes / kWidth, kWidth);
    kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.rows));
    for (int i = 0; i < kBf16Codes; ++i) {
      const double x = rows.get(i / kWidth, i % kWidth);
      const double got = value_at(cache.rows, i / kWidth, i % kWidth);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(got)) << i;
      } else {
        ASSERT_EQ(got, x) << i;
        ASSERT_EQ(std::signbit(got), std::signbit(x)) << i;
      }
    }
  }
}

TEST_P(Codes, Float32RoundsToNearestBf16AndFp16) {
  std::mt19937_64 random(9);
  Plain rows(DType::kFloat32, 64, kWidth);
  for (std::int64_t row = 0; row < 64; ++row) {
    for (int i = 0; i < kWidth; ++i) {
      std::uint32_t bits = static_cast<std::uint32_t>(random());
      if (random() % 4 == 0) bits = (bits & 0xFFFF0000u) | 0x8000u;  // a tie of bf16
      rows.set(row, i, std::bit_cast<float>(bits));
    }
  }
  Cache bf16(KvFormat::kUnifiedBf16, 64, kWidth), f16(KvFormat::kUnifiedFp16, 64, kWidth);
  kv_transfer(kv_append_call(rows.rows.data, std::nullopt, bf16.rows));
  kv_transfer(kv_append_call(rows.rows.data, std::nullopt, f16.rows));
  for (std::int64_t row = 0; row < 64; ++row) {
    for (int i = 0; i < kWidth; ++i) {
      const auto x = static_cast<float>(rows.get(row, i));
      if (std::isnan(x)) continue;
      ASSERT_EQ(value_at(bf16.rows, row, i), bf16_value(nearest_bf16(x))) << x;
      const double got = value_at(f16.rows, row, i);
      if (std::fabs(x) >= 65520) {
        ASSERT_TRUE(std::isinf(got)) << x;
      } else {
        ASSERT_LE(std::fabs(got - x), std::max(std::fabs(x) * 0x1p-11, 0x1p-25)) << x;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Codes, ::testing::ValuesIn(cpu::simd_targets()));

}  // namespace
}  // namespace sparse_mla::kv_test
