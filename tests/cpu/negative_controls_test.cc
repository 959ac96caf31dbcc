// Faults that a test must see: each is put into the call that runs, and the comparison that passes the sound call has
// to refuse it.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "cpu/run.h"

namespace sparse_mla::test {
namespace {

constexpr const char* kPrefill = "prefill:sq3:skv700:hq16:dqk576:topk128:sink";
constexpr const char* kDecode = "decode:n3:pages700:h16:d512:tokens128:fp8:sink";

Comparison compare_with_reference(const PrefillProblem& ran) {
  const Outputs got = outputs_of(ran);
  const reference::PrefillResult ref = reference::prefill(ran);
  return compare(got, ref.out, ref.max_logits, ref.lse, float32_tolerance(DType::kBFloat16, std::ssize(got.out)));
}

TEST(NegativeControls, TheSoundCallsPass) {
  EXPECT_MATCHES_REFERENCE(kPrefill, check(parse_problem_name(kPrefill)));
  EXPECT_MATCHES_REFERENCE(kDecode, check(parse_problem_name(kDecode)));
}

TEST(NegativeControls, AKernelThatWritesZerosFails) {
  MadePrefill made(parse_problem_name(kPrefill));
  cpu::prefill(made.problem(), 1);
  std::fill(made.out.begin(), made.out.end(), 0);
  EXPECT_FALSE(compare_with_reference(made.problem()).ok());
}

TEST(NegativeControls, AKernelThatWritesNothingFails) {
  MadePrefill made(parse_problem_name(kPrefill));
  EXPECT_FALSE(compare_with_reference(made.problem()).ok());
}

TEST(NegativeControls, OneHeadOfOneRowLeftOutFails) {
  MadePrefill made(parse_problem_name("prefill:sq16:skv700:hq128:dqk64:topk32"));
  cpu::prefill(made.problem(), 1);
  EXPECT_TRUE(compare_with_reference(made.problem()).ok());
  std::fill_n(made.out.begin() + 777 * 64, 64, 0);
  EXPECT_FALSE(compare_with_reference(made.problem()).ok());
}

TEST(NegativeControls, AnIgnoredSinkFails) {
  MadePrefill made(parse_problem_name(kPrefill));
  PrefillProblem faulty = made.problem();
  faulty.attn_sink = nullptr;
  EXPECT_FALSE(check_prefill(faulty, made.problem()).ok());
  MadeDecode decode(parse_problem_name(kDecode));
  DecodeProblem faulty_decode = decode.problem();
  faulty_decode.attn_sink = nullptr;
  EXPECT_FALSE(check_decode(faulty_decode, decode.problem()).ok());
}

TEST(NegativeControls, OneWrongIndexFails) {
  MadePrefill made(parse_problem_name(kPrefill));
  std::vector<std::int32_t> wrong = made.indices;
  std::swap(wrong[0], wrong[made.indices_row_stride]);  // rows 0 and 1 exchange a token
  PrefillProblem faulty = made.problem();
  faulty.indices = wrong.data();
  EXPECT_FALSE(check_prefill(faulty, made.problem()).ok());
}

TEST(NegativeControls, AScrambledIndexListFails) {
  MadeDecode made(parse_problem_name(kDecode));
  std::vector<std::int32_t> wrong = made.pool.indices;
  std::rotate(wrong.begin(), wrong.begin() + 1, wrong.end());
  DecodeProblem faulty = made.problem();
  faulty.pool.indices = wrong.data();
  EXPECT_FALSE(check_decode(faulty, made.problem()).ok());
}

TEST(NegativeControls, AnIgnoredLengthFails) {
  MadePrefill made(parse_problem_name("prefill:sq8:skv700:hq16:dqk576:topk128"));
  std::vector<std::int32_t> lengths(8, 127);  // one token less
  PrefillProblem sound = made.problem();
  sound.topk_length = lengths.data();
  PrefillProblem faulty = made.problem();
  EXPECT_FALSE(check_prefill(faulty, sound).ok());
}

TEST(NegativeControls, AnIgnoredScaleFails) {
  MadePrefill made(parse_problem_name(kPrefill));
  for (const float* PrefillProblem::*scale : {&PrefillProblem::q_scale, &PrefillProblem::kv_scale}) {
    PrefillProblem faulty = made.problem();
    faulty.*scale = nullptr;
    EXPECT_FALSE(check_prefill(faulty, made.problem()).ok());
  }
  MadeDecode decode(parse_problem_name(kDecode));
  DecodeProblem faulty = decode.problem();
  faulty.pool.kv_scales = nullptr;
  EXPECT_FALSE(check_decode(faulty, decode.problem()).ok());
}

TEST(NegativeControls, ScalesRoundedToPowersOfTwoFail) {
  MadeDecode made(parse_problem_name(kDecode));
  std::vector<float> rounded = made.pool.scales;
  for (float& scale : rounded) scale = std::exp2(std::round(std::log2(scale)));
  DecodeProblem faulty = made.problem();
  faulty.pool.kv_scales = rounded.data();
  EXPECT_FALSE(check_decode(faulty, made.problem()).ok());
}

TEST(NegativeControls, AnLseInBaseTwoFails) {
  MadeDecode made(parse_problem_name(kDecode));
  cpu::decode(made.problem(), 1);
  const DecodeProblem p = made.problem();
  Outputs got = outputs_of(p);
  for (double& lse : got.lse) lse *= 1.4426950408889634;
  const reference::DecodeResult ref = reference::decode(p);
  EXPECT_FALSE(compare(got, ref.out, {}, ref.lse, float32_tolerance(p.q_dtype, std::ssize(got.out))).ok());
}

}  // namespace
}  // namespace sparse_mla::test
