// The CUDA transfers against the CPU's, bit for bit: the CPU's are held against float64 formulas in tests/kv.
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/cuda.h"
#include "cuda/device_buffer.h"
#include "cuda/gpu.h"
#include "cuda/kv_cache.h"
#include "dispatch/kv_problem.h"
#include "kv/caches.h"
#include "kv/transfer.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::kv_test {
namespace {

using cuda::DeviceBuffer;

const auto* const kOnACard = ::testing::AddGlobalTestEnvironment(new test::OnACard);

// A call with every tensor copied to the device, gaps included.
class OnDevice {
 public:
  explicit OnDevice(const KvCall& host) : call_(host) {
    move(call_.source.data);
    move(call_.target.data);
    for (Argument* argument : {&call_.source.scales, &call_.target.scales, &call_.source_slots, &call_.target_slots,
                               &call_.remapped, &call_.scales}) {
      if (argument->tensor() == nullptr) continue;
      Tensor tensor = *argument->tensor();
      move(tensor);
      *argument = tensor;
    }
  }
  KvCall& call() { return call_; }
  // With the workspace that it needs, past the checks: bad slots are the kernel's to skip.
  void run() const {
    const KvTransferProblem problem = dispatch::kv_transfer_problem(call_);
    const DeviceBuffer workspace(cuda::kv_transfer_workspace_bytes(problem));
    cuda::kv_transfer(problem, {.workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
    cuda::throw_on_error(cudaDeviceSynchronize(), "a transfer");
  }
  // The bytes that the host tensor has on the device now.
  std::vector<std::byte> fetch(const Tensor& host) const {
    std::vector<std::byte> bytes(host.extent_bytes());
    buffers_.at(host.data).copy_to_host(bytes.data());
    return bytes;
  }

 private:
  void move(Tensor& tensor) {
    void* host = tensor.data;
    tensor.device = Device::cuda(0);
    if (host == nullptr || tensor.elements() == 0) return;
    const auto [at, is_new] = buffers_.try_emplace(host, host, tensor.extent_bytes());
    tensor.data = at->second.data();
  }

  KvCall call_;
  std::map<void*, DeviceBuffer> buffers_;
};

std::vector<std::byte> host_bytes(const Tensor& tensor) {
  const auto* from = tensor.as<const std::byte>();
  return {from, from + tensor.extent_bytes()};
}

// Runs the call on both and compares every byte of what it may write.
void expect_equal_on_both(const KvCall& call) {
  OnDevice device(call);
  device.run();
  kv::transfer(dispatch::kv_transfer_problem(call), 2);
  EXPECT_TRUE(device.fetch(call.target.data) == host_bytes(call.target.data)) << "values";
  for (const Argument* argument : {&call.target.scales, &call.remapped}) {
    const Tensor* tensor = argument->tensor();
    if (tensor != nullptr) EXPECT_TRUE(device.fetch(*tensor) == host_bytes(*tensor)) << shape_string(*tensor);
  }
}

// What a transfer reads or writes: a cache of a format, or plain rows of a dtype.
struct Side {
  std::string name;
  std::optional<KvFormat> format;
  DType dtype = DType::kFloat32;
};
std::vector<Side> sides(int width) {
  std::vector<Side> all{{"float32", std::nullopt, DType::kFloat32},
                        {"bfloat16", std::nullopt, DType::kBFloat16},
                        {"float16", std::nullopt, DType::kFloat16}};
  for (KvFormat format : formats_of_width(width)) all.push_back({std::string(kv_format_name(format)), format});
  return all;
}

struct Holder {
  Holder(const Side& side, std::int64_t rows, int width, std::int64_t page_size) {
    if (side.format) {
      cache.emplace(*side.format, rows, width, page_size);
      if (cache->scales.size() == 1) cache->scales[0] = 0.0123f;
    } else {
      plain.emplace(side.dtype, rows, width, 16);
    }
  }
  const KvRows& rows() const { return cache ? cache->rows : plain->rows; }
  std::optional<Cache> cache;
  std::optional<Plain> plain;
};

// Random rows, with infinities, zeros, a row of zeros, and numbers of sixty octaves.
void fill(Holder& holder, std::int64_t count, int width, std::mt19937_64& random) {
  Plain rows(DType::kFloat32, count, width);
  rows.fill(random, -30, 10);
  for (int i = 0; i < width; ++i) rows.set(0, i, 0.0f);
  for (std::int64_t row = 1; row < count; row += 7) rows.set(row, static_cast<int>(random() % width), -INFINITY);
  KvCall call;
  call.source.data = rows.rows.data;
  call.target = holder.rows();
  kv::transfer(dispatch::kv_transfer_problem(call), 2);
}

TEST(KvGpu, MovesRowsBetweenAllPairsAsTheCpuDoes) {
  std::mt19937_64 random(1);
  for (const int width : {512, 576, 192}) {
    for (const Side& from : sides(width)) {
      Holder source(from, 183, width, 61);
      fill(source, 183, width, random);
      for (const Side& to : sides(width)) {
        SCOPED_TRACE(from.name + " to " + to.name + " of " + std::to_string(width));
        Holder target(to, 366, width, 61);
        KvCall call;
        call.source = source.rows();
        call.target = target.rows();
        std::vector<std::int32_t> from_slots(150);
        std::vector<std::int64_t> to_slots(150);
        for (int i = 0; i < 150; ++i) {
          from_slots[i] = static_cast<std::int32_t>(random() % 190) - 3;
          to_slots[i] = static_cast<std::int64_t>(random() % 376) - 5;
        }
        call.source_slots = slots_tensor(from_slots);
        call.target_slots = slots_tensor(to_slots);
        expect_equal_on_both(call);
        if (!to.format || !kv_format_info(*to.format).is_quantised()) continue;
        call.scaling = KvScaling::kAmaxPowerOfTwo;
        expect_equal_on_both(call);
        if (*to.format == KvFormat::kV4_584) continue;
        call.scaling = KvScaling::kAmax;
        expect_equal_on_both(call);
      }
    }
  }
}

TEST(KvGpu, LetsTheLastOfDuplicatesWinHoweverManyThereAre) {
  std::mt19937_64 random(2);
  for (const std::int64_t count : {1, 2, 33, 1024, 1025, 20000}) {
    for (const std::uint64_t range : {5ull, 1000ull}) {
      SCOPED_TRACE(std::to_string(count) + " rows for " + std::to_string(range) + " slots");
      Plain rows(DType::kBFloat16, count, 512);
      rows.fill(random, -1, 1);
      Cache cache(KvFormat::kV4_584, 1024, 512, 64);
      std::vector<std::int32_t> slots(static_cast<std::size_t>(count));
      for (auto& slot : slots) slot = static_cast<std::int32_t>(random() % range) - 1;
      expect_equal_on_both(kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows));
    }
  }
}

TEST(KvGpu, RoundsEveryBf16AndEveryTieAsTheCpuDoes) {
  std::mt19937_64 random(3);
  Plain rows(DType::kBFloat16, 128, 512);
  for (int i = 0; i < 1 << 16; ++i) {
    const bool is_nan = (i & 0x7F80) == 0x7F80 && (i & 0x7F) != 0;  // the sign of a NaN's code is not defined
    rows.rows.data.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(is_nan ? 0 : i);
  }
  std::uniform_real_distribution<float> mantissa(1.0f, 2.0f);
  for (int round = 0; round < 40; ++round) {
    Cache cache(KvFormat::kQ8Kv8_512, 128, 512);
    cache.scales[0] = std::ldexp(mantissa(random), static_cast<int>(random() % 240) - 125);
    SCOPED_TRACE(cache.scales[0]);
    expect_equal_on_both(kv_append_call(rows.rows.data, std::nullopt, cache.rows));
    Plain ties(DType::kFloat32, 128, 512);
    for (int i = 0; i < 1 << 16; ++i) {
      const auto code = static_cast<std::uint8_t>(i % 126);
      const double tie = (e4m3_value(code) + e4m3_value(static_cast<std::uint8_t>(code + 1))) / 2;
      const auto x = static_cast<float>(tie * cache.scales[0]);
      ties.set(i / 512, i % 512, i % 3 == 0 ? x : std::nextafter(x, i % 3 == 1 ? 0.0f : HUGE_VALF));
    }
    expect_equal_on_both(kv_append_call(ties.rows.data, std::nullopt, cache.rows));
  }
}

TEST(KvGpu, KeepsNaN) {
  for (const KvFormatInfo& info : kKvFormats) {
    const int width = info.width != 0 ? info.width : 512;
    Cache cache(info.format, 64, width, 64, 0);
    Plain rows(DType::kFloat32, 64, width);
    for (std::int64_t row = 0; row < 64; ++row) {
      for (int i = 0; i < width; ++i) rows.set(row, i, (row + i) % 13 == 0 ? NAN : 1.0f);
    }
    OnDevice device(kv_append_call(rows.rows.data, std::nullopt, cache.rows));
    device.run();
    const std::vector<std::byte> bytes = device.fetch(cache.rows.data);
    std::copy(bytes.begin(), bytes.end(), cache.rows.data.as<std::byte>());
    if (const Tensor* scales = cache.rows.scales.tensor()) {
      const std::vector<std::byte> values = device.fetch(*scales);
      std::copy(values.begin(), values.end(), scales->as<std::byte>());
    }
    for (std::int64_t row = 0; row < 64; ++row) {
      for (int i = 0; i < width; ++i) {
        const double got = value_at(cache.rows, row, i);
        ASSERT_TRUE((row + i) % 13 == 0 ? std::isnan(got) : std::fabs(got - 1) < 0.07) << info.name << " " << row << " " << i;
      }
    }
  }
}

TEST(KvGpu, TakesGivenScales) {
  std::mt19937_64 random(4);
  for (const KvFormat format : {KvFormat::kUnifiedFp8_1x64, KvFormat::kV32_656, KvFormat::kV4_584}) {
    const int width = format == KvFormat::kV32_656 ? 576 : 512;
    const std::int64_t groups = kv_row_scales(kv_format_info(format), width);
    Plain rows(DType::kBFloat16, 77, width);
    rows.fill(random, -3, 3);
    std::vector<float> given(static_cast<std::size_t>(77 * groups));
    std::uniform_real_distribution<float> exponent(-100.0f, 100.0f);
    for (float& s : given) s = std::exp2(exponent(random));
    Cache cache(format, 128, width, 64);
    expect_equal_on_both(kv_append_call(rows.rows.data, std::nullopt, cache.rows,
                                        {KvScaling::kGiven, Tensor(given.data(), DType::kFloat32, {77, groups})}));
  }
}

TEST(KvGpu, GathersAndRemapsAsTheCpuDoes) {
  std::mt19937_64 random(5);
  for (const int width : {512, 576}) {
    for (const Side& from : sides(width)) {
      if (from.format && kv_format_info(*from.format).prefill) continue;
      SCOPED_TRACE(from.name);
      Holder pool(from, 305, width, 61);
      fill(pool, 305, width, random);
      std::vector<std::int32_t> indices(40 * 64), remapped(40 * 64, 7);
      for (auto& index : indices) index = static_cast<std::int32_t>(random() % 400) - 50;  // some are none
      Cache workspace(*q8kv8_format(width), 5 + 40 * 64, width);
      workspace.scales[0] = 0.021f;
      expect_equal_on_both(kv_gather_call(pool.rows(), Tensor(indices.data(), DType::kInt32, {40, 1, 64}),
                                          workspace.rows, Tensor(remapped.data(), DType::kInt32, {40, 1, 64}), 5));
    }
  }
}

TEST(KvGpu, ReachesRowsPastFourGiB) {
  constexpr std::int64_t kRows = 9'000'000;  // 5.9 GB
  const KvCache pool({.format = KvFormat::kV32_656, .rows = kRows}, Device::cuda());
  const KvCache paged({.format = KvFormat::kV4_584, .rows = kRows, .page_size = 61}, Device::cuda());
  std::mt19937_64 random(6);
  for (const KvCache* cache : {&pool, &paged}) {
    const int width = static_cast<int>(cache->width());
    Plain rows(DType::kFloat32, 3, width), out(DType::kFloat32, 3, width);
    rows.fill(random, 0, 0);
    std::vector<std::int32_t> slots{static_cast<std::int32_t>(cache->rows() - 1), 7, 8'000'000};
    OnDevice append(kv_append_call(rows.rows.data, slots_tensor(slots), {}));
    append.call().target = cache->view();
    append.run();
    KvCall read = kv_dequantise_call({}, slots_tensor(slots), out.rows.data);
    read.source = rows.rows;  // anything that has memory; the cache takes its place on the device
    OnDevice dequantise(read);
    dequantise.call().source = cache->view();
    dequantise.run();
    const std::vector<std::byte> bytes = dequantise.fetch(out.rows.data);
    std::copy(bytes.begin(), bytes.end(), out.rows.data.as<std::byte>());
    for (std::int64_t row = 0; row < 3; ++row) {
      for (int i = 0; i < width; ++i) ASSERT_NEAR(out.get(row, i), rows.get(row, i), 0.3) << row << " " << i;
    }
  }
}

// An append of many rows in a graph, replayed with other rows and slots in the same memory.
TEST(KvGpu, ReplaysInAGraph) {
  std::mt19937_64 random(7);
  constexpr std::int64_t kCount = 3000;
  Plain rows(DType::kBFloat16, kCount, 576);
  Cache cache(KvFormat::kV32_656, 500, 576);
  std::vector<std::int32_t> slots(kCount);
  rows.fill(random, 0, 0);
  const KvCall host = kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows);
  OnDevice device(host);
  const DeviceBuffer workspace(kv_workspace_bytes(device.call()));
  cudaStream_t stream = nullptr;
  cuda::throw_on_error(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cuda::throw_on_error(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  kv_transfer(device.call(), {.stream = stream, .workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
  cuda::throw_on_error(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda::throw_on_error(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int replay = 0; replay < 3; ++replay) {
    for (auto& slot : slots) slot = static_cast<std::int32_t>(random() % (replay == 1 ? 40 : 501)) - 1;
    cudaMemcpy(device.call().target_slots.tensor()->data, slots.data(), slots.size() * 4, cudaMemcpyHostToDevice);
    cuda::throw_on_error(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    cuda::throw_on_error(cudaStreamSynchronize(stream), "a replay");
    kv::transfer(dispatch::kv_transfer_problem(host), 2);
    ASSERT_TRUE(device.fetch(cache.rows.data) == host_bytes(cache.rows.data)) << replay;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(KvGpu, ChecksSlotsOnTheDeviceWhenAsked) {
  Plain rows(DType::kBFloat16, 3, 512);
  Cache cache(KvFormat::kQ8Kv8_512, 8, 512);
  std::vector<std::int64_t> slots{1, -1, 8};
  OnDevice device(kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows));
  EXPECT_NO_THROW(kv_transfer(device.call()));
  try {
    kv_transfer(device.call(), {.check_values = true});
    FAIL() << "slot 8 of 8 rows was taken";
  } catch (const InvalidCall& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("got 8 at [2]"));
  }
}

TEST(KvGpu, RefusesAWorkspaceThatIsTooSmall) {
  Plain rows(DType::kBFloat16, 2000, 512);
  Cache cache(KvFormat::kQ8Kv8_512, 8, 512);
  std::vector<std::int32_t> slots(2000, 3);
  OnDevice device(kv_append_call(rows.rows.data, slots_tensor(slots), cache.rows));
  EXPECT_EQ(kv_workspace_bytes(device.call()), 32u);
  EXPECT_THROW(kv_transfer(device.call()), std::invalid_argument);
  device.call().unique_target_slots = true;
  EXPECT_EQ(kv_workspace_bytes(device.call()), 0u);
}

TEST(KvGpu, CacheOnTheDeviceIsBornReadyAndAppends) {
  std::mt19937_64 random(8);
  for (const KvFormatInfo& info : kKvFormats) {
    SCOPED_TRACE(info.name);
    const KvCache host({.format = info.format, .rows = 256}), device({.format = info.format, .rows = 256}, Device::cuda());
    const int width = static_cast<int>(host.width());
    Plain rows(DType::kBFloat16, 2000, width);
    rows.fill(random, 0, 0);
    std::vector<std::int32_t> slots(2000);
    for (auto& slot : slots) slot = static_cast<std::int32_t>(random() % 256);
    host.append(rows.rows.data, slots_tensor(slots));
    OnDevice inputs(kv_append_call(rows.rows.data, slots_tensor(slots), {}));
    device.append(inputs.call().source.data, inputs.call().target_slots);
    std::vector<std::byte> got(device.view().data.extent_bytes());
    cudaMemcpy(got.data(), device.view().data.data, got.size(), cudaMemcpyDeviceToHost);
    EXPECT_TRUE(got == host_bytes(host.view().data));
    if (info.scale_place == KvScalePlace::kCache) {
      float scale = 0;
      cudaMemcpy(&scale, device.view().scales.tensor()->data, 4, cudaMemcpyDeviceToHost);
      EXPECT_EQ(scale, 1.0f);
    }
  }
}

TEST(KvGpu, TranslatesTheOtherFloat8s) {
  std::vector<std::uint8_t> codes(100000), want(codes.size()), got(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 7);
  const auto count = static_cast<std::int64_t>(codes.size());
  const DeviceBuffer from(codes.data(), codes.size()), to(codes.size());
  kv_to_e4m3fn(Tensor(codes.data(), DType::kFloat8E5M2, {count}), Tensor(want.data(), DType::kFloat8E4M3FN, {count}), 64);
  kv_to_e4m3fn(Tensor(from.data(), DType::kFloat8E5M2, {count}, Device::cuda()),
               Tensor(to.data(), DType::kFloat8E4M3FN, {count}, Device::cuda()), 64);
  to.copy_to_host(got.data());
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace sparse_mla::kv_test
