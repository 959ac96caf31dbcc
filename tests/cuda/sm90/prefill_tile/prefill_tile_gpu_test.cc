// The one-CTA prefill kernel against the float64 reference, on the card.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/cuda.h"
#include "cuda/device_buffer.h"
#include "cuda/sm90/prefill_tile/launch.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/problem_maker.h"

namespace sparse_mla::test {
namespace {

using cuda::DeviceBuffer;
using cuda::LaunchContext;
namespace kernel = cuda::sm90::prefill_tile;

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    const std::string reason = cuda::unavailable_reason();
    if (!reason.empty()) {
      std::printf("NO GPU: whole program skipped (%s)\n", reason.c_str());
      GTEST_SKIP();
    }
  }
};
const auto* const kNeedsGpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

// A made problem with its inputs on the device and outputs of its own there.
class OnDevice {
 public:
  explicit OnDevice(const std::string& name) : made_(parse_problem_name(name)), problem_(made_.problem()) {
    q_ = DeviceBuffer(made_.q.data(), made_.q.size());
    kv_ = DeviceBuffer(made_.kv.data(), made_.kv.size());
    indices_ = DeviceBuffer(made_.indices.data(), made_.indices.size() * 4);
    lengths_ = DeviceBuffer(made_.topk_length.data(), made_.topk_length.size() * 4);
    sink_ = DeviceBuffer(made_.attn_sink.data(), made_.attn_sink.size() * 4);
    const float scales[2] = {made_.q_scale, made_.kv_scale};
    scales_ = DeviceBuffer(scales, sizeof scales);
    out_ = DeviceBuffer(made_.out.size() * 2);
    max_ = DeviceBuffer(made_.max_logits.size() * 4);
    lse_ = DeviceBuffer(made_.lse.size() * 4);
  }

  // The same call with device pointers, of rows first .. first + count (count < 0: all of them).
  PrefillProblem problem(std::int64_t first = 0, std::int64_t count = -1) const {
    PrefillProblem p = problem_;
    p.q = q_.as<std::uint8_t>() + first * p.q_row_stride;
    p.kv = kv_.as<std::uint8_t>();
    p.indices = indices_.as<std::int32_t>() + first * p.indices_row_stride;
    p.topk_length = p.topk_length ? lengths_.as<std::int32_t>() + first : nullptr;
    p.attn_sink = p.attn_sink ? sink_.as<float>() : nullptr;
    p.q_scale = scales_.as<float>();
    p.kv_scale = scales_.as<float>() + 1;
    p.out = out_.as<std::uint16_t>() + first * p.h_q * p.d_v;
    p.max_logits = max_.as<float>() + first * p.h_q;
    p.lse = lse_.as<float>() + first * p.h_q;
    if (count >= 0) p.s_q = count;
    return p;
  }
  void poison() const {
    for (const DeviceBuffer* buffer : {&out_, &max_, &lse_}) {
      cuda::throw_on_error(cudaMemset(buffer->data(), 0xFF, buffer->bytes()), "poison");
    }
  }
  // Outputs as they are on the device now, into the made problem; out, max_logits and lse one after the other.
  std::vector<std::byte> fetch() {
    cuda::throw_on_error(cudaDeviceSynchronize(), "prefill_tile");
    out_.copy_to_host(made_.out.data());
    max_.copy_to_host(made_.max_logits.data());
    lse_.copy_to_host(made_.lse.data());
    std::vector<std::byte> bytes(out_.bytes() + max_.bytes() + lse_.bytes());
    std::memcpy(bytes.data(), made_.out.data(), out_.bytes());
    std::memcpy(bytes.data() + out_.bytes(), made_.max_logits.data(), max_.bytes());
    std::memcpy(bytes.data() + out_.bytes() + max_.bytes(), made_.lse.data(), lse_.bytes());
    return bytes;
  }
  const PrefillProblem& host_problem() const { return problem_; }
  std::string name() const { return to_string(made_.name); }

 private:
  MadePrefill made_;
  PrefillProblem problem_;
  DeviceBuffer q_, kv_, indices_, lengths_, sink_, scales_, out_, max_, lse_;
};

