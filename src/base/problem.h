// What a backend computes: plain pointers and sizes, made from a call that has passed its checks.
// Every backend and the reference take these and nothing else. Strides count elements of the array they step over.
#pragma once

#include <cstdint>

#include "sparse_mla/tensor.h"

namespace sparse_mla {

struct PrefillProblem {
  std::int64_t s_q = 0;
  std::int64_t s_kv = 0;
  std::int64_t topk = 0;
  int h_q = 0;
  int d_qk = 0;  // values of a q row and of a kv row
  int d_v = 0;   // value width, <= d_qk

  const std::uint8_t* q = nullptr;      // [s_q, h_q, d_qk] e4m3fn
  std::int64_t q_row_stride = 0;        // from one query to the next
  std::int64_t q_head_stride = 0;
  const std::uint8_t* kv = nullptr;     // [s_kv, d_qk] e4m3fn; a row is contiguous
  std::int64_t kv_row_stride = 0;
  const std::int32_t* indices = nullptr;  // [s_q, topk]; a value outside [0, s_kv) is "no token"
  std::int64_t indices_row_stride = 0;
  const std::int32_t* topk_length = nullptr;  // [s_q] or null (all topk); clamped to [0, topk]
  const float* attn_sink = nullptr;           // [h_q] or null
  const float* q_scale = nullptr;             // one value or null (1); device memory on a CUDA call
  const float* kv_scale = nullptr;
  float sm_scale = 1.0f;

  std::uint16_t* out = nullptr;  // [s_q, h_q, d_v] bf16, contiguous
  float* max_logits = nullptr;   // [s_q, h_q], contiguous
  float* lse = nullptr;          // [s_q, h_q], contiguous, natural log without the sink
};

struct PoolProblem {
  std::int64_t total_pages = 0;
  DType kv_dtype = DType::kBFloat16;  // q's dtype, or e4m3fn
  const void* kv = nullptr;           // [total_pages, d]; a row is contiguous
  std::int64_t kv_row_stride = 0;
  const float* kv_scales = nullptr;   // [total_pages, d / 64] or null
  std::int64_t kv_scales_row_stride = 0;
  const std::int32_t* indices = nullptr;  // [total_indices]; a value outside [0, total_pages) is "no token"
  std::int64_t total_indices = 0;
  const std::int32_t* indptr = nullptr;   // [n + 1]; a step back, or a part outside [0, total_indices], is empty
};

struct DecodeProblem {
  std::int64_t n = 0;
  int h = 0;
  int d = 0;    // values of a q row and of a kv row
  int d_v = 0;  // value width, <= d

  DType q_dtype = DType::kBFloat16;
  const void* q = nullptr;  // [n, h, d]; a head's values are contiguous
  std::int64_t q_row_stride = 0;
  std::int64_t q_head_stride = 0;
  PoolProblem pool;
  PoolProblem second_pool;  // indptr is null where there is none
  const float* attn_sink = nullptr;  // [h] or null
  float softmax_scale = 1.0f;

  void* out = nullptr;  // [n, h, d_v] in q's dtype, contiguous
  float* lse = nullptr;  // [n, h] or null; natural log without the sink
};

}  // namespace sparse_mla
