// KvCache: what is born, views of rows, and offsets past 4 GiB.
#include <cmath>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "kv/caches.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::kv_test {
namespace {

TEST(KvCache, IsBornWithItsScalesAndDequantisesToZeros) {
  for (const KvFormatInfo& info : kKvFormats) {
    SCOPED_TRACE(info.name);
    const KvCache cache({.format = info.format, .rows = 100});
    EXPECT_EQ(cache.is_quantised(), info.values == DType::kFloat8E4M3FN);
    EXPECT_EQ(cache.rows(), info.is_paged() ? 128 : 100);
    EXPECT_EQ(cache.width(), info.width != 0 ? info.width : 512);
    EXPECT_EQ(cache.view().scales.is_none(), !info.has_scale_tensor());
    Plain out(DType::kFloat32, cache.rows(), static_cast<int>(cache.width()));
    cache.dequantise(std::nullopt, out.rows.data);
    for (std::int64_t row = 0; row < cache.rows(); ++row) {
      for (int i = 0; i < cache.width(); ++i) ASSERT_EQ(out.get(row, i), 0.0);
    }
  }
}

TEST(KvCache, CountsTheBytesOfDataAndScales) {
  EXPECT_EQ(KvCache({.format = KvFormat::kQ8Kv8_576, .rows = 10}).bytes(), 5764u);
  EXPECT_EQ(KvCache({.format = KvFormat::kV32_656, .rows = 10}).bytes(), 6560u);
  EXPECT_EQ(KvCache({.format = KvFormat::kV4_584, .rows = 65, .page_size = 64}).bytes(), 2u * 37440u);
  EXPECT_EQ(KvCache({.format = KvFormat::kUnifiedFp8_1x64, .rows = 10, .width = 576}).bytes(), 5760u + 360u);
  EXPECT_EQ(KvCache({.format = KvFormat::kUnifiedBf16, .rows = 10, .width = 576}).bytes(), 11520u);
}

TEST(KvCache, RefusesSizesThatNoCacheHas) {
  EXPECT_THROW(KvCache({.format = KvFormat::kQ8Kv8_576, .rows = -1}), std::invalid_argument);
  EXPECT_THROW(KvCache({.format = KvFormat::kUnifiedBf16, .rows = 1, .width = 100}), std::invalid_argument);
  EXPECT_THROW(KvCache({.format = KvFormat::kUnifiedBf16, .rows = 1, .width = 0}), std::invalid_argument);
  EXPECT_THROW(KvCache({.format = KvFormat::kV4_584, .rows = 1, .page_size = 0}), std::invalid_argument);
  EXPECT_THROW(KvCache({.format = KvFormat::kQ8Kv8_576, .rows = std::int64_t{1} << 31}), std::invalid_argument);
  EXPECT_THROW(KvCache({.format = KvFormat::kQ8Kv8_576, .rows = 1}, {Device::Kind::kMeta, 0}), std::invalid_argument);
}

TEST(KvCache, GivesViewsOfRowsThatShareItsMemory) {
  std::mt19937_64 random(1);
  for (const KvFormatInfo& info : kKvFormats) {
    SCOPED_TRACE(info.name);
    const KvCache cache({.format = info.format, .rows = 128, .page_size = 32});
    Plain rows(DType::kFloat32, 32, static_cast<int>(cache.width()));
    rows.fill(random, 0, 0);
    kv_transfer(kv_append_call(rows.rows.data, std::nullopt, cache.view(64, 32)));
    for (int i = 0; i < cache.width(); ++i) {
      EXPECT_EQ(value_at(cache.view(), 63, i), 0.0);
      EXPECT_EQ(value_at(cache.view(), 96, i), 0.0);
      EXPECT_NEAR(value_at(cache.view(), 70, i), rows.get(6, i), 0.4);
      EXPECT_EQ(value_at(cache.view(64, 32), 6, i), value_at(cache.view(), 70, i));
    }
    EXPECT_THROW(cache.view(0, 129), std::out_of_range);
    EXPECT_THROW(cache.view(-1, 1), std::out_of_range);
  }
  const KvCache paged({.format = KvFormat::kV4_584, .rows = 128, .page_size = 32});
  EXPECT_THROW(paged.view(16, 32), std::invalid_argument);
}

TEST(KvCache, OutlivesTheObjectWhileSomeoneKeepsItsMemory) {
  std::shared_ptr<void> memory;
  KvRows view;
  {
    const KvCache cache({.format = KvFormat::kQ8Kv8_512, .rows = 4});
    memory = cache.keep_alive();
    view = cache.view();
  }
  Plain rows(DType::kFloat32, 4, 512);
  for (int i = 0; i < 512; ++i) {
    for (int row = 0; row < 4; ++row) rows.set(row, i, 2.0f);
  }
  kv_transfer(kv_append_call(rows.rows.data, std::nullopt, view));
  EXPECT_EQ(value_at(view, 3, 511), 2.0);
}

TEST(KvCache, GoesOnlyIntoTheEntryPointsThatReadIt) {
  PrefillCall prefill;
  PagedPool pool;
  for (const KvFormatInfo& info : kKvFormats) {
    const KvCache cache({.format = info.format, .rows = 64});
    if (info.prefill) {
      set_prefill_kv(prefill, cache.view());
      EXPECT_EQ(shape_string(prefill.kv), "(64, 1, " + std::to_string(info.width) + ")");
      EXPECT_EQ(prefill.kv_scale.tensor()->data, cache.view().scales.tensor()->data);
      EXPECT_TRUE(prefill.kv.is_contiguous());
    } else {
      EXPECT_THROW(set_prefill_kv(prefill, cache.view()), std::invalid_argument) << info.name;
    }
    if (info.decode) {
      set_decode_kv(pool, cache.view());
      EXPECT_EQ(pool.kv_scales.is_none(), !info.is_quantised());
    } else {
      EXPECT_THROW(set_decode_kv(pool, cache.view()), std::invalid_argument) << info.name;
    }
  }
}

// A pool of 8 GiB of address space, of which a few pages are touched.
class HugeMemory {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 30;
  HugeMemory()
      : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~HugeMemory() { munmap(data_, kBytes); }
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  void* data() const { return data_; }
  bool ok() const { return data_ != MAP_FAILED; }

