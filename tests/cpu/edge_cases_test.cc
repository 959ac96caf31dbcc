// The corners of the contract, one sentence each. docs/math.md has the formulas.
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/float_formats.h"
#include "cpu/run.h"

namespace sparse_mla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CpuEdgeCases : public EveryTarget {};

INSTANTIATE_TEST_SUITE_P(Simd, CpuEdgeCases, testing::ValuesIn(cpu::simd_targets()),
                         [](const auto& target) { return target.param; });

void expect_empty_row(const MadePrefill& made, std::int64_t row) {
  const int heads = made.name.heads, d_v = made.name.value_width();
  for (std::int64_t i = row * heads; i < (row + 1) * heads; ++i) {
    EXPECT_EQ(made.lse[i], kInfinity);
    EXPECT_EQ(made.max_logits[i], -kInfinity);
    for (int j = 0; j < d_v; ++j) ASSERT_EQ(made.out[i * d_v + j], 0) << "row-head " << i << " value " << j;
  }
}

TEST_P(CpuEdgeCases, ARowWithNoValidTokenIsZeroWithLseInfinity) {
  MadePrefill made(parse_problem_name("prefill:sq3:skv50:hq5:dqk64:topk40:sink"));
  for (std::int64_t i = 0; i < 40; ++i) made.indices[40 + i] = i % 2 == 0 ? -1 : 50;
  EXPECT_MATCHES_REFERENCE("row 1 all invalid", check_prefill(made.problem(), made.problem()));
  expect_empty_row(made, 1);
}

TEST_P(CpuEdgeCases, LengthsAreClamped) {
  MadePrefill made(parse_problem_name("prefill:sq4:skv50:hq5:dqk64:topk40"));
  std::int32_t lengths[] = {0, -7, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};
  PrefillProblem p = made.problem();
  p.topk_length = lengths;
  EXPECT_MATCHES_REFERENCE("lengths 0, -7, max, min", check_prefill(p, p));
  for (std::int64_t row : {0, 1, 3}) expect_empty_row(made, row);
  EXPECT_TRUE(std::isfinite(made.lse[2 * 5]));
}

TEST_P(CpuEdgeCases, NoRowsNoHeadsNoTokensAndNoPool) {
  PrefillProblem nothing;
  nothing.h_q = 64;
  EXPECT_NO_THROW(cpu::prefill(nothing, 2));
  DecodeProblem no_rows;
  no_rows.h = 16;
  EXPECT_NO_THROW(cpu::decode(no_rows, 2));
  MadePrefill no_kv(parse_problem_name("prefill:sq2:skv0:hq3:dqk64:topk8"));
  cpu::prefill(no_kv.problem(), 2);
  expect_empty_row(no_kv, 0);
  expect_empty_row(no_kv, 1);
  MadePrefill no_slots(parse_problem_name("prefill:sq2:skv9:hq3:dqk64:topk0"));
  cpu::prefill(no_slots.problem(), 2);
  expect_empty_row(no_slots, 1);
}

TEST_P(CpuEdgeCases, AnIndptrThatStepsBackOrLeavesTheListIsEmptyThere) {
  MadeDecode made(parse_problem_name("decode:n5:pages100:h4:d64:tokens20:fp8:sink"));
  std::int32_t indptr[] = {-30, 20, 10, 90, 5000, 6000};  // clamps to 0, 20, 10, 90, 100, 100
  DecodeProblem p = made.problem();
  p.pool.indptr = indptr;
  EXPECT_MATCHES_REFERENCE("indptr -30 20 10 90 5000 6000", check_decode(p, p));
  EXPECT_TRUE(std::isfinite(made.lse[0]));
  for (int row : {1, 4}) {
    for (int head = 0; head < 4; ++head) EXPECT_EQ(made.lse[row * 4 + head], kInfinity);
    for (int i = row * 4 * 64; i < (row + 1) * 4 * 64; ++i) ASSERT_EQ(made.out[i], 0);
  }
}

TEST_P(CpuEdgeCases, DecodeWithoutLse) {
  MadeDecode made(parse_problem_name("decode:n2:pages100:h4:d64:tokens20:len:holes"));
  DecodeProblem p = made.problem();
  p.lse = nullptr;
  EXPECT_MATCHES_REFERENCE("no lse", check_decode(p, p));
}

TEST_P(CpuEdgeCases, ATokenListedTwiceCountsTwice) {
  MadePrefill made(parse_problem_name("prefill:sq1:skv10:hq1:dqk64:topk1"));
  cpu::prefill(made.problem(), 1);
  const float once = made.lse[0];
  const std::vector<std::uint16_t> out = made.out;
  std::vector<std::int32_t> twice(2, made.indices[0]);
  PrefillProblem p = made.problem();
  p.indices = twice.data();
  p.topk = p.indices_row_stride = 2;
  cpu::prefill(p, 1);
  EXPECT_NEAR(made.lse[0], once + std::log(2.0), 1e-6);
  EXPECT_EQ(made.out, out);
}

TEST_P(CpuEdgeCases, SinksOfEitherInfinity) {
  MadePrefill made(parse_problem_name("prefill:sq1:skv30:hq3:dqk64:topk20"));
  cpu::prefill(made.problem(), 1);
  const std::vector<std::uint16_t> plain = made.out;
  const std::vector<float> lse = made.lse;
  const float sink[] = {-kInfinity, kInfinity, std::numeric_limits<float>::max()};
  PrefillProblem p = made.problem();
  p.attn_sink = sink;
  made.poison_outputs();
  cpu::prefill(p, 1);
  for (int j = 0; j < 64; ++j) {
    EXPECT_EQ(made.out[j], plain[j]);
    EXPECT_EQ(float_from_bf16(made.out[64 + j]), 0.0f);
    EXPECT_EQ(float_from_bf16(made.out[128 + j]), 0.0f);
  }
  EXPECT_EQ(made.lse, lse);  // the sink is not part of it
}

