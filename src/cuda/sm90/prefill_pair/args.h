// What one launch works on, as the device sees it. Strides are bytes unless they say otherwise.
#pragma once

#include <cstdint>

#include "cuda/host_device.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

// A row of work is one query and one block of 128 heads; rows are numbered query-major.
struct Args {
  const std::uint8_t* q = nullptr;  // [s_q, h_q, d_qk] e4m3
  std::int64_t q_row_stride = 0;
  std::int64_t q_head_stride = 0;
  const std::uint8_t* kv = nullptr;  // [s_kv, d_qk] e4m3
  std::uint32_t kv_row_stride = 0;
  std::uint32_t s_kv = 0;                     // an index at or past it names no token
  const std::int32_t* indices = nullptr;      // [s_q, topk]
  std::int64_t indices_row_stride = 0;        // elements
  const std::int32_t* topk_length = nullptr;  // [s_q] or null
  std::int32_t topk = 0;
  std::uint32_t rows = 0;         // s_q * head_blocks
  std::uint32_t head_blocks = 0;  // h_q / 128
  // Which query and which block of heads a row is. One block is the usual case, and a division is a hundred cycles.
  SPARSE_MLA_HOST_DEVICE std::uint32_t query_of(std::uint32_t row) const {
    return head_blocks == 1 ? row : row / head_blocks;
  }
  SPARSE_MLA_HOST_DEVICE std::uint32_t head_block_of(std::uint32_t row) const {
    return head_blocks == 1 ? 0 : row % head_blocks;
  }
  const float* attn_sink = nullptr;  // [h_q] or null
  const float* q_scale = nullptr;    // one value or null (1)
  const float* kv_scale = nullptr;
  float sm_scale = 1.0f;
  std::uint16_t* out = nullptr;  // [s_q, h_q, 512] bf16
  float* max_logits = nullptr;   // [s_q, h_q]
  float* lse = nullptr;          // [s_q, h_q]
};

inline constexpr std::int32_t kTurn = 128;  // tokens of a turn (policy.h's kTurnTokens)

// Turns of a row with this many index slots. A row with none takes one turn in which no token is valid.
SPARSE_MLA_HOST_DEVICE constexpr std::uint32_t turns_of(std::int32_t length) {
  return length <= kTurn ? 1u : static_cast<std::uint32_t>((length + kTurn - 1) / kTurn);
}

}  // namespace sparse_mla::cuda::sm90::prefill_pair
