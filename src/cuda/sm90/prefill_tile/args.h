// What the kernel is given: the problem and the plan of work.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::sm90::prefill_tile {

struct Args {
  const std::uint8_t* q;  // [s_q, h_q, d_qk] e4m3
  std::int64_t q_row_stride;
  std::int64_t q_head_stride;
  const std::uint8_t* kv;  // [s_kv, d_qk] e4m3, rows 16-byte aligned
  std::uint32_t kv_row_stride;  // bytes, as all strides of e4m3 arrays
  const std::int32_t* indices;  // [s_q, topk]
  std::int64_t indices_row_stride;
  const std::int32_t* topk_length;  // [s_q] or null
  const float* attn_sink;           // [h_q] or null
  const float* q_scale;             // one value or null
  const float* kv_scale;            // one value or null
  float sm_scale;
  int h_q;
  int topk;
  std::int64_t s_kv;

  std::uint16_t* out;  // [s_q, h_q, 512] bf16
  float* max_logits;   // [s_q, h_q]
  float* lse;          // [s_q, h_q]

  // Work items are numbered row * head_tiles + tile. Without splits CTA b takes items b, b + gridDim.x, ...; with splits
  // the grid is (splits, items).
  std::uint32_t items;
  std::uint32_t head_tiles;
  int splits;
};

}  // namespace sparse_mla::cuda::sm90::prefill_tile
