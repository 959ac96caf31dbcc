// Transfers between every pair of formats, on awkward views: bounds against float64, slots, duplicates, pages.
#include "kv/transfer.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "dispatch/kv_problem.h"
#include "kv/caches.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::kv_test {
namespace {

constexpr std::int64_t kPageSizes[] = {1, 2, 61, 64, 256};

std::vector<std::byte> bytes_of(const Cache& cache) { return cache.data; }

// Checks one row of `cache` against the row of plain values that was put there.
void expect_within_bound(const KvRows& cache, std::int64_t slot, const Plain& rows, std::int64_t row, int width) {
  for (int i = 0; i < width; ++i) {
    const double x = rows.get(row, i);
    const double error = std::fabs(value_at(cache, slot, i) - x);
    const double bound = quantisation_bound(cache, x, scale_at(cache, slot, i), is_front(cache, i));
    ASSERT_LE(error, bound) << name_of(cache) << " slot " << slot << " value " << i << ": " << x;
  }
}

// The scale that docs/kv-formats.md gives a group.
double expected_scale(const KvRows& cache, const Plain& rows, std::int64_t row, int first, int count, KvScaling scaling) {
  double a = 0;
  for (int i = first; i < first + count; ++i) a = std::max(a, std::fabs(rows.get(row, i)));
  if (a == 0) return 1;
  if (scaling == KvScaling::kAmax && cache.format != KvFormat::kV4_584) {
    return std::max(static_cast<float>(a) / 448.0f, 0x1p-126f);
  }
  double s = 0x1p-126;
  while (s * 448 < a) s *= 2;
  return s;
}

void expect_scales(const KvRows& cache, std::int64_t slot, const Plain& rows, std::int64_t row, int width,
                   KvScaling scaling) {
  const KvFormatInfo& info = kv_format_info(*cache.format);
  for (int first = 0; info.group != 0 && first < width - info.tail; first += info.group) {
    ASSERT_EQ(scale_at(cache, slot, first), expected_scale(cache, rows, row, first, info.group, scaling))
        << info.name << " slot " << slot << " value " << first;
  }
}

struct Case {
  KvFormat format;
  int width;
};
std::vector<Case> every_format() {
  std::vector<Case> cases;
  for (int width : {512, 576}) {
    for (KvFormat format : formats_of_width(width)) cases.push_back({format, width});
  }
  cases.push_back({KvFormat::kUnifiedBf16, 64});
  cases.push_back({KvFormat::kUnifiedFp8_1x64, 192});
  cases.push_back({KvFormat::kUnifiedFp8_1x64, 1024});
  return cases;
}
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(kv_format_name(info.param.format)) + "_d" + std::to_string(info.param.width);
}

class EveryFormat : public ::testing::TestWithParam<Case> {};

// A scatter of rows over a random choice of slots: each row is where it belongs, within its bound, and every byte of
// every other row is as it was.
TEST_P(EveryFormat, TakesScatteredRowsOnPagesOfAnySize) {
  std::mt19937_64 random(1);
  const auto [format, width] = GetParam();
  for (const std::int64_t page_size : kPageSizes) {
    if (page_size == 1 && format == KvFormat::kV4_584) continue;
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      SCOPED_TRACE("pages of " + std::to_string(page_size) + ", " + std::string(torch_name(dtype)));
      Cache cache(format, 2 * page_size + 7, width, page_size);
      if (!cache.scales.empty() && format != KvFormat::kUnifiedFp8_1x64) cache.scales[0] = 0.013f;
      Plain rows(dtype, 9, width, 16);
      rows.fill(random, -3, 1);
      std::vector<std::int32_t> slots(9, -1);
      std::set<std::int32_t> used;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (i == 3) continue;
        do slots[i] = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(cache.count));
        while (!used.insert(slots[i]).second);
      }
      kv_transfer(kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows), {.threads = 3});
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] >= 0) expect_within_bound(cache.rows, slots[i], rows, static_cast<std::int64_t>(i), width);
      }
      // Every byte that is not of a row that was named holds the fill: a second cache gets those rows' bytes alone.
      Cache alone(format, 2 * page_size + 7, width, page_size);
      alone.scales = cache.scales;
      if (format == KvFormat::kUnifiedFp8_1x64) continue;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] < 0) continue;
        std::vector<std::int32_t> one{slots[i]};
        Tensor row = rows.rows.data;
        row.data = row.as<std::byte>() + static_cast<std::int64_t>(i) * row.strides[0] *
                                             static_cast<std::int64_t>(bytes_per_element(dtype));
        row.shape[0] = 1;
        kv_transfer(kv_append_call(row, slots_tensor(one), alone.rows));
      }
      EXPECT_EQ(bytes_of(alone), bytes_of(cache));
    }
  }
}

