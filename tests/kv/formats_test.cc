#include "sparse_mla/kv_formats.h"

#include <set>

#include <gtest/gtest.h>

namespace sparse_mla {
namespace {

TEST(KvFormats, AreIndexedByThemselvesAndKnownByName) {
  std::set<std::string_view> names;
  for (int i = 0; i < kKvFormatCount; ++i) {
    const KvFormatInfo& info = kKvFormats[i];
    EXPECT_EQ(static_cast<int>(info.format), i);
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_EQ(kv_format_from_name(info.name), info.format);
  }
  EXPECT_THROW(kv_format_from_name("fp8"), std::invalid_argument);
}

TEST(KvFormats, RowsHaveTheBytesOfTheirNames) {
  const auto bytes = [](KvFormat format, int width) { return kv_row_bytes(kv_format_info(format), width); };
  EXPECT_EQ(bytes(KvFormat::kQ8Kv8_576, 576), 576);
  EXPECT_EQ(bytes(KvFormat::kQ8Kv8_512, 512), 512);
  EXPECT_EQ(bytes(KvFormat::kV32_656, 576), 656);
  EXPECT_EQ(bytes(KvFormat::kV4_584, 512), 584);
  EXPECT_EQ(bytes(KvFormat::kUnifiedBf16, 512), 1024);
  EXPECT_EQ(bytes(KvFormat::kUnifiedFp8_1x64, 512), 512);
  EXPECT_EQ(kv_row_scales(kv_format_info(KvFormat::kUnifiedFp8_1x64), 512), 8);
  EXPECT_EQ(kv_row_scales(kv_format_info(KvFormat::kV32_656), 576), 4);
  EXPECT_EQ(kv_row_scales(kv_format_info(KvFormat::kV4_584), 512), 7);
}

TEST(KvFormats, PagesOfV4ArePaddedTo576AndTellTheirSize) {
  const KvFormatInfo& v4 = kv_format_info(KvFormat::kV4_584);
  EXPECT_EQ(kv_page_bytes(v4, 512, 1), 1152);
  EXPECT_EQ(kv_page_bytes(v4, 512, 2), 1728);
  EXPECT_EQ(kv_page_bytes(v4, 512, 64), 37440);    // 37376, padded by 64
  EXPECT_EQ(kv_page_bytes(v4, 512, 72), 42048);    // nothing to pad
  EXPECT_EQ(kv_page_bytes(v4, 512, 256), 149760);  // 149504, padded by 256
  std::set<std::int64_t> sizes;
  for (std::int64_t page_size = 1; page_size <= 1000; ++page_size) {
    const std::int64_t bytes = kv_page_bytes(v4, 512, page_size);
    EXPECT_EQ(bytes % 576, 0);
    EXPECT_GE(bytes, 584 * page_size);
    EXPECT_LT(bytes, 584 * page_size + 576);
    EXPECT_EQ(v4_page_size(bytes), page_size);
    EXPECT_TRUE(sizes.insert(bytes).second);
  }
  for (std::int64_t bytes = 0; bytes < 20000; ++bytes) {
    EXPECT_TRUE(v4_page_size(bytes) == 0 || sizes.contains(bytes)) << bytes;
  }
}

TEST(KvFormats, EachIsReadByTheEntryPointsThatSayTheyDo) {
  for (const KvFormatInfo& info : kKvFormats) {
    EXPECT_EQ(info.prefill, info.name.starts_with("q8kv8_")) << info.name;
    EXPECT_EQ(info.decode, info.name.starts_with("unified_")) << info.name;
  }
}

}  // namespace
}  // namespace sparse_mla
