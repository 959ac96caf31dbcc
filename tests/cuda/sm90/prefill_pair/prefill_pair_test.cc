// prefill_pair on a Hopper GPU against the float64 reference. Outputs are poisoned, kv rows that no index names are
// NaN, and the kernel runs before the reference. The launcher is called directly, so no other kernel can have answered.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "cuda/device_buffer.h"
#include "cuda/sm90/prefill_pair/device_difference.h"
#include "cuda/sm90/prefill_pair/launch.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/problem_maker.h"

namespace sparse_mla::test {
namespace {

using cuda::DeviceBuffer;
namespace kernel = cuda::sm90::prefill_pair;

int multiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

template <class T>
DeviceBuffer on_device(const std::vector<T>& host) {
  return DeviceBuffer(host.data(), host.size() * sizeof(T));
}

cudaError_t launch_on(const PrefillProblem& problem, cudaStream_t stream) {
  cuda::LaunchContext context;
  context.multiprocessors = multiprocessors();
  context.stream = stream;
  return static_cast<cudaError_t>(kernel::launch(problem, context));
}

// A made problem with all its arrays on the device.
struct OnDevice {
  explicit OnDevice(MadePrefill& made)
      : q(on_device(made.q)),
        kv(on_device(made.kv)),
        indices(on_device(made.indices)),
        lengths(on_device(made.topk_length)),
        sink(on_device(made.attn_sink)),
        scales(on_device(std::vector<float>{made.q_scale, made.kv_scale})),
        out(on_device(made.out)),
        max_logits(on_device(made.max_logits)),
        lse(on_device(made.lse)),
        problem(made.problem()) {
    problem.q = q.as<std::uint8_t>();
    problem.kv = kv.as<std::uint8_t>();
    problem.indices = indices.as<std::int32_t>();
    if (problem.topk_length != nullptr) problem.topk_length = lengths.as<std::int32_t>();
    if (problem.attn_sink != nullptr) problem.attn_sink = sink.as<float>();
    if (problem.q_scale != nullptr) problem.q_scale = scales.as<float>();
    if (problem.kv_scale != nullptr) problem.kv_scale = scales.as<float>() + 1;
    problem.out = out.as<std::uint16_t>();
    problem.max_logits = max_logits.as<float>();
    problem.lse = lse.as<float>();
  }
  cudaError_t launch() const { return launch_on(problem, nullptr); }
  void copy_back(MadePrefill& made) const {
    out.copy_to_host(made.out.data());
    max_logits.copy_to_host(made.max_logits.data());
    lse.copy_to_host(made.lse.data());
  }