TEST_P(EveryFormat, MakesTheScalesOfTheFormulaOverSixtyOctaves) {
  std::mt19937_64 random(2);
  const auto [format, width] = GetParam();
  if (!kv_format_info(format).has_row_scales()) return;
  Cache cache(format, 128, width, 64);
  Plain rows(DType::kFloat32, 128, width);
  rows.fill(random, -30, 30);
  for (int i = 0; i < width; ++i) rows.set(5, i, 0.0f);
  for (int i = 0; i < width; ++i) rows.set(6, i, i % 64 == 0 ? 448.0f : 1.0f);          // a = 448: scale 1
  for (int i = 0; i < width; ++i) rows.set(7, i, i % 64 == 0 ? -448.00003f : 0.0f);     // just past it
  for (int i = 0; i < width; ++i) rows.set(8, i, i % 64 == 0 ? 1e-41f : 0.0f);          // the least scale
  for (int i = 0; i < width; ++i) rows.set(9, i, i % 64 == 0 ? 3.3e38f : 1e30f);
  for (const KvScaling scaling : {KvScaling::kAmax, KvScaling::kAmaxPowerOfTwo}) {
    if (format == KvFormat::kV4_584 && scaling == KvScaling::kAmax) continue;
    kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.rows, {.scaling = scaling, .given = {}}));
    for (std::int64_t row = 0; row < 128; ++row) {
      expect_scales(cache.rows, row, rows, row, width, scaling);
      expect_within_bound(cache.rows, row, rows, row, width);
    }
  }
}

TEST_P(EveryFormat, TakesGivenScales) {
  std::mt19937_64 random(3);
  const auto [format, width] = GetParam();
  const KvFormatInfo& info = kv_format_info(format);
  if (!info.has_row_scales()) return;
  const std::int64_t groups = kv_row_scales(info, width);
  Cache cache(format, 64, width, 64);
  Plain rows(DType::kFloat32, 20, width);
  rows.fill(random, -2, 2);
  std::vector<float> given(static_cast<std::size_t>(20 * groups));
  std::uniform_real_distribution<float> exponent(-12.0f, 0.0f);
  for (float& s : given) s = std::exp2(exponent(random));
  const KvScales scales{KvScaling::kGiven, Tensor(given.data(), DType::kFloat32, {20, groups})};
  KvCall call = kv_append_call(rows.rows.data, std::nullopt, cache.rows, scales);
  kv_transfer(call);
  for (std::int64_t row = 0; row < 20; ++row) {
    for (std::int64_t k = 0; k < groups; ++k) {
      double s = given[row * groups + k];
      if (format == KvFormat::kV4_584) s = std::exp2(std::ceil(std::log2(s)));
      ASSERT_EQ(scale_at(cache.rows, row, static_cast<int>(k) * info.group), s);
    }
    expect_within_bound(cache.rows, row, rows, row, width);
  }
}

