// What the decode kernel gets: plain pointers and sizes, filled by launch.cu. Host and device.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::sm90::decode {

// One KV pool and the slot lists into it.
struct PoolArgs {
  const std::uint8_t* kv = nullptr;       // [total_pages] rows of row_bytes; 16-byte aligned
  const float* scales = nullptr;          // [total_pages, groups], row stride scales_stride; null: all ones
  const std::int32_t* indices = nullptr;  // [total_indices]
  const std::int32_t* indptr = nullptr;   // [n + 1]; null: the pool is absent
  std::int64_t row_bytes = 0;             // from one row to the next
  std::int64_t scales_stride = 0;         // floats from one row to the next
  std::int64_t total_pages = 0;
  std::int64_t total_indices = 0;
};

struct PartRecord;

struct Args {
  const std::uint16_t* q = nullptr;  // [n, h, d] bf16 or f16; strides in elements
  std::int64_t q_row_stride = 0;
  std::int64_t q_head_stride = 0;
  PoolArgs pool[2];
  const float* attn_sink = nullptr;  // [h] or null
  std::uint16_t* out = nullptr;      // [n, h, d_v] in q's format
  float* lse = nullptr;              // [n, h] or null

  std::int32_t n = 0;
  std::int32_t h = 0;
  std::int32_t d = 0;
  std::int32_t d_v = 0;
  std::int32_t q_is_f16 = 0;
  std::int32_t q_is_aligned = 0;       // every head row of q starts at a multiple of 16 bytes
  std::int32_t scales_are_aligned = 0;  // every row of scales starts at a multiple of 16 bytes
  float scale_log2 = 0;                // softmax_scale * log2(e)

  std::int32_t head_groups = 0;   // CTAs per part: ceil(h / head tile)
  std::int32_t extra_parts = 0;   // parts beyond one per token: the grid holds n + extra_parts parts
  std::int32_t fixed_blocks = 0;  // blocks per part where the row must not depend on its batch; 0: planned

  // Workspace. Its contents before the call don't matter.
  const PartRecord* parts = nullptr;    // the plan, where plan_parts made it; null: every CTA plans for itself
  std::uint64_t* counters = nullptr;  // [2 * extra_parts, head_groups]: arrivals at a split token
  float2* partial_stats = nullptr;      // [2 * extra_parts, head_groups, head tile]: frame (log2) and sum
  float* partial_out = nullptr;         // [2 * extra_parts, head_groups, head tile, d_v]: unnormalised
};

}  // namespace sparse_mla::cuda::sm90::decode