LaunchContext context(void* stream = nullptr, bool batch_invariant = false) {
  return {.multiprocessors = cuda::devices().at(0).multiprocessors, .stream = stream, .batch_invariant = batch_invariant};
}

// P in e4m3 costs about 2e-2 of a short row; the tensor core's accumulator is off by up to 3e-3 of the largest logit.
constexpr Tolerance kTolerance{.out_relative_norm = 2.4e-2,
                               .out_relative_norm_head = 8e-2,
                               .out_absolute = 1e-30,
                               .lse_absolute = 1e-3,
                               .lse_relative = 3e-3};

void expect_right(OnDevice& call, const std::string& again, double bound = kTolerance.out_relative_norm) {
  call.fetch();
  static std::map<std::string, reference::PrefillResult> known;
  auto found = known.find(call.name());
  if (found == known.end()) found = known.emplace(call.name(), reference::prefill(call.host_problem())).first;
  const reference::PrefillResult& want = found->second;
  Tolerance tolerance = kTolerance;
  tolerance.out_relative_norm = bound;
  const Comparison result =
      compare(outputs_of(call.host_problem()), want.out, want.max_logits, want.lse, tolerance);
  EXPECT_TRUE(result.ok()) << again << ": " << result.fault << " (out " << result.out_error << ", worst head "
                           << result.out_error_worst << ", lse " << result.lse_error << ")";
}

class PrefillTile : public ::testing::TestWithParam<const char*> {};

TEST_P(PrefillTile, AgreesWithTheReferenceByItsOwnPlan) {
  OnDevice call(GetParam());
  ASSERT_EQ(kernel::declines(call.problem()), "");
  call.poison();
  ASSERT_EQ(kernel::launch(call.problem(), context()), 0);
  expect_right(call, GetParam());
}

TEST_P(PrefillTile, AgreesWithTheReferenceUnsplit) {
  OnDevice call(GetParam());
  call.poison();
  ASSERT_EQ(kernel::launch(call.problem(), context(nullptr, true)), 0);
  expect_right(call, GetParam());
}

