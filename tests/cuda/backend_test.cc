// The CUDA backend against the float64 reference, through the same problems as the CPU backend's tests.
// SPARSE_MLA_PROBLEM=<line> runs that one problem.
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/device_buffer.h"
#include "cuda/gpu.h"

namespace sparse_mla::test {
namespace {

[[maybe_unused]] const auto* const kOnACard = testing::AddGlobalTestEnvironment(new OnACard);

void expect_right(const std::string& text) {
  SCOPED_TRACE("again: SPARSE_MLA_PROBLEM=" + text);
  const Comparison result = check_on_the_card(parse_problem_name(text));
  EXPECT_TRUE(result.ok()) << result.fault;
}

// What of a random problem the CUDA kernels serve: contract.md D leaves the rest to the CPU backend.
ProblemName served(ProblemName name) {
  if (name.entry_point == ProblemName::EntryPoint::kPrefill) {
    name.d = name.d > 512 ? 576 : 512;
    name.d_v = 512;
    return name;
  }
  name.d = (std::min(name.d, 576) + 63) / 64 * 64;
  name.d_v = 0;
  name.heads = std::min(name.heads, 128);
  return name;
}

TEST(Prefill, NamedShapesMatchTheReference) {
  for (const char* text : {
           "prefill:sq3:skv8192:hq128:dqk576:topk2048",
           "prefill:sq3:skv8192:hq128:dqk512:topk1024",
           "prefill:sq3:skv8192:hq128:dqk512:topk512",
           "prefill:sq3:skv8192:hq64:dqk576:topk2048:sink:len",
           "prefill:sq2:skv8192:hq256:dqk576:topk640:sink:holes",
           "prefill:sq70:skv4000:hq128:dqk576:topk256:sink:len:holes",
           "prefill:sq5:skv4000:hq16:dqk576:topk2048:holes",
           "prefill:sq5:skv4000:hq8:dqk576:topk1000:len:holes:sink",
           "prefill:sq5:skv4000:hq32:dqk512:topk1024:dup",
           "prefill:sq4:skv4000:hq100:dqk576:topk300:strided:len",
           "prefill:sq3:skv3000:hq128:dqk576:topk1024:wide",
           "prefill:sq3:skv3000:hq128:dqk576:topk1024:peak:sink",
           "prefill:sq3:skv3000:hq64:dqk576:topk1024:equal",
           "prefill:sq1:skv4096:hq128:dqk576:topk2048",
       }) {
    expect_right(text);
  }
}

TEST(Prefill, RandomProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) expect_right(to_string(served(random_prefill_name(seed))));
}

TEST(Decode, NamedShapesMatchTheReference) {
  for (const char* text : {
           "decode:n3:pages4000:h128:d512:tokens640:fp8:sink",
           "decode:n4:pages4000:h64:d512:tokens2048:fp8:sink:len",
           "decode:n4:pages4000:h16:d512:tokens300:fp8:spread:len:sink",
           "decode:n4:pages4000:h8:d576:tokens640:fp8:sink",
           "decode:n3:pages4000:h128:d512:tokens200",
           "decode:n3:pages4000:h32:d512:tokens200:f16",
           "decode:n3:pages700:h8:d576:dv512:tokens200:second:len:sink",
           "decode:n2:pages700:h8:d512:tokens200:f16:fp8:holes:sink:strided",
           "decode:n2:pages600:h16:d512:tokens256:fp8:wide",
           "decode:n2:pages600:h16:d512:tokens256:fp8:peak",
           "decode:n2:pages600:h16:d512:tokens256:fp8:equal",
       }) {
    expect_right(text);
  }
}

TEST(Decode, RandomProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) expect_right(to_string(served(random_decode_name(seed))));
}

TEST(Repeats, GiveTheSameBits) {
  MadePrefill prefill(parse_problem_name("prefill:sq140:skv8192:hq128:dqk576:topk1024:len:holes:sink"));
  MadeDecode decode(parse_problem_name("decode:n40:pages4000:h128:d512:tokens640:fp8:len:sink"));
  cuda::prefill_from_host(prefill.problem());
  cuda::decode_from_host(decode.problem());
  const std::vector<std::uint16_t> prefill_out = prefill.out, decode_out = decode.out;
  const std::vector<float> lse = prefill.lse;
  for (int repeat = 0; repeat < 20; ++repeat) {
    prefill.poison_outputs();
    decode.poison_outputs();
    cuda::prefill_from_host(prefill.problem());
    cuda::decode_from_host(decode.problem());
    EXPECT_EQ(prefill.out, prefill_out) << repeat;
    EXPECT_EQ(std::memcmp(prefill.lse.data(), lse.data(), lse.size() * sizeof(float)), 0) << repeat;
    EXPECT_EQ(decode.out, decode_out) << repeat;
  }
}

TEST(Calls, NoRowsLaunchNothing) {
  PrefillProblem prefill;
  prefill.h_q = 128;
  prefill.d_qk = 576;
  prefill.d_v = 512;
  EXPECT_EQ(cuda::prefill_workspace_bytes(prefill, {}), 0u);
  cuda::prefill(prefill, {});
  DecodeProblem decode;
  decode.h = 128;
  decode.d = decode.d_v = 512;
  cuda::decode(decode, {});
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(Calls, AWorkspaceThatIsTooSmallIsRefusedByItsSize) {
  MadeDecode made(parse_problem_name("decode:n1:pages4000:h128:d512:tokens640:fp8"));
  const DecodeProblem problem = made.problem();
  const std::size_t needed = cuda::decode_workspace_bytes(problem, {});
  if (needed == 0) GTEST_SKIP() << "this shape needs no workspace";
  try {
    cuda::decode(problem, {});
    FAIL() << "ran without its workspace";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(needed)), std::string::npos) << error.what();
  }
}

TEST(OneProblem, FromTheEnvironment) {
  const char* text = std::getenv("SPARSE_MLA_PROBLEM");
  if (text == nullptr) GTEST_SKIP() << "SPARSE_MLA_PROBLEM is not set";
  expect_right(text);
}

}  // namespace
}  // namespace sparse_mla::test
