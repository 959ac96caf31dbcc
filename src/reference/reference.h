// The float64 reference that every backend is held against: plain loops, one screen an entry point, no shared code
// with any backend. The formulas are docs/math.md, line by line.
#pragma once

#include <vector>

#include "base/problem.h"

namespace sparse_mla::reference {

struct PrefillResult {
  std::vector<double> out;         // [s_q, h_q, d_v]
  std::vector<double> max_logits;  // [s_q, h_q]
  std::vector<double> lse;         // [s_q, h_q]
};
// Reads the inputs of `problem` (host memory); its output pointers are ignored. `first_row`, `row_count` pick the
// queries that are computed; the result then holds those rows only. row_count < 0 is all of them.
PrefillResult prefill(const PrefillProblem& problem, std::int64_t first_row = 0, std::int64_t row_count = -1);

// The same, with P rounded to e4m3 before it weighs the values (docs/math.md, "P in e4m3"): the distance between the
// two is the error that P's format costs a kernel that rounds it.
PrefillResult prefill_with_e4m3_p(const PrefillProblem& problem, std::int64_t first_row = 0,
                                  std::int64_t row_count = -1);

struct DecodeResult {
  std::vector<double> out;  // [n, h, d_v]
  std::vector<double> lse;  // [n, h]
};
DecodeResult decode(const DecodeProblem& problem, std::int64_t first_row = 0, std::int64_t row_count = -1);

}  // namespace sparse_mla::reference
