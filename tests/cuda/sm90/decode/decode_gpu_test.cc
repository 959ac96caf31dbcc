// The decode kernel on the card against the float64 reference, and what engines rely on beside the numbers: the same
// bits every time, graphs whose lengths change, streams side by side, a workspace that may hold anything. Rows that no
// index names hold NaN, outputs are poisoned (support/problem_maker.h), and the kernel runs before the reference.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "base/float_formats.h"
#include "cuda/device_buffer.h"
#include "cuda/gpu.h"
#include "cuda/sm90/decode/launch.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/problem_maker.h"

namespace sparse_mla::test {
namespace {

using cuda::DeviceBuffer;
namespace decode = cuda::sm90::decode;

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    int count = 0, major = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    }
    if (major == 9) return;
    std::printf("NO GPU: whole program skipped\n");
    GTEST_SKIP();
  }
};
const auto* const kNeedsGpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

void ok(cudaError_t status) { cuda::throw_on_error(status, "the test"); }

int multiprocessors() {
  int count = 0;
  ok(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

// A made problem with its tensors on the device.
class OnDevice {
 public:
  explicit OnDevice(MadeDecode& made) : host_(made.problem()), device_(host_) {
    device_.q = copy(made.q.data(), made.q.size() * 2);
    move(device_.pool, made.pool);
    if (device_.second_pool.indptr != nullptr) move(device_.second_pool, made.second_pool);
    if (device_.attn_sink != nullptr) device_.attn_sink = copy(made.attn_sink.data(), made.attn_sink.size() * 4);
    device_.out = const_cast<void*>(static_cast<const void*>(copy(made.out.data(), made.out.size() * 2)));
    device_.lse = const_cast<float*>(copy(made.lse.data(), made.lse.size() * 4));
  }

  DecodeProblem& problem() { return device_; }
  std::string declines() const { return decode::declines(device_); }

  cuda::LaunchContext context(bool batch_invariant = false, int garbage = 0x5A, cudaStream_t stream = nullptr) {
    cuda::LaunchContext c{.multiprocessors = multiprocessors(), .stream = stream, .batch_invariant = batch_invariant};
    c.workspace_bytes = decode::workspace_bytes(device_, c);
    workspace_ = DeviceBuffer(c.workspace_bytes);
    c.workspace = workspace_.data();
    ok(cudaMemset(c.workspace, garbage, c.workspace_bytes));
    return c;
  }
  void run(const cuda::LaunchContext& context) { ok(static_cast<cudaError_t>(decode::launch(device_, context))); }
  // Results into the host problem's outputs.
  void fetch() const {
    ok(cudaDeviceSynchronize());
    const std::size_t heads = host_.n * host_.h;
    ok(cudaMemcpy(host_.out, device_.out, heads * host_.d_v * 2, cudaMemcpyDeviceToHost));
    if (device_.lse != nullptr) ok(cudaMemcpy(host_.lse, device_.lse, heads * 4, cudaMemcpyDeviceToHost));
  }
  std::vector<std::uint16_t> bits() const {
    fetch();
    const auto* values = static_cast<const std::uint16_t*>(host_.out);
    return {values, values + host_.n * host_.h * host_.d_v};
  }

 private:
  template <class T>
  const T* copy(const T* host, std::size_t bytes) {
    buffers_.emplace_back(host, bytes);
    return static_cast<const T*>(buffers_.back().data());
  }
  void move(PoolProblem& pool, const MadePool& made) {
    pool.kv = copy(made.kv.data(), made.kv.size());
    if (pool.kv_scales != nullptr) pool.kv_scales = copy(made.scales.data(), made.scales.size() * 4);
    pool.indices = copy(made.indices.data(), made.indices.size() * 4);
    pool.indptr = copy(made.indptr.data(), made.indptr.size() * 4);
  }

  DecodeProblem host_, device_;
  std::vector<DeviceBuffer> buffers_;
  DeviceBuffer workspace_;
};

// contract.md C: 3e-3 over the call. One head: the output's own rounding, 2^-8 of a value in bf16, and P's. Logits of
// e4m3 rows carry the 2^-11 of their f16 factors, so their error grows with their size, and data whose logits spread
// over 200 feels it.
Tolerance tolerance_of(const ProblemName& name, const DecodeProblem& problem) {
  Tolerance t = float32_tolerance(problem.q_dtype, problem.n * problem.h * problem.d_v);
  const bool exact_products = name.kv_format == ProblemName::KvFormat::kLikeQ;
  const bool wide = name.data == ProblemName::Data::kWide || name.data == ProblemName::Data::kPeak;
  t.out_relative_norm = wide && !exact_products ? 2e-2 : 3e-3;
  t.out_relative_norm_head = wide && !exact_products ? 5e-2 : 6e-3;
  t.lse_absolute = 1e-3;
  t.lse_relative = 5e-4;
  return t;
}

Comparison check(const ProblemName& name, bool batch_invariant = false) {
  MadeDecode made(name);
  OnDevice device(made);
  EXPECT_EQ(device.declines(), "") << to_string(name);
  device.run(device.context(batch_invariant));
  device.fetch();
  const Outputs got = outputs_of(made.problem());
  reference::DecodeResult ref = reference::decode(made.problem());
  round_to_format(ref.out, name);
  return compare(got, ref.out, {}, ref.lse, tolerance_of(name, made.problem()));
}
void expect_right(const std::string& text, bool batch_invariant = false) {
  const Comparison result = check(parse_problem_name(text), batch_invariant);
  EXPECT_TRUE(result.ok()) << result.fault << "\n  again: SPARSE_MLA_PROBLEM=" << text;
}

class DecodeGpu : public testing::TestWithParam<const char*> {};
TEST_P(DecodeGpu, AgreesWithTheReference) { expect_right(GetParam()); }
INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeGpu,
    testing::Values(
        // Native head tiles and head counts between them, in each format.
        "decode:n3:pages700:h8:d512:tokens300:fp8:sink:len:holes", "decode:n3:pages700:h16:d512:tokens300:fp8:sink:len",
        "decode:n3:pages700:h32:d512:tokens300:fp8:sink:len:holes",
        "decode:n3:pages700:h64:d512:tokens300:fp8:sink:len",
        "decode:n3:pages700:h128:d512:tokens300:fp8:sink:len:holes", "decode:n2:pages700:h1:d512:tokens200:fp8:sink",
        "decode:n2:pages700:h13:d512:tokens200:fp8:sink", "decode:n2:pages700:h100:d512:tokens200:fp8:sink",
        "decode:n3:pages700:h8:d512:tokens300:sink:len:holes", "decode:n3:pages700:h16:d512:tokens300:sink:len",
        "decode:n3:pages700:h32:d512:tokens300:sink:len:holes", "decode:n3:pages700:h64:d512:tokens300:sink:len",
        "decode:n3:pages700:h128:d512:tokens300:f16:sink:len:holes",
        "decode:n3:pages700:h16:d512:tokens300:f16:sink:len",
        "decode:n3:pages700:h16:d512:tokens300:f16:fp8:sink:len:holes",
        // Row lengths.
        "decode:n3:pages700:h16:d64:tokens300:fp8:sink", "decode:n3:pages700:h16:d192:tokens300:fp8:sink:len",
        "decode:n3:pages700:h64:d320:tokens300:fp8:sink:len", "decode:n3:pages700:h16:d576:tokens300:fp8:sink:len",
        "decode:n3:pages700:h128:d576:dv512:tokens300:fp8:sink:len", "decode:n3:pages700:h128:d576:tokens300:fp8:len",
        "decode:n3:pages700:h32:d576:dv512:tokens300:sink:len", "decode:n3:pages700:h8:d576:tokens300:f16:sink:len",
        "decode:n3:pages700:h64:d576:dv512:tokens300:sink:len", "decode:n3:pages700:h16:d512:dv62:tokens300:fp8:len",
        // Scales, data, pools. Rows of four scales start at multiples of 16 bytes and are followed by another row's.
        "decode:n3:pages700:h16:d256:tokens300:fp8:spread:len:holes",
        "decode:n2:pages218:h32:d64:tokens25:fp8:spread:sink:holes:strided:seed28",
        "decode:n4:pages700:h16:d512:tokens300:fp8:spread:len", "decode:n4:pages700:h64:d512:tokens300:fp8:spread:len",
        "decode:n3:pages700:h16:d512:tokens300:fp8:wide", "decode:n3:pages700:h64:d512:tokens300:fp8:peak",
        "decode:n3:pages700:h64:d512:tokens300:fp8:equal:sink", "decode:n3:pages700:h16:d512:tokens300:wide",
        "decode:n3:pages700:h16:d512:tokens300:fp8:second:len:holes",
        "decode:n3:pages700:h64:d512:tokens300:second:len",
        // Plans: one token over all CTAs, tokens of very unequal length, more tokens than a CTA plans for.
        "decode:n1:pages4000:h16:d512:tokens9000:fp8:dup", "decode:n40:pages4000:h8:d512:tokens2000:fp8:len",
        "decode:n200:pages700:h16:d512:tokens120:fp8:len:holes",
        "decode:n600:pages700:h8:d512:tokens70:fp8:len:holes"));

TEST(DecodeGpu, RandomProblems) {
  int served = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    ProblemName name = random_decode_name(seed);
    MadeDecode made(name);
    OnDevice device(made);
    if (!device.declines().empty()) {
      // Rows with gaps may start off 16 bytes, and d_v may be odd; nothing else is refused.
      EXPECT_TRUE(name.strided || name.value_width() % 2 != 0 || name.d % 64 != 0 || name.d > 576 || name.heads > 128)
          << to_string(name) << ": " << device.declines();
      continue;
    }
    ++served;
    expect_right(to_string(name));
  }
  EXPECT_GT(served, 10);
}