TEST_P(EveryFormat, KeepsNaNAndSaturatesInfinity) {
  const auto [format, width] = GetParam();
  const KvFormatInfo& info = kv_format_info(format);
  Cache cache(format, 64, width, 64);
  Plain rows(DType::kFloat32, 1, width);
  for (int i = 0; i < width; ++i) rows.set(0, i, i % 64 == 1 ? NAN : i % 64 == 2 ? -INFINITY : 1.0f);
  kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.rows));
  for (int i = 0; i < width; ++i) {
    const double got = value_at(cache.rows, 0, i);
    if (i % 64 == 1) {
      EXPECT_TRUE(std::isnan(got)) << i;
    } else if (i % 64 == 2) {
      EXPECT_EQ(got, info.is_quantised() && is_front(cache.rows, i) ? -448 * scale_at(cache.rows, 0, i) : -INFINITY) << i;
    } else {
      EXPECT_LE(std::fabs(got - 1.0), 0x1p-4) << i;  // neither of them spoils the scale
    }
  }
}

// Of the rows for one slot the last is written, on any number of threads; a row whose source is none does not count.
TEST_P(EveryFormat, LetsTheLastOfDuplicatesWin) {
  std::mt19937_64 random(4);
  const auto [format, width] = GetParam();
  for (const int count : {2, 40, 700}) {
    Cache cache(format, 64, width, 64), pool(format, 30000, width, 64);
    Plain rows(DType::kFloat32, count, width);
    rows.fill(random, -1, 1);
    std::vector<std::int64_t> slots(static_cast<std::size_t>(count)), far(static_cast<std::size_t>(count));
    std::vector<std::int64_t> last(64, -1);
    for (int i = 0; i < count; ++i) {
      slots[i] = static_cast<std::int64_t>(random() % 20);
      far[i] = slots[i] + 29000;
      last[slots[i]] = i;
    }
    if (!cache.scales.empty() && format != KvFormat::kUnifiedFp8_1x64) cache.scales[0] = pool.scales[0] = 0.02f;
    kv_transfer(kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows), {.threads = 4});
    kv_transfer(kv_append_call(rows.rows.data, slots_tensor(far), pool.rows), {.threads = 4});
    for (std::int64_t slot = 0; slot < 20; ++slot) {
      if (last[slot] < 0) continue;
      expect_within_bound(cache.rows, slot, rows, last[slot], width);
      expect_within_bound(pool.rows, slot + 29000, rows, last[slot], width);
    }
  }
}

// What a check would refuse, without the check: nothing is read or written there.
TEST_P(EveryFormat, SkipsSlotsThatAreNone) {
  std::mt19937_64 random(5);
  const auto [format, width] = GetParam();
  Cache cache(format, 64, width, 64);
  const std::vector<std::byte> before = cache.data;
  Plain rows(DType::kBFloat16, 5, width);
  rows.fill(random, 0, 0);
  std::vector<std::int64_t> slots{-1, 64, -7, std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::min()};
  const KvCall append = kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows);
  kv::transfer(dispatch::kv_transfer_problem(append), 2);
  EXPECT_EQ(cache.data, before);
  EXPECT_THROW(kv_transfer(append), InvalidCall);
  Plain out(DType::kFloat32, 5, width);
  const std::vector<std::byte> out_before = out.data;
  kv::transfer(dispatch::kv_transfer_problem(kv_dequantise_call(cache.rows, slots_tensor(slots), out.rows.data)), 2);
  EXPECT_EQ(out.data, out_before);
}

