// The one comparison with the reference that every backend's tests use. It looks at each head of each row, so a fault
// in one of them does not drown in the others, and infinities and NaN must sit where the reference has them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/problem.h"

namespace sparse_mla::test {

struct Tolerance {
  double out_relative_norm;       // ||out - ref|| / ||ref|| over the call
  double out_relative_norm_head;  // the same for the values of each head of each row
  double out_absolute;            // error of one value that is free: half the smallest step of the output's format
  double lse_absolute;            // |lse - ref| and |max_logits - ref|, plus
  double lse_relative;            // this times the row's largest |lse| or |max|
};

// What a kernel earns that computes in float32 and rounds its output once: half a unit in the last place of a value is
// 2^-8 (bf16) or 2^-11 (f16) of it, so no head can be further off than that; over many values the norm is 0.42 of it.
Tolerance float32_tolerance(DType out_dtype, std::int64_t out_values);

struct Comparison {
  double out_error = 0;        // relative norm over the call
  double out_error_worst = 0;  // of the worst head
  double lse_error = 0;        // worst |lse - ref|
  double max_error = 0;        // worst |max_logits - ref|
  std::string fault;           // the first thing past the tolerance, with its place; empty is a pass
  bool ok() const { return fault.empty(); }
};

// A call's outputs as numbers. max_logits and lse are empty where the call has none.
struct Outputs {
  std::vector<double> out;  // [row_heads, d_v]
  std::vector<double> max_logits;  // [row_heads]
  std::vector<double> lse;  // [row_heads]
};
Outputs outputs_of(const PrefillProblem& problem);
Outputs outputs_of(const DecodeProblem& problem);

Comparison compare(const Outputs& got, std::span<const double> out, std::span<const double> max_logits,
                   std::span<const double> lse, const Tolerance& tolerance);

}  // namespace sparse_mla::test
