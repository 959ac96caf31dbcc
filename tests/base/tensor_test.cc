#include "sparse_mla/tensor.h"

#include <gtest/gtest.h>

namespace sparse_mla {
namespace {

TEST(Tensor, ShapesPrintAsPythonTuples) {
  EXPECT_EQ(shape_string(Tensor(nullptr, DType::kFloat32, {})), "()");
  EXPECT_EQ(shape_string(Tensor(nullptr, DType::kFloat32, {5})), "(5,)");
  EXPECT_EQ(shape_string(Tensor(nullptr, DType::kFloat32, {2, 64, 576})), "(2, 64, 576)");
}

TEST(Tensor, ContiguityFollowsTorch) {
  const std::array<std::int64_t, 2> shape{4, 8};
  EXPECT_TRUE(Tensor(nullptr, DType::kFloat32, shape).is_contiguous());
  const std::array<std::int64_t, 2> wide{16, 1};
  EXPECT_FALSE(Tensor(nullptr, DType::kFloat32, shape, wide, Device::cpu()).is_contiguous());
  const std::array<std::int64_t, 2> one_row{1, 8};
  EXPECT_TRUE(Tensor(nullptr, DType::kFloat32, one_row, wide, Device::cpu()).is_contiguous());
  const std::array<std::int64_t, 2> no_rows{0, 8};
  EXPECT_TRUE(Tensor(nullptr, DType::kFloat32, no_rows, wide, Device::cpu()).is_contiguous());
}

TEST(Tensor, ExtentCountsTheBytesThatAViewReaches) {
  const std::array<std::int64_t, 2> shape{4, 8};
  const std::array<std::int64_t, 2> strides{16, 1};
  EXPECT_EQ(Tensor(nullptr, DType::kBFloat16, shape, strides, Device::cpu()).extent_bytes(), (3 * 16 + 8) * 2u);
  EXPECT_EQ(Tensor(nullptr, DType::kBFloat16, {0, 8}).extent_bytes(), 0u);
}

TEST(Tensor, MoreDimensionsThanAViewHoldsAreRefused) {
  EXPECT_THROW(Tensor(nullptr, DType::kFloat32, {1, 1, 1, 1, 1, 1, 1, 1, 1}), std::invalid_argument);
}

TEST(Names, DTypesAndDevicesSurviveARoundTrip) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_torch_name(torch_name(dtype)), dtype);
  }
  for (const char* text : {"cpu", "cuda:0", "cuda:7", "meta"}) EXPECT_EQ(to_string(device_from_string(text)), text);
  for (const char* text : {"", "cuda:", "cuda:-1", "cuda:x", "gpu"}) {
    EXPECT_THROW(device_from_string(text), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace sparse_mla