TEST_P(PrefillTile, AgreesWithTheReferenceInEveryNumberOfParts) {
  OnDevice call(GetParam());
  for (const int splits : {2, 3, 5, 8}) {
    for (const int heads : {8, 32, 64}) {
      call.poison();
      ASSERT_EQ(kernel::launch(call.problem(), context(), {.heads = heads, .splits = splits}), 0);
      expect_right(call, std::string(GetParam()) + " in " + std::to_string(splits));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Names, PrefillTile,
    ::testing::Values("prefill:sq3:skv700:hq64:dqk576:topk512", "prefill:sq3:skv700:hq8:dqk512:topk512",
                      "prefill:sq2:skv300:hq1:dqk576:topk1", "prefill:sq2:skv300:hq16:dqk512:topk63",
                      "prefill:sq2:skv300:hq16:dqk512:topk65", "prefill:sq2:skv300:hq130:dqk576:topk129",
                      "prefill:sq9:skv900:hq20:dqk576:topk300:holes:len:sink", "prefill:sq9:skv900:hq64:dqk576:topk300:holes",
                      "prefill:sq9:skv900:hq7:dqk512:topk200:holes:len:dup", "prefill:sq4:skv900:hq33:dqk512:topk640:sink",
                      "prefill:sq3:skv2000:hq64:dqk576:topk1024:wide", "prefill:sq3:skv2000:hq16:dqk576:topk1024:peak",
                      "prefill:sq3:skv900:hq32:dqk576:topk500:equal", "prefill:sq5:skv900:hq40:dqk576:topk500:strided:len"));

// contract.md, C: the bounds on standard-normal data.
TEST(PrefillTileAccuracy, StandardNormalDataIsWithinTheContract) {
  const struct {
    const char* name;
    double bound;
  } cases[] = {{"prefill:sq6:skv8192:hq64:dqk576:topk2048", 1.70e-2},
               {"prefill:sq12:skv8192:hq64:dqk512:topk1024", 1.90e-2},
               {"prefill:sq24:skv8192:hq64:dqk512:topk512", 2.08e-2}};
  for (const auto& [name, bound] : cases) {
    OnDevice call(name);
    call.poison();
    ASSERT_EQ(kernel::launch(call.problem(), context(nullptr, true)), 0);
    expect_right(call, name, bound);
  }
}

TEST(PrefillTileRepeats, AHundredRunsGiveTheSameBitsSplitOrNot) {
  OnDevice call("prefill:sq300:skv4000:hq64:dqk576:topk320:holes:len:sink");
  for (const int splits : {1, 3}) {
    std::vector<std::byte> first;
    for (int i = 0; i < 100; ++i) {
      call.poison();
      ASSERT_EQ(kernel::launch(call.problem(), context(), {.heads = 64, .splits = splits}), 0);
      if (i == 0) {
        first = call.fetch();
      } else {
        ASSERT_EQ(call.fetch(), first) << "run " << i << " in " << splits;
      }
    }
  }
}

TEST(PrefillTileBatch, ABatchInvariantRowDoesNotSeeTheOthers) {
  OnDevice call("prefill:sq200:skv4000:hq64:dqk576:topk400:len");
  call.poison();
  ASSERT_EQ(kernel::launch(call.problem(), context(nullptr, true)), 0);
  const std::vector<std::byte> together = call.fetch();
  call.poison();
  for (std::int64_t row = 0; row < 200; row += 3) {
    const std::int64_t count = std::min<std::int64_t>(3, 200 - row);
    ASSERT_EQ(kernel::launch(call.problem(row, count), context(nullptr, true)), 0);
  }
  EXPECT_EQ(call.fetch(), together);
}

TEST(PrefillTileStreams, ACapturedGraphReplaysAndTwoStreamsDoNotDisturbEachOther) {
  OnDevice one("prefill:sq140:skv2000:hq16:dqk576:topk256:holes");
  OnDevice two("prefill:sq2:skv2000:hq64:dqk576:topk1024");
  ASSERT_EQ(kernel::launch(one.problem(), context()), 0);
  ASSERT_EQ(kernel::launch(two.problem(), context()), 0);
  const std::vector<std::byte> want_one = one.fetch();
  const std::vector<std::byte> want_two = two.fetch();
  cudaStream_t streams[2];
  cudaGraphExec_t graphs[2];
  for (int i = 0; i < 2; ++i) {
    cuda::throw_on_error(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "stream");
    cuda::throw_on_error(cudaStreamBeginCapture(streams[i], cudaStreamCaptureModeGlobal), "capture");
    ASSERT_EQ(kernel::launch((i == 0 ? one : two).problem(), context(streams[i])), 0);
    cudaGraph_t graph;
    cuda::throw_on_error(cudaStreamEndCapture(streams[i], &graph), "capture");
    cuda::throw_on_error(cudaGraphInstantiate(&graphs[i], graph, 0), "instantiate");
    cudaGraphDestroy(graph);
  }
  for (int round = 0; round < 20; ++round) {
    one.poison();
    two.poison();
    cuda::throw_on_error(cudaDeviceSynchronize(), "poison");
    for (int i = 0; i < 2; ++i) cuda::throw_on_error(cudaGraphLaunch(graphs[i], streams[i]), "replay");
    ASSERT_EQ(one.fetch(), want_one) << round;
    ASSERT_EQ(two.fetch(), want_two) << round;
  }
  for (int i = 0; i < 2; ++i) {
    cudaGraphExecDestroy(graphs[i]);
    cudaStreamDestroy(streams[i]);
  }
}

TEST(PrefillTileEdges, NoRowsIsNoLaunch) {
  OnDevice call("prefill:sq2:skv300:hq16:dqk512:topk64");
  PrefillProblem none = call.problem();
  none.s_q = 0;
  EXPECT_EQ(kernel::launch(none, context()), 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(PrefillTileEdges, WhatItCannotServeItNames) {
  OnDevice call("prefill:sq2:skv300:hq16:dqk512:topk64");
  PrefillProblem odd = call.problem();
  odd.q_head_stride = 520;
  EXPECT_THAT(kernel::declines(odd), ::testing::HasSubstr("16-byte aligned"));
  PrefillProblem narrow = call.problem();
  narrow.d_v = 256;
  EXPECT_EQ(kernel::declines(narrow), "d_v=256 is not 512");
}

}  // namespace
}  // namespace sparse_mla::test