 private:
  void* data_;
};

TEST(KvCache, ReachesRowsPastFourGiB) {
  const HugeMemory memory;
  ASSERT_TRUE(memory.ok());
  std::mt19937_64 random(2);
  Plain rows(DType::kFloat32, 3, 576);
  rows.fill(random, 0, 0);
  KvRows pool;
  pool.format = KvFormat::kV32_656;
  const std::int64_t count = static_cast<std::int64_t>(HugeMemory::kBytes) / 656;
  pool.data = Tensor(memory.data(), DType::kUInt8, {count, 656});
  std::vector<std::int32_t> slots{static_cast<std::int32_t>(count - 1), 7, 9000000};
  kv_transfer(kv_append_call(rows.rows.data, slots_tensor(slots), pool));
  Plain out(DType::kFloat32, 3, 576);
  kv_transfer(kv_dequantise_call(pool, slots_tensor(slots), out.rows.data));
  for (std::int64_t row = 0; row < 3; ++row) {
    for (int i = 0; i < 576; ++i) ASSERT_NEAR(out.get(row, i), rows.get(row, i), 0.3) << row << " " << i;
  }

  KvRows paged;
  paged.format = KvFormat::kV4_584;
  paged.page_size = 64;
  const std::int64_t pages = static_cast<std::int64_t>(HugeMemory::kBytes) / 37440;
  paged.data = Tensor(memory.data(), DType::kUInt8, {pages, 37440});
  Plain narrow(DType::kFloat32, 1, 512), back(DType::kFloat32, 1, 512);
  narrow.fill(random, 0, 0);
  std::vector<std::int32_t> last{static_cast<std::int32_t>(pages * 64 - 1)};
  kv_transfer(kv_append_call(narrow.rows.data, slots_tensor(last), paged));
  kv_transfer(kv_dequantise_call(paged, slots_tensor(last), back.rows.data));
  for (int i = 0; i < 512; ++i) ASSERT_NEAR(back.get(0, i), narrow.get(0, i), 0.3) << i;
}

}  // namespace
}  // namespace sparse_mla::kv_test