TEST(DecodeGpu, BatchInvariantModeAgreesWithTheReference) {
  expect_right("decode:n3:pages4000:h16:d512:tokens9000:fp8:len", true);
  expect_right("decode:n20:pages700:h64:d512:tokens300:fp8:sink:len:holes", true);
}

TEST(DecodeGpu, TwentyRunsGiveTheSameBitsWhateverTheWorkspaceHolds) {
  for (const char* text :
       {"decode:n5:pages700:h128:d512:tokens900:fp8:sink:len", "decode:n1:pages700:h16:d512:tokens9000:fp8",
        "decode:n300:pages700:h8:d512:tokens300:sink:len"}) {
    MadeDecode made(parse_problem_name(text));
    OnDevice device(made);
    device.run(device.context());
    const std::vector<std::uint16_t> first = device.bits();
    for (int run = 0; run < 20; ++run) {
      device.run(device.context(false, run % 4 == 0 ? 0 : run % 4 == 1 ? 0xFF : 17 * run));
      ASSERT_EQ(device.bits(), first) << text << ", run " << run;
    }
    const cuda::LaunchContext kept = device.context();
    for (int run = 0; run < 5; ++run) {  // the workspace as the last call left it
      device.run(kept);
      ASSERT_EQ(device.bits(), first) << text << ", workspace kept, run " << run;
    }
  }
}