TEST_P(CpuEdgeCases, NaNInAListedRowIsNotHidden) {
  MadePrefill made(parse_problem_name("prefill:sq1:skv30:hq3:dqk64:dv32:topk20"));
  const std::int64_t row = made.indices[7];
  made.kv[row * 64 + 63] = 0x7F;  // in the part that is key only
  cpu::prefill(made.problem(), 1);
  for (float lse : made.lse) EXPECT_TRUE(std::isnan(lse));
  for (std::uint16_t value : made.out) EXPECT_TRUE(std::isnan(float_from_bf16(value)));
}

TEST_P(CpuEdgeCases, LogitsPastTheFloat32RangeGiveNoNaN) {
  MadePrefill made(parse_problem_name("prefill:sq2:skv300:hq9:dqk64:topk200:sink"));
  made.sm_scale = 3e38f;
  cpu::prefill(made.problem(), 1);
  for (std::size_t i = 0; i < made.out.size(); ++i) ASSERT_TRUE(std::isfinite(float_from_bf16(made.out[i]))) << i;
  for (float max : made.max_logits) EXPECT_TRUE(std::isfinite(max));
}

TEST_P(CpuEdgeCases, NegativeAndZeroScales) {
  for (const float scale : {-0.7f, 0.0f}) {
    MadePrefill made(parse_problem_name("prefill:sq2:skv300:hq9:dqk64:topk200:sink"));
    made.kv_scale = scale;
    EXPECT_MATCHES_REFERENCE("kv_scale " + std::to_string(scale), check_prefill(made.problem(), made.problem()));
  }
}

TEST_P(CpuEdgeCases, EveryE4m3CodeGoesThroughUnchanged) {
  MadePrefill made(parse_problem_name("prefill:sq1:skv1:hq1:dqk256:topk1"));
  made.indices[0] = 0;
  for (int code = 0; code < 256; ++code) made.kv[code] = static_cast<std::uint8_t>((code & 0x7F) == 0x7F ? 0 : code);
  PrefillProblem p = made.problem();
  p.kv_scale = nullptr;
  cpu::prefill(p, 1);
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(float_from_bf16(made.out[code]), float_from_e4m3fn(made.kv[code])) << code;
  }
}

TEST_P(CpuEdgeCases, PoolsOfDifferentFormatsUnderOneSoftmax) {
  MadeDecode made(parse_problem_name("decode:n3:pages200:h16:d512:tokens150:fp8:sink:len"));
  MadeDecode other(parse_problem_name("decode:n3:pages90:h16:d512:tokens33:seed5"));
  DecodeProblem p = made.problem();
  p.second_pool = other.pool.problem();
  EXPECT_MATCHES_REFERENCE("fp8 pool and bf16 pool", check_decode(p, p));
}

TEST(Decode, ScalesThatDoNotFitTheWidthAreRefused) {
  MadeDecode made(parse_problem_name("decode:n1:pages20:h4:d100:tokens20"));
  std::vector<float> scales(40, 1.0f);
  DecodeProblem p = made.problem();
  p.pool.kv_scales = scales.data();
  p.pool.kv_scales_row_stride = 2;
  EXPECT_THROW(cpu::decode(p, 2), std::invalid_argument);
}

// A child process with little address space left: the workspace of every thread is refused.
TEST(OutOfMemory, IsAnExceptionInTheCallingThread) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer ends the process where operator new would throw";
#endif
  MadePrefill made(parse_problem_name("prefill:sq8:skv2:hq1:dqk1:topk1"));
  PrefillProblem p = made.problem();
  p.d_qk = 1 << 28;  // never read: the workspace comes first
  const auto run = [&p] {
    const rlimit limit{1 << 28, 1 << 28};
    setrlimit(RLIMIT_AS, &limit);
    try {
      cpu::prefill(p, 4);
    } catch (const std::bad_alloc&) {
      _exit(7);
    }
    _exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(7), "");
}

// Address space only: two pages of it are ever touched.
TEST_P(CpuEdgeCases, RowsPastFourGibibytesAreFound) {
  constexpr std::int64_t kRows = 9'000'000, kStride = 576;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, kRows * kStride, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "the system gives no 5 GiB of address space";
  MadePrefill made(parse_problem_name("prefill:sq1:skv2:hq4:dqk576:topk2"));
  auto* kv = static_cast<std::uint8_t*>(memory);
  std::memcpy(kv + (kRows - 1) * kStride, made.kv.data(), kStride);
  std::memcpy(kv + (kRows - 9) * kStride, made.kv.data() + kStride, kStride);
  made.indices = {0, 1};
  const PrefillProblem near = made.problem();
  cpu::prefill(near, 1);
  const std::vector<std::uint16_t> out = made.out;
  std::int32_t far_indices[] = {kRows - 1, kRows - 9};
  PrefillProblem far = near;
  far.kv = kv;
  far.s_kv = kRows;
  far.indices = far_indices;
  made.poison_outputs();
  cpu::prefill(far, 1);
  EXPECT_EQ(made.out, out);
  munmap(memory, kRows * kStride);
}

}  // namespace
}  // namespace sparse_mla::test
