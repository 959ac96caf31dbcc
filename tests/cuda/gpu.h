// What the tests on a card share.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/cuda.h"
#include "cuda/from_host.h"
#include "reference/reference.h"
#include "support/compare.h"
#include "support/problem_maker.h"

namespace sparse_mla::test {

// Skips every test of a program where no SM90 device is there. ctest counts a program that prints this line as skipped.
class OnACard : public testing::Environment {
 public:
  void SetUp() override {
    const std::string reason = cuda::unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << "NO GPU: whole program skipped (" << reason << ")";
  }
};

// What FP8 probabilities cost (contract part C). The bound of a width lies between those that the contract states;
// where few tokens carry the weight, the error of one head has no such average, so it is bounded by P's own rounding.
inline Tolerance prefill_tolerance(const ProblemName& name) {
  constexpr double kE4m3HalfStep = 0.0625;  // of a value, at worst
  const bool normal = name.data == ProblemName::Data::kNormal;
  double norm = kE4m3HalfStep;
  if (normal && name.topk >= 2048) {
    norm = 1.70e-2;
  } else if (normal && name.topk >= 1024) {
    norm = 1.90e-2;
  } else if (normal && name.topk >= 512) {
    norm = 2.08e-2;
  } else if (normal && name.topk >= 128) {
    norm = 2.6e-2;
  }
  return {.out_relative_norm = norm,
          .out_relative_norm_head = kE4m3HalfStep,
          .out_absolute = 1e-30,
          .lse_absolute = 2e-3,
          .lse_relative = 3e-3};
}

// Contract part C: 3e-3 over the call; a head's values are few, so the output's own rounding weighs more in them.
// Where the output is f16, a value may also be off by half of that format's smallest step.
inline Tolerance decode_tolerance(const ProblemName& name) {
  return {.out_relative_norm = 3e-3,
          .out_relative_norm_head = 8e-3,
          .out_absolute = name.float16 ? 3e-8 : 1e-30,
          .lse_absolute = 2e-3,
          .lse_relative = 1e-3};
}

// What the output's format makes of values past its largest: f16 has infinities from 65520 on.
inline void round_to_format(std::vector<double>& out, const ProblemName& name) {
  constexpr double kFirstInfinity = 65520;
  if (!name.float16) return;
  for (double& value : out) {
    if (std::abs(value) >= kFirstInfinity) value = std::copysign(std::numeric_limits<double>::infinity(), value);
  }
}

// The kernel runs first, so that memory which the reference has freed cannot hold the answer.
inline Comparison check_on_the_card(const ProblemName& name) {
  if (name.entry_point == ProblemName::EntryPoint::kPrefill) {
    MadePrefill made(name);
    cuda::prefill_from_host(made.problem());
    const Outputs got = outputs_of(made.problem());
    const reference::PrefillResult ref = reference::prefill(made.problem());
    return compare(got, ref.out, ref.max_logits, ref.lse, prefill_tolerance(name));
  }
  MadeDecode made(name);
  cuda::decode_from_host(made.problem());
  const Outputs got = outputs_of(made.problem());
  reference::DecodeResult ref = reference::decode(made.problem());
  round_to_format(ref.out, name);
  return compare(got, ref.out, {}, ref.lse, decode_tolerance(name));
}

}  // namespace sparse_mla::test
