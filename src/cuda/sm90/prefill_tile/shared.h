// Shared memory of one CTA: offsets in bytes from a 1024-byte aligned base.
#pragma once

#include <cstdint>

#include "cuda/sm90/prefill_tile/policy.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

template <Policy kPolicy>
struct Shared {
  // A tile of 64 rows of d_qk bytes: four panels of 128 B per row (SWIZZLE_128B), then one of 64 B (SWIZZLE_64B).
  static constexpr std::uint32_t kPanel = 64 * 128;
  static constexpr std::uint32_t kRope = 4 * kPanel;
  static constexpr std::uint32_t kTile = kRope + (kPolicy.d_qk - kValueDims) * 64;
  static constexpr std::uint32_t kProbabilityTile = kPolicy.heads * kBlockTokens;

  static constexpr std::uint32_t q = 0;                                   // loader -> MMA
  static constexpr std::uint32_t kv = q + kTile;                          // loader -> MMA, `slots` tiles
  static constexpr std::uint32_t p = kv + kPolicy.slots * kTile;          // MMA -> MMA, [heads][64 tokens] e4m3
  static constexpr std::uint32_t alpha = p + kProbabilitySlots * kProbabilityTile;  // MMA -> MMA, f32 [4][64]
  static constexpr std::uint32_t moved = alpha + kProbabilitySlots * 64 * 4;        // MMA -> MMA, 4 bytes per slot
  static constexpr std::uint32_t frame = moved + kProbabilitySlots * 4;             // MMA -> MMA, f32 [2][64]
  static constexpr std::uint32_t sums = frame + 2 * 64 * 4;               // row end: {sum, frame, maximum, -} f32 [row parity][group][64]
  static constexpr std::uint32_t factor = sums + 4 * 64 * 16;              // row end: f32 [group][64]
  static constexpr std::uint32_t part = factor + 2 * 64 * 4;              // split: {sum, frame, maximum, -} f32 [64]
  static constexpr std::uint32_t weight = part + 64 * 16;                 // split: f32 [kMaxSplits][64]
  static constexpr std::uint32_t valid = weight + (kPolicy.split ? kMaxSplits * 64 * 4 : 0);  // loader -> MMA, 64 bits a slot
  static constexpr std::uint32_t barriers = valid + kPolicy.slots * 8;

  static constexpr std::uint32_t full = barriers;                         // [slots]
  static constexpr std::uint32_t empty = full + kPolicy.slots * 8;        // [slots]
  static constexpr std::uint32_t p_full = empty + kPolicy.slots * 8;      // [4]
  static constexpr std::uint32_t p_empty = p_full + kProbabilitySlots * 8;  // [4]
  static constexpr std::uint32_t chain = p_empty + kProbabilitySlots * 8;   // [2][4 warps]
  static constexpr std::uint32_t q_full = chain + 8 * 8;
  static constexpr std::uint32_t q_empty = q_full + 8;
  static constexpr std::uint32_t sums_full = q_empty + 8;
  static constexpr std::uint32_t bytes = sums_full + 8;

  // Where a split's O^T waits for the merge, over the kv slots (and P): f32 [heads][512], rows 16 bytes apart in banks.
  static constexpr std::uint32_t stage = kv;
  static constexpr std::uint32_t kStageRow = kValueDims * 4 + 16;
  static_assert(kPolicy.heads * kStageRow <= kPolicy.slots * kTile + kProbabilitySlots * kProbabilityTile);

  static_assert(bytes <= 232448, "prefill_tile needs more than the 227 KiB a CTA can have on sm_90");
  static_assert(kv % 1024 == 0 && kTile % 1024 == 0 && p % 512 == 0 && kProbabilityTile % 512 == 0);
  static_assert(alpha % 16 == 0 && barriers % 8 == 0);
};

}  // namespace sparse_mla::cuda::sm90::prefill_tile
