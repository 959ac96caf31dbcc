// What the entry points do besides checking and computing.
#include "sparse_mla/attention.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sparse_mla/contract.h"

namespace sparse_mla {
namespace {

// One head, two tokens over a pool of three rows of 128 values: e4m3 ones, scaled per 64 values.
struct SmallDecode {
  std::vector<std::uint16_t> q = std::vector<std::uint16_t>(2 * 128, 0);
  std::vector<std::uint8_t> pool = std::vector<std::uint8_t>(3 * 128, 0x38);
  std::vector<std::int32_t> slots{0, 1, 2};
  std::vector<std::int32_t> indptr{0, 1, 3};
  std::vector<float> scales{1, 2, 3, 4, 5, 6};        // [3, 2], row-major
  std::vector<float> transposed{1, 3, 5, 2, 4, 6};    // the same, column-major
  std::vector<std::uint16_t> out = std::vector<std::uint16_t>(2 * 128, 0xffff);

  DecodeCall call() {
    DecodeCall call;
    call.q = {q.data(), DType::kBFloat16, {2, 1, 128}};
    call.pool.unified_kv = {pool.data(), DType::kFloat8E4M3FN, {3, 128}};
    call.pool.kv_indices = {slots.data(), DType::kInt32, {3}};
    call.pool.kv_indptr = {indptr.data(), DType::kInt32, {3}};
    call.pool.kv_scales = Tensor(scales.data(), DType::kFloat32, {3, 2});
    call.out = Tensor(out.data(), DType::kBFloat16, {2, 1, 128});
    return call;
  }
  Tensor column_major() {
    const std::vector<std::int64_t> shape{3, 2}, strides{1, 3};
    return Tensor(transposed.data(), DType::kFloat32, shape, strides, Device::cpu());
  }
};

constexpr std::uint16_t kOne = 0x3f80, kTwo = 0x4000, kFour = 0x4080, kFive = 0x40a0;

TEST(Attention, ScalesWithGapsAreServed) {
  SmallDecode dense, strided;
  decode(dense.call());
  DecodeCall call = strided.call();
  call.pool.kv_scales = strided.column_major();
  decode(call);
  EXPECT_EQ(strided.out, dense.out);
  EXPECT_EQ((std::vector{dense.out[0], dense.out[64], dense.out[128], dense.out[192]}),
            (std::vector{kOne, kTwo, kFour, kFive}));
}

TEST(Attention, ScalesWithGapsAreServedInTheSecondPool) {
  SmallDecode dense, strided;
  DecodeCall wanted = dense.call(), call = strided.call();
  wanted.second_pool = wanted.pool;
  call.second_pool = call.pool;
  call.second_pool->kv_scales = strided.column_major();
  decode(wanted);
  decode(call);
  EXPECT_EQ(strided.out, dense.out);
}

void* never(std::size_t, void*) {
  ADD_FAILURE() << "a CPU call asked for a workspace";
  return nullptr;
}

TEST(Attention, CpuCallsNeedNoWorkspace) {
  SmallDecode small;
  EXPECT_EQ(decode_workspace_bytes(small.call()), 0u);
  decode(small.call(), {.allocate = never});
}

TEST(Attention, ContractEntryPointsRefuseCpuTensors) {
  SmallDecode small;
  EXPECT_THAT([&] { sparse_attn_v4_paged_decode(small.call()); },
              testing::ThrowsMessage<RefusedCall>("sparse_attn_v4_paged_decode requires CUDA tensors"));
  EXPECT_EQ(small.out[0], 0xffff);
}

}  // namespace
}  // namespace sparse_mla
