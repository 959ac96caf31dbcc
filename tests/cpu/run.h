// Runs a made problem on the CPU backend and holds it against the reference. The backend runs first, so that memory
// which the reference has freed cannot hold the answer.
#pragma once

#include <gtest/gtest.h>

#include "cpu/cpu.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/problem_maker.h"

namespace sparse_mla::test {

inline Comparison check_prefill(const PrefillProblem& run, const PrefillProblem& expect, int threads = 1) {
  cpu::prefill(run, threads);
  const Outputs got = outputs_of(run);
  const reference::PrefillResult ref = reference::prefill(expect);
  return compare(got, ref.out, ref.max_logits, ref.lse, float32_tolerance(DType::kBFloat16, std::ssize(got.out)));
}

inline Comparison check_decode(const DecodeProblem& run, const DecodeProblem& expect, int threads = 1) {
  cpu::decode(run, threads);
  const Outputs got = outputs_of(run);
  const reference::DecodeResult ref = reference::decode(expect);
  return compare(got, ref.out, {}, ref.lse, float32_tolerance(run.q_dtype, std::ssize(got.out)));
}

inline Comparison check(const ProblemName& name, int threads = 1) {
  if (name.entry_point == ProblemName::EntryPoint::kPrefill) {
    MadePrefill made(name);
    return check_prefill(made.problem(), made.problem(), threads);
  }
  MadeDecode made(name);
  return check_decode(made.problem(), made.problem(), threads);
}

// Forces an instruction set while it lives.
class ForcedTarget {
 public:
  explicit ForcedTarget(const std::string& name) { cpu::force_simd_target(name); }
  ~ForcedTarget() { cpu::force_simd_target(""); }
};

// A fixture for tests that run on every instruction set of this machine.
class EveryTarget : public testing::TestWithParam<std::string> {
 protected:
  EveryTarget() : forced_(GetParam()) {}

 private:
  ForcedTarget forced_;
};

}  // namespace sparse_mla::test

// Fails with the line that repeats the problem.
#define EXPECT_MATCHES_REFERENCE(problem_text, comparison)                                                \
  do {                                                                                                    \
    const ::sparse_mla::test::Comparison result = (comparison);                                           \
    EXPECT_TRUE(result.ok()) << result.fault << "\n  again: SPARSE_MLA_PROBLEM=" << (problem_text) << " on "   \
                             << ::sparse_mla::cpu::simd_target();                                         \
  } while (false)
