#include "sparse_mla/dlpack.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace sparse_mla {
namespace {

// DLPack 1.1's numbers, from its specification rather than from the header under test.
constexpr DLDataType kE4m3fn{10, 8, 1};
constexpr DLDataType kFloat32{2, 32, 1};

struct Source {
  std::vector<std::int64_t> shape{2, 3};
  std::vector<std::int64_t> strides{3, 1};
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(64);
  DLTensor tensor{};

  Source() {
    tensor.data = memory.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 2;
    tensor.dtype = kE4m3fn;
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
};

TEST(FromDlpack, KeepsShapeStridesDtypeAndDevice) {
  Source source;
  source.strides = {32, 1};
  source.tensor.device = {static_cast<DLDeviceType>(2), 3};
  const Tensor tensor = from_dlpack(source.tensor);
  EXPECT_EQ(tensor.data, source.memory.data());
  EXPECT_EQ(tensor.dtype, DType::kFloat8E4M3FN);
  EXPECT_EQ(tensor.device, Device::cuda(3));
  EXPECT_EQ(shape_string(tensor), "(2, 3)");
  EXPECT_EQ(tensor.strides[0], 32);
  EXPECT_EQ(tensor.strides[1], 1);
}

TEST(FromDlpack, NoStridesMeansContiguous) {
  Source source;
  source.tensor.strides = nullptr;
  const Tensor tensor = from_dlpack(source.tensor);
  EXPECT_EQ(tensor.strides[0], 3);
  EXPECT_TRUE(tensor.is_contiguous());
}

TEST(FromDlpack, AddsTheByteOffset) {
  Source source;
  source.tensor.byte_offset = 24;
  EXPECT_EQ(from_dlpack(source.tensor).data, source.memory.data() + 24);
  source.tensor.data = nullptr;  // an empty tensor may have none
  EXPECT_EQ(from_dlpack(source.tensor).data, nullptr);
}

TEST(FromDlpack, ScalarsNeedNoShape) {
  Source source;
  source.tensor.ndim = 0;
  source.tensor.shape = nullptr;
  source.tensor.strides = nullptr;
  source.tensor.dtype = kFloat32;
  const Tensor tensor = from_dlpack(source.tensor);
  EXPECT_EQ(tensor.rank, 0);
  EXPECT_EQ(tensor.elements(), 1);
}

TEST(FromDlpack, PinnedMemoryIsTheCpusAndManagedMemoryTheGpus) {
  Source source;
  source.tensor.device = {static_cast<DLDeviceType>(3), 0};
  EXPECT_EQ(from_dlpack(source.tensor).device, Device::cpu());
  source.tensor.device = {static_cast<DLDeviceType>(13), 1};
  EXPECT_EQ(from_dlpack(source.tensor).device, Device::cuda(1));
}

TEST(FromDlpack, RefusesWhatATensorCannotBe) {
  Source source;
  for (int device : {0, 4, 7, 8, 10, 12, 15}) {
    source.tensor.device = {static_cast<DLDeviceType>(device), 0};
    EXPECT_THROW(from_dlpack(source.tensor), std::invalid_argument) << device;
  }
  source.tensor.device = {static_cast<DLDeviceType>(2), -1};
  EXPECT_THROW(from_dlpack(source.tensor), std::invalid_argument);

  source.tensor.device = {kDLCPU, 0};
  const std::vector<DLDataType> unknown{{10, 8, 2}, {2, 32, 4}, {7, 8, 1}, {8, 8, 1},   {9, 8, 1},
                                        {3, 64, 1}, {5, 16, 1}, {2, 8, 1}, {10, 16, 1}, {17, 4, 1}};
  for (const DLDataType& dtype : unknown) {
    source.tensor.dtype = dtype;
    EXPECT_THROW(from_dlpack(source.tensor), std::invalid_argument) << int{dtype.code} << "/" << int{dtype.bits};
  }

  source.tensor.dtype = kE4m3fn;
  for (int ndim : {-1, kMaxRank + 1, std::numeric_limits<int>::max()}) {
    source.tensor.ndim = ndim;
    EXPECT_THROW(from_dlpack(source.tensor), std::invalid_argument) << ndim;
  }
  source.tensor.ndim = 2;
  source.tensor.shape = nullptr;
  EXPECT_THROW(from_dlpack(source.tensor), std::invalid_argument);
}

TEST(Dlpack, EveryDtypeSurvivesARoundTripWithDlpacksNumbers) {
  const std::vector<DLDataType> codes{{10, 8, 1}, {11, 8, 1}, {12, 8, 1}, {13, 8, 1}, {14, 8, 1},
                                      {4, 16, 1}, {2, 16, 1}, {2, 32, 1}, {2, 64, 1}, {1, 8, 1},
                                      {0, 8, 1},  {0, 16, 1}, {0, 32, 1}, {0, 64, 1}, {6, 8, 1},
                                      {1, 16, 1}, {1, 32, 1}, {1, 64, 1}, {5, 32, 1}, {5, 64, 1},
                                      {5, 128, 1}};
  ASSERT_EQ(codes.size(), static_cast<std::size_t>(kDTypeCount));
  for (int i = 0; i < kDTypeCount; ++i) {
    Tensor tensor(nullptr, static_cast<DType>(i), {4, 2}, Device::cuda(1));
    const DLTensor shared = to_dlpack(tensor);
    EXPECT_EQ(shared.dtype.code, codes[i].code) << torch_name(tensor.dtype);
    EXPECT_EQ(shared.dtype.bits, codes[i].bits) << torch_name(tensor.dtype);
    EXPECT_EQ(shared.dtype.lanes, 1);
    EXPECT_EQ(static_cast<int>(shared.device.device_type), 2);
    EXPECT_EQ(shared.device.device_id, 1);
    const Tensor back = from_dlpack(shared);
    EXPECT_EQ(back.dtype, tensor.dtype);
    EXPECT_EQ(back.device, tensor.device);
    EXPECT_EQ(shape_string(back), "(4, 2)");
  }
}

TEST(ToDlpack, KeepsStridesAndAddress) {
  std::vector<float> memory(32);
  const std::array<std::int64_t, 2> shape{2, 3};
  const std::array<std::int64_t, 2> strides{16, 2};
  Tensor tensor(memory.data(), DType::kFloat32, shape, strides, Device::cpu());
  const DLTensor shared = to_dlpack(tensor);
  EXPECT_EQ(shared.data, memory.data());
  EXPECT_EQ(shared.byte_offset, 0u);
  EXPECT_EQ(shared.ndim, 2);
  EXPECT_EQ(shared.strides[0], 16);
  EXPECT_EQ(shared.strides[1], 2);
  EXPECT_EQ(static_cast<int>(shared.device.device_type), 1);
}

TEST(ToDlpack, AMetaTensorIsRefused) {
  Tensor tensor(nullptr, DType::kFloat32, {1}, Device{Device::Kind::kMeta, 0});
  EXPECT_THROW(to_dlpack(tensor), std::invalid_argument);
}

}  // namespace
}  // namespace sparse_mla
