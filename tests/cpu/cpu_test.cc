// Every instruction set of this machine against the float64 reference, on random problems and on engines' shapes.
// SPARSE_MLA_PROBLEM=<line> runs that one problem.
#include "cpu/cpu.h"

#include <cstdlib>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/run.h"

namespace sparse_mla::test {
namespace {

class CpuBackend : public EveryTarget {};

INSTANTIATE_TEST_SUITE_P(Simd, CpuBackend, testing::ValuesIn(cpu::simd_targets()),
                         [](const auto& target) { return target.param; });

TEST_P(CpuBackend, ForcedMeansForced) { EXPECT_EQ(cpu::simd_target(), GetParam()); }

TEST_P(CpuBackend, RandomPrefillsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    const ProblemName name = random_prefill_name(seed);
    EXPECT_MATCHES_REFERENCE(to_string(name), check(name));
  }
}

TEST_P(CpuBackend, RandomDecodesMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 35; ++seed) {
    const ProblemName name = random_decode_name(seed);
    EXPECT_MATCHES_REFERENCE(to_string(name), check(name));
  }
}

TEST_P(CpuBackend, NamedShapesMatchTheReference) {
  for (const char* text : {
           "prefill:sq1:skv4096:hq16:dqk576:topk2048",
           "prefill:sq2:skv2000:hq64:dqk512:topk300:sink:len:holes",
           "prefill:sq3:skv500:hq128:dqk576:topk129:dup:sink:holes",
           "prefill:sq2:skv600:hq8:dqk576:topk256:wide",
           "prefill:sq2:skv600:hq8:dqk576:topk256:peak:sink",
           "prefill:sq2:skv600:hq8:dqk576:topk256:equal",
           "prefill:sq2:skv3:hq5:dqk576:topk300:strided:len",
           "decode:n2:pages1000:h128:d512:tokens200:fp8:sink",
           "decode:n3:pages1000:h16:d512:tokens300:fp8:spread:len:sink",
           "decode:n2:pages600:h16:d512:tokens256:fp8:wide",
           "decode:n2:pages600:h16:d512:tokens256:fp8:peak:second",
           "decode:n2:pages600:h16:d512:tokens256:fp8:equal",
           "decode:n3:pages700:h8:d576:dv512:tokens200:second:len:sink",
           "decode:n2:pages700:h8:d512:tokens200:f16:wide",
           "decode:n2:pages700:h8:d512:tokens200:f16:fp8:holes:sink:strided",
       }) {
    EXPECT_MATCHES_REFERENCE(text, check(parse_problem_name(text)));
  }
}

TEST_P(CpuBackend, BitsDoNotDependOnThreadsOrRepeats) {
  for (const char* text : {"prefill:sq5:skv500:hq128:dqk576:topk200:sink:len:holes",
                           "prefill:sq1:skv500:hq80:dqk512:topk200"}) {
    MadePrefill made(parse_problem_name(text));
    cpu::prefill(made.problem(), 1);
    const std::vector<std::uint16_t> out = made.out;
    const std::vector<float> lse = made.lse;
    for (int threads : {1, 2, 3, 8, 0}) {
      made.poison_outputs();
      cpu::prefill(made.problem(), threads);
      EXPECT_EQ(made.out, out) << text << " with " << threads << " threads";
      EXPECT_THAT(made.lse, testing::Pointwise(testing::FloatEq(), lse)) << text;
    }
  }
  MadeDecode made(parse_problem_name("decode:n4:pages500:h64:d512:tokens200:fp8:sink:second"));
  cpu::decode(made.problem(), 1);
  const std::vector<std::uint16_t> out = made.out;
  for (int threads : {1, 2, 5, 16, 0}) {
    made.poison_outputs();
    cpu::decode(made.problem(), threads);
    EXPECT_EQ(made.out, out) << threads << " threads";
  }
}

TEST_P(CpuBackend, ARowsBitsDoNotDependOnTheOtherRowsOrHeads) {
  MadePrefill made(parse_problem_name("prefill:sq6:skv500:hq48:dqk576:topk150:sink:len:holes"));
  cpu::prefill(made.problem(), 2);
  const std::vector<std::uint16_t> together = made.out;
  const PrefillProblem all = made.problem();
  for (std::int64_t row = 0; row < all.s_q; ++row) {
    for (int head : {0, 17, 47}) {
      PrefillProblem one = all;
      std::vector<std::uint16_t> out(one.d_v);
      std::vector<float> max(1), lse(1);
      one.s_q = 1;
      one.h_q = 1;
      one.q += row * all.q_row_stride + head * all.q_head_stride;
      one.indices += row * all.indices_row_stride;
      one.topk_length += row;
      one.attn_sink += head;
      one.out = out.data();
      one.max_logits = max.data();
      one.lse = lse.data();
      cpu::prefill(one, 1);
      const auto begin = together.begin() + (row * all.h_q + head) * all.d_v;
      EXPECT_EQ(out, std::vector<std::uint16_t>(begin, begin + all.d_v)) << "row " << row << " head " << head;
    }
  }
}

TEST(Targets, AnUnknownNameIsRefusedAndChangesNothing) {
  const std::string before = cpu::simd_target();
  EXPECT_THROW(cpu::force_simd_target("ABACUS"), std::invalid_argument);
  EXPECT_EQ(cpu::simd_target(), before);
  EXPECT_EQ(cpu::simd_targets().front(), before);
}

TEST(OneProblem, FromTheEnvironment) {
  const char* text = std::getenv("SPARSE_MLA_PROBLEM");
  if (text == nullptr) GTEST_SKIP() << "SPARSE_MLA_PROBLEM is not set";
  for (const std::string& target : cpu::simd_targets()) {
    const ForcedTarget forced(target);
    EXPECT_MATCHES_REFERENCE(text, check(parse_problem_name(text)));
  }
}

}  // namespace
}  // namespace sparse_mla::test