TEST(DecodeGpu, ABatchInvariantRowHasTheSameBitsAloneAndInABatch) {
  MadeDecode made(parse_problem_name("decode:n30:pages4000:h16:d512:tokens9000:fp8:sink:len"));
  OnDevice device(made);
  device.run(device.context(true));
  const std::vector<std::uint16_t> together = device.bits();
  const DecodeProblem all = device.problem();
  const std::int64_t values = all.h * all.d_v;
  for (const std::int64_t row : {0, 7, 29}) {
    DecodeProblem& one = device.problem();
    one = all;
    one.n = 1;
    one.q = static_cast<const std::uint16_t*>(all.q) + row * all.q_row_stride;
    one.pool.indptr += row;
    one.lse = nullptr;
    device.run(device.context(true));
    ok(cudaDeviceSynchronize());
    std::vector<std::uint16_t> alone(values);
    ok(cudaMemcpy(alone.data(), one.out, values * 2, cudaMemcpyDeviceToHost));
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * values)) << "row " << row;
  }
}

TEST(DecodeGpu, ACapturedGraphFollowsTheLengths) {
  MadeDecode made(parse_problem_name("decode:n9:pages2000:h32:d512:tokens800:fp8:sink"));
  OnDevice device(made);
  cudaStream_t stream;
  ok(cudaStreamCreate(&stream));
  const cuda::LaunchContext context = device.context(false, 0x5A, stream);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  device.run(context);
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&executable, graph, 0));
  std::mt19937_64 random(4);
  for (int replay = 0; replay < 6; ++replay) {
    // The same slots, dealt to the tokens anew: one token takes all, some take none, an indptr that steps back.
    const auto total = static_cast<std::int32_t>(made.pool.indices.size());
    for (std::size_t i = 1; i + 1 < made.pool.indptr.size(); ++i) {
      made.pool.indptr[i] = replay == 0 ? 0 : static_cast<std::int32_t>(random() % total);
    }
    if (replay % 2 == 0) std::sort(made.pool.indptr.begin(), made.pool.indptr.end());
    ok(cudaMemcpy(const_cast<std::int32_t*>(device.problem().pool.indptr), made.pool.indptr.data(),
                  made.pool.indptr.size() * 4, cudaMemcpyHostToDevice));
    ok(cudaGraphLaunch(executable, stream));
    device.fetch();
    const Outputs got = outputs_of(made.problem());
    const reference::DecodeResult ref = reference::decode(made.problem());
    const Comparison result = compare(got, ref.out, {}, ref.lse, tolerance_of(made.name, made.problem()));
    EXPECT_TRUE(result.ok()) << "replay " << replay << ": " << result.fault;
  }
  ok(cudaGraphExecDestroy(executable));
  ok(cudaGraphDestroy(graph));
  ok(cudaStreamDestroy(stream));
}

