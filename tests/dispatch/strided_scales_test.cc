// The contract takes kv_scales whose last dimension is strided: the entry points copy them.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sparse_mla/attention.h"
#include "sparse_mla/contract.h"

namespace sparse_mla {
namespace {

constexpr std::int64_t kTokens = 2, kHeads = 3, kWidth = 128, kPages = 5, kGroups = kWidth / 64;

// A pool with a scale of its own for each group, stored row by row and column by column.
struct Pool {
  std::vector<std::uint8_t> kv = std::vector<std::uint8_t>(kPages * kWidth);
  std::vector<float> by_row = std::vector<float>(kPages * kGroups), by_column = by_row;
  std::array<std::int32_t, 4> indices{4, 1, 0, 3};
  std::array<std::int32_t, kTokens + 1> indptr{0, 2, 4};

  explicit Pool(int seed) {
    for (std::size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<std::uint8_t>((i * 37 + seed) % 0x7F);
    for (std::int64_t page = 0; page < kPages; ++page) {
      for (std::int64_t group = 0; group < kGroups; ++group) {
        const float scale = std::exp2(static_cast<float>(group * kPages + page - seed));
        by_row[page * kGroups + group] = by_column[group * kPages + page] = scale;
      }
    }
  }

  PagedPool view(bool strided, Device device = Device::cpu()) {
    const std::array<std::int64_t, 2> shape{kPages, kGroups}, strides{1, kPages};
    return {.unified_kv = Tensor(kv.data(), DType::kFloat8E4M3FN, {kPages, kWidth}, device),
            .kv_indices = Tensor(indices.data(), DType::kInt32, {4}, device),
            .kv_indptr = Tensor(indptr.data(), DType::kInt32, {kTokens + 1}, device),
            .kv_scales = strided ? Tensor(by_column.data(), DType::kFloat32, shape, strides, device)
                                 : Tensor(by_row.data(), DType::kFloat32, shape, device)};
  }
};

struct Call {
  std::vector<std::uint16_t> q = std::vector<std::uint16_t>(kTokens * kHeads * kWidth, 0x3C00);  // bf16 2^-7
  std::vector<std::uint16_t> out = std::vector<std::uint16_t>(q.size(), 0x7FC0);                 // NaN
  Pool first{7}, second{9};
  std::array<float, kHeads> sink{0.0f, 1.0f, -1.0f};
  DecodeCall call;

  Call(bool strided, bool two_pools, Device device = Device::cpu()) {
    call.q = Tensor(q.data(), DType::kBFloat16, {kTokens, kHeads, kWidth}, device);
    call.pool = first.view(strided, device);
    if (two_pools) call.second_pool = second.view(strided, device);
    call.attn_sink = Tensor(sink.data(), DType::kFloat32, {kHeads}, device);
    call.softmax_scale = 0.01;
    call.out = Tensor(out.data(), DType::kBFloat16, {kTokens, kHeads, kWidth}, device);
  }
};

TEST(StridedScales, GiveTheBitsOfDenseOnes) {
  for (const bool two_pools : {false, true}) {
    Call dense(false, two_pools), strided(true, two_pools);
    decode(dense.call);
    decode(strided.call);
    EXPECT_EQ(strided.out, dense.out);
    EXPECT_NE(dense.out, std::vector<std::uint16_t>(dense.out.size(), 0x7FC0));
  }
  Call dense(false, false), strided(true, false);
  decode(dense.call);
  strided.call.pool.kv_scales = Tensor(strided.first.by_column.data(), DType::kFloat32, {kPages, kGroups});
  decode(strided.call);
  EXPECT_NE(strided.out, dense.out) << "the scales' order does not show in the result";
}

TEST(StridedScales, AreRefusedOnADeviceWhereNothingIsAllocated) {
  Call call(true, false, Device::cuda(0));
  try {
    decode(call.call);
    FAIL() << "accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "kv_scales on cuda:0 must be contiguous in its last dimension, got strides (1, 5): pass "
                 "kv_scales.contiguous()");
  }
}

}  // namespace
}  // namespace sparse_mla
