// Which row of the transfer a group of 8 lanes moves, and from where to where.
#pragma once

#include <cstdint>

#include "base/kv_transfer.h"
#include "cuda/sm90/kv/policy.h"

namespace sparse_mla::cuda::sm90::kv {

inline constexpr std::int64_t kNoSlot = -1;

// Slot i of a list of `rows` slots, or kNoSlot.
__device__ inline std::int64_t slot_at(const KvSlots& slots, std::int64_t i, std::int64_t first, std::int64_t rows) {
  std::int64_t slot = first + i;
  if (slots.data != nullptr) {
    slot = slots.wide ? static_cast<const std::int64_t*>(slots.data)[i] : static_cast<const std::int32_t*>(slots.data)[i];
  }
  return slot >= 0 && slot < rows ? slot : kNoSlot;
}
__device__ inline std::int64_t source_of(const KvTransferProblem& p, std::int64_t i) {
  return slot_at(p.source_slots, i, 0, p.source.rows);
}
__device__ inline std::int64_t target_of(const KvTransferProblem& p, std::int64_t i) {
  return slot_at(p.target_slots, i, p.first_row, p.target.rows);
}

struct Offsets {
  std::int64_t data;
  std::int64_t scales;
};
// Slots are below 2^31 (a rule), so that one 32-bit division finds the page.
__device__ inline Offsets offsets_of(const KvPlaces& places, std::int64_t slot) {
  if (places.page_size == 1) return {slot * places.page_bytes, slot * places.scale_page_bytes};
  const auto page_size = static_cast<std::uint32_t>(places.page_size);
  const std::uint32_t page = static_cast<std::uint32_t>(slot) / page_size;
  const std::uint32_t row = static_cast<std::uint32_t>(slot) - page * page_size;
  return {page * places.page_bytes + row * places.row_bytes,
          page * places.scale_page_bytes + row * places.scale_row_bytes};
}

// How a row of the transfer learns that a later one has its target slot.
enum class Repeats { kNever, kScan, kTable };

struct Lane {
  int group = threadIdx.x % 32 / kLanesPerRow;  // which of the warp's rows
  int sub = threadIdx.x % kLanesPerRow;         // which lane of that row
  __device__ unsigned mask() const { return 0xFFu << (group * kLanesPerRow); }
};

// True where a row behind i is moved to the same slot. All 8 lanes of a row call it.
__device__ inline bool is_overtaken(const KvTransferProblem& p, Repeats repeats, const std::int32_t* last_row,
                                    std::int64_t i, std::int64_t slot, const Lane& lane) {
  if (repeats == Repeats::kNever) return false;
  if (repeats == Repeats::kTable) return last_row[slot] != i;
  bool found = false;
#pragma unroll 4
  for (std::int64_t later = i + 1 + lane.sub; later < p.count; later += kLanesPerRow) {
    found |= target_of(p, later) == slot && source_of(p, later) != kNoSlot;
  }
  return __any_sync(lane.mask(), found);
}

}  // namespace sparse_mla::cuda::sm90::kv
