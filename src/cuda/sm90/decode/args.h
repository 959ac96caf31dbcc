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

struct Start;

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
  std::int32_t q_is_aligned = 0;        // every head row of q starts at a multiple of 16 bytes
  std::int32_t scales_are_aligned = 0;  // rows of eight scales that start at multiples of 16 bytes
  float scale_log2 = 0;                 // softmax_scale * log2(e)

  std::int32_t head_groups = 0;  // CTAs per window: ceil(h / head tile)
  std::int32_t windows = 0;      // see plan.h
  std::int32_t cluster = 1;      // windows in a row whose CTAs (of one head group) are a cluster
  std::int32_t partials = 0;     // partial results that the workspace holds, per head group
  std::int32_t is_batch_invariant = 0;

  // Workspace. Its contents before the call don't matter.
  const Start* starts = nullptr;      // [windows] where plan_windows found them; null: every CTA finds its own
  std::uint64_t* counters = nullptr;  // [partials, head_groups]: arrivals at a token in several parts
  float2* partial_stats = nullptr;    // [partials, head_groups, head tile]: frame (log2) and sum
  float* partial_out = nullptr;       // [partials, head_groups, head tile, 64 value groups]: unnormalised
};

}  // namespace sparse_mla::cuda::sm90::decode