TEST_P(EveryFormat, DequantisesToTheRoundedValue) {
  std::mt19937_64 random(6);
  const auto [format, width] = GetParam();
  Cache cache(format, 122, width, 61);
  Plain rows(DType::kFloat32, cache.count, width);
  rows.fill(random, -20, 10);
  if (!cache.scales.empty() && format != KvFormat::kUnifiedFp8_1x64) cache.scales[0] = 1.7f;
  kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.rows));
  std::vector<std::int32_t> slots{121, 0, 61, 60, 7, 7};
  Plain wide(DType::kFloat32, 6, width, 16), narrow(DType::kBFloat16, 6, width);
  kv_transfer(kv_dequantise_call(cache.rows, slots_tensor(slots), wide.rows.data));
  kv_transfer(kv_dequantise_call(cache.rows, slots_tensor(slots), narrow.rows.data));
  for (std::int64_t row = 0; row < 6; ++row) {
    for (int i = 0; i < width; ++i) {
      const auto expected = static_cast<float>(value_at(cache.rows, slots[row], i));
      ASSERT_EQ(wide.get(row, i), expected) << row << " " << i;
      ASSERT_EQ(narrow.get(row, i), bf16_value(nearest_bf16(expected))) << row << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, ::testing::ValuesIn(every_format()), case_name);

// ---- pairs of formats -----------------------------------------------------------------------------------------------

TEST(Convert, GoesBetweenAllFormatsOfOneWidth) {
  std::mt19937_64 random(10);
  for (const int width : {512, 576}) {
    for (const KvFormat from : formats_of_width(width)) {
      Cache source(from, 61 * 3, width, 61);
      Plain rows(DType::kFloat32, source.count, width);
      rows.fill(random, -4, 4);
      if (!source.scales.empty() && from != KvFormat::kUnifiedFp8_1x64) source.scales[0] = 0.3f;
      kv_transfer(kv_append_call(rows.rows.data, std::nullopt, source.rows));
      for (const KvFormat to : formats_of_width(width)) {
        SCOPED_TRACE(name_of(source.rows) + " to " + std::string(kv_format_name(to)));
        Cache target(to, source.count, width, 2);
        if (!target.scales.empty() && to != KvFormat::kUnifiedFp8_1x64) target.scales[0] = 0.4f;
        kv_transfer(kv_convert_call(source.rows, target.rows));
        for (std::int64_t row = 0; row < source.count; ++row) {
          for (int i = 0; i < width; ++i) {
            const double x = static_cast<float>(value_at(source.rows, row, i));
            const double s = scale_at(target.rows, row, i);
            const double bound = quantisation_bound(target.rows, x, s, is_front(target.rows, i));
            ASSERT_LE(std::fabs(value_at(target.rows, row, i) - x), bound) << row << " " << i;
          }
        }
      }
    }
  }
}

TEST(Convert, CopiesCodesAndScalesBetweenEqualFormats) {
  std::mt19937_64 random(11);
  for (const auto& [format, width] : every_format()) {
    if (!kv_format_info(format).has_row_scales()) continue;
    Cache source(format, 128, width, 64), target(format, 128, width, 2);
    Plain rows(DType::kFloat32, 128, width);
    rows.fill(random, -30, 30);
    kv_transfer(kv_append_call(rows.rows.data, std::nullopt, source.rows));
    kv_transfer(kv_convert_call(source.rows, target.rows));
    for (std::int64_t row = 0; row < 128; ++row) {
      for (int i = 0; i < width; ++i) {
        ASSERT_EQ(value_at(target.rows, row, i), value_at(source.rows, row, i));
        ASSERT_EQ(scale_at(target.rows, row, i), scale_at(source.rows, row, i));
      }
    }
  }
}

TEST(Convert, MakesTheOneScaleOfACacheFromItsRows) {
  std::mt19937_64 random(12);
  Plain rows(DType::kBFloat16, 300, 576);
  rows.fill(random, -5, 5);
  std::vector<std::int32_t> slots(300);
  for (int i = 0; i < 300; ++i) slots[i] = i == 17 ? -1 : i;
  for (int i = 0; i < 576; ++i) rows.set(17, i, 1e6f);  // a row that is skipped does not count
  double a = 0;
  for (int row = 0; row < 300; ++row) {
    for (int i = 0; row != 17 && i < 576; ++i) a = std::max(a, std::fabs(rows.get(row, i)));
  }
  for (const KvScaling scaling : {KvScaling::kAmax, KvScaling::kAmaxPowerOfTwo}) {
    Cache cache(KvFormat::kQ8Kv8_576, 300, 576);
    kv_transfer(kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows, {.scaling = scaling, .given = {}}),
                {.threads = 3});
    const double s = cache.scales[0];
    if (scaling == KvScaling::kAmax) {
      EXPECT_EQ(s, static_cast<float>(a) / 448.0f);
    } else {
      EXPECT_TRUE(std::ldexp(1.0, std::ilogb(s)) == s && a <= 448 * s && a > 224 * s) << s;
    }
    for (std::int64_t row = 0; row < 300; ++row) {
      if (row != 17) expect_within_bound(cache.rows, row, rows, row, 576);
    }
  }
}