  DeviceBuffer q, kv, indices, lengths, sink, scales, out, max_logits, lse;
  PrefillProblem problem;
};

// P in e4m3 costs most of it; in a head of few tokens each may be off by one rounding, which is 2^-4, while the values
// that they weigh partly cancel. Logits carry the error of the fp8 accumulator, up to 2^-13 of the largest partial sum a step of 32.
constexpr Tolerance kTolerance{.out_relative_norm = 0.0235,
                               .out_relative_norm_head = 0.125,
                               .out_absolute = 1e-3,
                               .lse_absolute = 1.5e-3,
                               .lse_relative = 6e-3};

Comparison run_and_compare(const ProblemName& name) {
  MadePrefill made(name);
  made.poison_outputs();
  const OnDevice device(made);
  EXPECT_EQ(kernel::declines(device.problem), "");
  EXPECT_EQ(device.launch(), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  device.copy_back(made);
  const PrefillProblem host = made.problem();
  const Outputs got = outputs_of(host);
  const reference::PrefillResult expected = reference::prefill(host);
  return compare(got, expected.out, expected.max_logits, expected.lse, kTolerance);
}

class PrefillPair : public testing::TestWithParam<const char*> {};

TEST_P(PrefillPair, MatchesTheReference) {
  const Comparison result = run_and_compare(parse_problem_name(GetParam()));
  EXPECT_TRUE(result.ok()) << result.fault << "\n  again: " << GetParam();
}

INSTANTIATE_TEST_SUITE_P(
    Problems, PrefillPair,
    testing::Values("prefill:sq2:skv4096:hq128:dqk576:topk2048", "prefill:sq3:skv2048:hq128:dqk512:topk1024",
                    "prefill:sq5:skv2048:hq128:dqk512:topk512:sink", "prefill:sq2:skv600:hq384:dqk576:topk256",
                    "prefill:sq1:skv300:hq128:dqk576:topk1", "prefill:sq70:skv300:hq128:dqk576:topk77",
                    "prefill:sq9:skv300:hq128:dqk512:topk129:strided", "prefill:sq8:skv700:hq128:dqk576:topk640:len",
                    "prefill:sq8:skv700:hq128:dqk512:topk640:len:holes:sink",
                    "prefill:sq8:skv500:hq128:dqk576:topk384:holes:dup",
                    "prefill:sq400:skv200:hq128:dqk576:topk16:len:holes",
                    "prefill:sq4:skv900:hq128:dqk576:topk512:wide", "prefill:sq4:skv900:hq128:dqk576:topk512:peak:sink",
                    "prefill:sq4:skv900:hq256:dqk512:topk300:peak:len", "prefill:sq3:skv900:hq128:dqk576:topk700:equal",
                    "prefill:sq3:skv900:hq128:dqk576:topk700:wide:holes"));

// ||out - ref|| / ||ref|| on standard-normal data, as the contract has it.
TEST(PrefillPairAccuracy, StaysWithinTheContract) {
  struct Bound {
    const char* name;
    double most;
  };
  for (const Bound& bound : {Bound{"prefill:sq3:skv8192:hq128:dqk576:topk2048", 1.70e-2},
                             Bound{"prefill:sq4:skv8192:hq128:dqk512:topk1024", 1.90e-2},
                             Bound{"prefill:sq8:skv8192:hq128:dqk512:topk512", 2.08e-2}}) {
    EXPECT_LT(run_and_compare(parse_problem_name(bound.name)).out_error, bound.most) << bound.name;
  }
}

// A kernel that writes zeros, or that forgets the sink, must not pass.
TEST(PrefillPairAccuracy, TheComparisonSeesZeros) {
  MadePrefill made(parse_problem_name("prefill:sq3:skv900:hq128:dqk576:topk512"));
  std::fill(made.out.begin(), made.out.end(), std::uint16_t{0});
  std::fill(made.lse.begin(), made.lse.end(), 0.0f);
  std::fill(made.max_logits.begin(), made.max_logits.end(), 0.0f);
  const PrefillProblem host = made.problem();
  const reference::PrefillResult expected = reference::prefill(host);
  EXPECT_FALSE(compare(outputs_of(host), expected.out, expected.max_logits, expected.lse, kTolerance).ok());
}

TEST(PrefillPairLaunch, NothingToDoIsFine) {
  PrefillProblem problem;
  problem.h_q = 128;
  EXPECT_EQ(kernel::launch(problem, {}), cudaSuccess);
}

TEST(PrefillPairLaunch, SaysWhyItDeclines) {
  MadePrefill made(parse_problem_name("prefill:sq1:skv300:hq128:dqk576:topk64"));
  PrefillProblem problem = made.problem();
  EXPECT_EQ(kernel::declines(problem), "");
  problem.h_q = 64;
  EXPECT_EQ(kernel::declines(problem), "h_q=64 is not a multiple of 128");
  problem.h_q = 128;
  problem.kv_row_stride = 580;
  EXPECT_EQ(kernel::declines(problem), "kv's rows are not 16-byte aligned");
}

// The rows of a made problem `copies` times over: large calls whose right result is known from a small one.
class Tiled {
 public:
  Tiled(const OnDevice& small, int copies)
      : q_(repeated(small.q, copies)),
        indices_(repeated(small.indices, copies)),
        lengths_(repeated(small.lengths, copies)),
        out_(small.out.bytes() * copies),
        max_logits_(small.max_logits.bytes() * copies),
        lse_(small.lse.bytes() * copies),
        counter_(8),
        small_(small),
        problem_(small.problem) {
    problem_.s_q *= copies;
    problem_.q = q_.as<std::uint8_t>();
    problem_.indices = indices_.as<std::int32_t>();
    if (problem_.topk_length != nullptr) problem_.topk_length = lengths_.as<std::int32_t>();
    problem_.out = out_.as<std::uint16_t>();
    problem_.max_logits = max_logits_.as<float>();
    problem_.lse = lse_.as<float>();
  }
  void run(cudaStream_t stream) {
    cudaMemsetAsync(out_.data(), 0xFF, out_.bytes(), stream);
    cudaMemsetAsync(lse_.data(), 0xFF, lse_.bytes(), stream);
    cudaMemsetAsync(max_logits_.data(), 0xFF, max_logits_.bytes(), stream);
    EXPECT_EQ(launch_on(problem_, stream), cudaSuccess);
  }
  // Words that differ from the small problem's result.
  unsigned long long differences(cudaStream_t stream) const {
    return differ(out_, small_.out, stream) + differ(lse_, small_.lse, stream) +
           differ(max_logits_, small_.max_logits, stream);
  }

 private:
  static DeviceBuffer repeated(const DeviceBuffer& small, int copies) {
    DeviceBuffer large(small.bytes() * copies);
    for (int copy = 0; copy < copies && small.bytes() > 0; ++copy)
      cudaMemcpy(large.as<char>() + copy * small.bytes(), small.data(), small.bytes(), cudaMemcpyDeviceToDevice);
    return large;
  }
  unsigned long long differ(const DeviceBuffer& large, const DeviceBuffer& small, cudaStream_t stream) const {
    return device_differences(large.data(), large.bytes(), small.data(), small.bytes(), counter_.data(), stream);
  }

  DeviceBuffer q_, indices_, lengths_, out_, max_logits_, lse_, counter_;
  const OnDevice& small_;
  PrefillProblem problem_;
};

// A small problem whose result on the device has been held against the reference.
struct Checked {
  explicit Checked(const char* name) : made(parse_problem_name(name)), device(made) {
    made.poison_outputs();
    EXPECT_EQ(device.launch(), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    device.copy_back(made);
    const PrefillProblem host = made.problem();
    const reference::PrefillResult expected = reference::prefill(host);
    EXPECT_EQ(compare(outputs_of(host), expected.out, expected.max_logits, expected.lse, kTolerance).fault, "") << name;
  }
  MadePrefill made;
  OnDevice device;
};

struct Stream {
  Stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(handle); }
  cudaStream_t handle = nullptr;
};

TEST(PrefillPairRepeats, TwoHundredRunsOfFourThousandRowsAreTheSame) {
  const Checked small("prefill:sq8:skv4096:hq128:dqk576:topk512:holes");
  Tiled large(small.device, 512);
  Stream stream;
  for (int i = 0; i < 200; ++i) {
    large.run(stream.handle);
    ASSERT_EQ(large.differences(stream.handle), 0u) << "run " << i;
  }
}

TEST(PrefillPairRepeats, TheSameBesideHeavyMemoryTraffic) {
  const Checked small("prefill:sq4:skv4096:hq128:dqk576:topk640");
  Tiled large(small.device, 256);
  Stream stream, other;
  const DeviceBuffer from(std::size_t{1} << 30), to(std::size_t{1} << 30);
  for (int i = 0; i < 40; ++i) {
    for (int copy = 0; copy < 4; ++copy)
      cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice, other.handle);
    large.run(stream.handle);
    ASSERT_EQ(large.differences(stream.handle), 0u) << "run " << i;
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(PrefillPairRepeats, TwoStreamsAtOnce) {
  const Checked first("prefill:sq4:skv2048:hq128:dqk576:topk640:len");
  const Checked second("prefill:sq2:skv2048:hq256:dqk512:topk512:seed2");
  Tiled one(first.device, 60), two(second.device, 60);
  Stream stream, other;
  for (int i = 0; i < 20; ++i) {
    one.run(stream.handle);
    two.run(other.handle);
    ASSERT_EQ(one.differences(stream.handle), 0u) << "run " << i;
    ASSERT_EQ(two.differences(other.handle), 0u) << "run " << i;
  }
}

TEST(PrefillPairRepeats, CapturedInAGraph) {
  const Checked small("prefill:sq5:skv2048:hq128:dqk576:topk640:len:sink");
  Tiled large(small.device, 20);
  Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeGlobal), cudaSuccess);
  large.run(stream.handle);
  ASSERT_EQ(cudaStreamEndCapture(stream.handle, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaGraphLaunch(executable, stream.handle), cudaSuccess);
    EXPECT_EQ(large.differences(stream.handle), 0u) << "replay " << i;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

// More rows than a grid dimension has blocks, and an output of more than 2^32 elements.
TEST(PrefillPairLarge, SeventyThousandRows) {
  const Checked small("prefill:sq50:skv512:hq128:dqk512:topk64:holes");
  Tiled large(small.device, 1401);
  large.run(nullptr);
  EXPECT_EQ(large.differences(nullptr), 0u);
}

// kv rows 64 KiB apart: the last ones lie past 2^31 bytes.
TEST(PrefillPairLarge, KvOffsetsPastTwoGigabytes) {
  MadePrefill made(parse_problem_name("prefill:sq2:skv40960:hq128:dqk576:topk256"));
  for (std::size_t i = 0; i < made.indices.size(); i += 2) {  // half of them at the far end; those rows get real values
    made.indices[i] = 40960 - 1 - static_cast<std::int32_t>(i % 200);
    for (int d = 0; d < 576; ++d)
      made.kv[made.indices[i] * made.kv_row_stride + d] =
          e4m3fn_from_float(static_cast<float>((d * 7 + made.indices[i]) % 13 - 6) / 4);
  }
  made.poison_outputs();
  OnDevice device(made);
  constexpr std::size_t kStride = 65536;
  const DeviceBuffer far(kStride * 40960);
  ASSERT_EQ(cudaMemset(far.data(), 0x7F, far.bytes()), cudaSuccess);
  ASSERT_EQ(cudaMemcpy2D(far.data(), kStride, made.kv.data(), made.kv_row_stride, 576, 40960, cudaMemcpyHostToDevice),
            cudaSuccess);
  device.problem.kv = far.as<std::uint8_t>();
  device.problem.kv_row_stride = kStride;
  ASSERT_EQ(device.launch(), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  device.copy_back(made);
  const PrefillProblem host = made.problem();
  const reference::PrefillResult expected = reference::prefill(host);
  EXPECT_EQ(compare(outputs_of(host), expected.out, expected.max_logits, expected.lse, kTolerance).fault, "");
}

}  // namespace
}  // namespace sparse_mla::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int devices = 0, major = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  if (major != 9) {
    std::puts("NO GPU: whole program skipped");
    return 0;
  }
  return RUN_ALL_TESTS();
}
