// Shared memory of one CTA: offsets in bytes from a 1024-byte aligned base. Host and device.
//
// | buffer      | written by            | read by                    | dies                                    |
// |-------------|-----------------------|----------------------------|-----------------------------------------|
// | q           | MMA threads, per part | wgmma of S^T (B operand)   | end of a part                           |
// | p           | scoring warpgroups    | wgmma of O^T (B operand)   | p_free                                  |
// | kv          | gather (bulk copies)  | ldmatrix of K and V        | kv_free                                 |
// | key_scale   | gather                | scoring warps              | kv_free                                 |
// | value_scale | gather                | weighing warps             | kv_free                                 |
// | exponent    | gather                | scoring warps              | kv_free                                 |
// | frame, move | scoring warps         | scoring and weighing warps | kFrames blocks later                    |
// | column_max  | scoring warps         | scoring warps              | with the right to move frames           |
// | part        | gather                | MMA warps                  | part_free                               |
// | sums        | scoring warps, at end | all MMA threads            | end of a part; over p, free by then     |
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/policy.h"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
struct Shared {
  static constexpr std::uint32_t kPanel = P.heads * 128;  // [heads][64 values of 16 bits], 128-byte swizzle
  static constexpr std::uint32_t kSlot = kBlock * P.row_bytes();
  static constexpr std::uint32_t kKeyScaleRow = P.key_groups <= 8 ? 16 : 32;  // f16 per group of one token
  static constexpr std::uint32_t kKeyScaleSlot = P.has_scales() ? kBlock * kKeyScaleRow : 0;
  static constexpr std::uint32_t kValueScaleSlot = P.has_scales() ? P.value_groups * kBlock * 2 : 0;
  static constexpr std::uint32_t kExponentSlot = kBlock * 8;

  static constexpr std::uint32_t q = 0;
  static constexpr std::uint32_t p = q + P.key_groups * kPanel;
  static constexpr std::uint32_t kv = p + P.p_buffers() * kPanel;
  static constexpr std::uint32_t key_scale = kv + P.slots * kSlot;
  static constexpr std::uint32_t value_scale = key_scale + P.slots * kKeyScaleSlot;
  static constexpr std::uint32_t exponent = value_scale + P.slots * kValueScaleSlot;
  static constexpr std::uint32_t frame = exponent + P.slots * kExponentSlot;
  static constexpr std::uint32_t move = frame + kFrames * P.heads * 4;
  static constexpr std::uint32_t column_max = move + kFrames * P.heads * 4;
  static constexpr std::uint32_t moved = column_max + 4 * P.heads * 4;
  static constexpr std::uint32_t scratch = moved + kFrames * 4;  // reduction of max|q|, arrival at a split token
  static constexpr std::uint32_t part = scratch + 80;            // two PartRecords
  static constexpr std::uint32_t start = part + 64;              // the Start of this CTA's window
  static constexpr std::uint32_t row_addresses = start + 32;     // [gather warpgroup][kBlock] 64-bit
  static constexpr std::uint32_t barriers = row_addresses + P.gather_warpgroups() * kBlock * 8;
  static_assert(barriers % 16 == 0);

  static constexpr std::uint32_t kv_full = barriers;  // one of each per slot, P buffer or generation
  static constexpr std::uint32_t kv_free = kv_full + 8 * P.slots;
  static constexpr std::uint32_t p_full = kv_free + 8 * P.slots;
  static constexpr std::uint32_t p_free = p_full + 8 * P.p_buffers();
  static constexpr std::uint32_t frame_right = p_free + 8 * P.p_buffers();
  static constexpr std::uint32_t part_full = frame_right + 8 * kFrames;
  static constexpr std::uint32_t part_free = part_full + 8 * 2;
  static constexpr std::uint32_t bytes = part_free + 8 * 2;

  // At the end of a part, over p.
  static constexpr std::uint32_t sums = p;                          // [score warps = 8][heads] f32
  static constexpr std::uint32_t factors = sums + 8 * P.heads * 4;  // [heads] f32: 1 / denominator
  static_assert(9 * P.heads * 4 <= P.p_buffers() * kPanel);
  static_assert(bytes <= 232448, "more than the 227 KiB a block can have on sm_90");
  static_assert(kPanel % 1024 == 0 && kv % 16 == 0 && key_scale % 16 == 0 && value_scale % 16 == 0);
};

}  // namespace sparse_mla::cuda::sm90::decode