// ---- the step before a Q8KV8 prefill --------------------------------------------------------------------------------

TEST(Gather, RequantisesNamedRowsAndRemapsTheirIndices) {
  std::mt19937_64 random(13);
  for (const auto& [format, width] : every_format()) {
    if (!q8kv8_format(width) || kv_format_info(format).prefill) continue;
    SCOPED_TRACE(kv_format_name(format));
    Cache pool(format, 61 * 5, width, 61);
    Plain rows(DType::kFloat32, pool.count, width);
    rows.fill(random, -1, 1);
    kv_transfer(kv_append_call(rows.rows.data, std::nullopt, pool.rows));
    constexpr std::int64_t kQueries = 5, kTopk = 24, kFirst = 3;
    std::vector<std::int32_t> indices(kQueries * kTopk), remapped(kQueries * kTopk, 99);
    for (auto& index : indices) index = static_cast<std::int32_t>(random() % 306) - 1;
    Cache workspace(*q8kv8_format(width), kFirst + kQueries * kTopk, width);
    workspace.scales[0] = 0.02f;
    const std::vector<std::byte> before = workspace.data;
    kv_transfer(kv_gather_call(pool.rows, Tensor(indices.data(), DType::kInt32, {kQueries, 1, kTopk}), workspace.rows,
                               Tensor(remapped.data(), DType::kInt32, {kQueries, 1, kTopk}), kFirst),
                {.threads = 2});
    for (std::int64_t k = 0; k < kQueries * kTopk; ++k) {
      if (indices[k] < 0) {
        EXPECT_EQ(remapped[k], -1);
        EXPECT_TRUE(std::isnan(value_at(workspace.rows, kFirst + k, 0)));  // as it was
        continue;
      }
      ASSERT_EQ(remapped[k], kFirst + k);
      for (int i = 0; i < width; ++i) {
        const double x = static_cast<float>(value_at(pool.rows, indices[k], i));
        const auto expected = nearest_e4m3(static_cast<float>(x / workspace.scales[0]));
        ASSERT_EQ(value_at(workspace.rows, kFirst + k, i), e4m3_value(expected) * workspace.scales[0]) << k << " " << i;
      }
    }
    for (std::int64_t row = 0; row < kFirst; ++row) EXPECT_TRUE(std::isnan(value_at(workspace.rows, row, 0)));
  }
}

TEST(Gather, SkipsIndicesThatAreNone) {
  Cache pool(KvFormat::kV32_656, 10, 576, 1, 0);
  Cache workspace(KvFormat::kQ8Kv8_576, 4, 576);
  std::vector<std::int32_t> indices{3, 10, -2147483647 - 1, 2147483647}, remapped(4, 99);
  const KvCall call = kv_gather_call(pool.rows, slots_tensor(indices), workspace.rows, slots_tensor(remapped));
  kv::transfer(dispatch::kv_transfer_problem(call), 1);
  EXPECT_EQ(remapped, (std::vector<std::int32_t>{0, -1, -1, -1}));
  EXPECT_EQ(value_at(workspace.rows, 0, 5), 0.0);
  EXPECT_TRUE(std::isnan(value_at(workspace.rows, 1, 5)));
  EXPECT_THROW(kv_transfer(call), InvalidCall);
}

TEST(Transfer, OfNoRowsTouchesNothing) {
  Cache cache(KvFormat::kQ8Kv8_512, 4, 512);
  const std::vector<std::byte> before = cache.data;
  Plain rows(DType::kBFloat16, 0, 512);
  kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.rows, {.scaling = KvScaling::kAmax, .given = {}}));
  EXPECT_EQ(cache.data, before);
  EXPECT_EQ(cache.scales[0], 1.0f);
}

}  // namespace
}  // namespace sparse_mla::kv_test
