// A problem made from its name: the same name gives the same numbers on every machine.
//
// Rows that no index names are filled with NaN and Inf (their scales too), and so are the gaps of strided rows and,
// before a call, the outputs: whatever leaks shows up.
#pragma once

#include <cstdint>
#include <vector>

#include "base/problem.h"
#include "base/problem_name.h"

namespace sparse_mla::test {

struct MadePrefill {
  explicit MadePrefill(const ProblemName& name);
  // Points into this object; outputs are poisoned by the maker and by poison_outputs().
  PrefillProblem problem();
  void poison_outputs();

  ProblemName name;
  std::vector<std::uint8_t> q, kv;
  std::vector<std::int32_t> indices, topk_length;
  std::vector<float> attn_sink;
  float q_scale = 1.0f, kv_scale = 1.0f, sm_scale = 1.0f;
  std::int64_t q_row_stride = 0, q_head_stride = 0, kv_row_stride = 0, indices_row_stride = 0;
  std::vector<std::uint16_t> out;
  std::vector<float> max_logits, lse;
};

struct MadePool {
  std::int64_t pages = 0;
  DType dtype = DType::kBFloat16;
  std::vector<std::uint8_t> kv;  // bytes
  std::int64_t kv_row_stride = 0;
  std::vector<float> scales;
  std::int64_t scales_row_stride = 0;
  std::vector<std::int32_t> indices, indptr;

  PoolProblem problem() const;
};

struct MadeDecode {
  explicit MadeDecode(const ProblemName& name);
  DecodeProblem problem();
  void poison_outputs();

  ProblemName name;
  std::vector<std::uint16_t> q;
  std::int64_t q_row_stride = 0, q_head_stride = 0;
  MadePool pool, second_pool;
  std::vector<float> attn_sink;
  float softmax_scale = 1.0f;
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};

// Sizes, flags and data of a random problem, for property tests.
ProblemName random_prefill_name(std::uint64_t seed);
ProblemName random_decode_name(std::uint64_t seed);

}  // namespace sparse_mla::test