TEST(DecodeGpu, TwoStreamsDoNotDisturbEachOther) {
  MadeDecode first(parse_problem_name("decode:n40:pages2000:h16:d512:tokens3000:fp8:len"));
  MadeDecode second(parse_problem_name("decode:n5:pages2000:h64:d512:tokens3000:fp8:len:seed2"));
  OnDevice a(first), b(second);
  a.run(a.context());
  b.run(b.context());
  const auto a_bits = a.bits(), b_bits = b.bits();
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const cuda::LaunchContext on_a = a.context(false, 1, streams[0]), on_b = b.context(false, 2, streams[1]);
  ok(cudaDeviceSynchronize());
  for (int i = 0; i < 30; ++i) {
    a.run(on_a);
    b.run(on_b);
  }
  EXPECT_EQ(a.bits(), a_bits);
  EXPECT_EQ(b.bits(), b_bits);
  for (cudaStream_t stream : streams) ok(cudaStreamDestroy(stream));
}

TEST(DecodeGpu, RowsPastFourGigabytesAreReached) {
  MadeDecode made(parse_problem_name("decode:n2:pages700:h16:d512:tokens300:fp8"));
  OnDevice device(made);
  device.run(device.context());
  const std::vector<std::uint16_t> near = device.bits();
  // The same rows at the end of a pool of more than 2^32 bytes, and the same lists moved there.
  const std::int64_t offset = (std::int64_t{5} << 30) / 512;
  DeviceBuffer kv((offset + 700) * 512), scales((offset + 700) * 8 * 4);
  ok(cudaMemset(kv.data(), 0x7F, kv.bytes()));
  ok(cudaMemset(scales.data(), 0xFF, scales.bytes()));
  ok(cudaMemcpy(kv.as<std::uint8_t>() + offset * 512, made.pool.kv.data(), made.pool.kv.size(),
                cudaMemcpyHostToDevice));
  ok(cudaMemcpy(scales.as<float>() + offset * 8, made.pool.scales.data(), made.pool.scales.size() * 4,
                cudaMemcpyHostToDevice));
  std::vector<std::int32_t> moved = made.pool.indices;
  for (std::int32_t& index : moved) index += static_cast<std::int32_t>(offset);
  const DeviceBuffer indices(moved.data(), moved.size() * 4);
  DecodeProblem& p = device.problem();
  p.pool.kv = kv.data();
  p.pool.kv_scales = scales.as<float>();
  p.pool.indices = indices.as<std::int32_t>();
  p.pool.total_pages = offset + 700;
  device.run(device.context());
  EXPECT_EQ(device.bits(), near);
}

TEST(DecodeGpu, NothingToDoIsNoLaunch) {
  DecodeProblem nothing;
  nothing.h = 16;
  EXPECT_EQ(decode::launch(nothing, {.multiprocessors = multiprocessors()}), 0);
}

TEST(DecodeGpu, WhatTheKernelRefusesItSaysSo) {
  MadeDecode made(parse_problem_name("decode:n2:pages70:h16:d512:tokens30:fp8"));
  DecodeProblem p = made.problem();
  p.pool.kv_row_stride = 520;
  EXPECT_THAT(decode::declines(p), testing::HasSubstr("16 bytes"));
  p = made.problem();
  p.h = 129;
  EXPECT_THAT(decode::declines(p), testing::HasSubstr("1..128"));
  p = made.problem();
  p.d = 640;
  EXPECT_THAT(decode::declines(p), testing::HasSubstr("576"));
}

}  // namespace
}  // namespace sparse_mla::test
