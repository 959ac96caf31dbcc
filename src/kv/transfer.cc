#include "kv/transfer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "base/kv_scales.h"
#include "kv/simd.h"
#include "kv/threads.h"

namespace sparse_mla::kv {
namespace {

constexpr std::int64_t kChunkRows = 64;

// A row's float32 values.
struct RowBuffer {
  alignas(64) std::array<float, kMaxKvWidth> values;
};

constexpr std::int64_t kNone = -1;

// Slot i of a list of `rows` slots, or kNone.
std::int64_t slot_at(const KvSlots& slots, std::int64_t i, std::int64_t first, std::int64_t rows) {
  std::int64_t slot = first + i;
  if (slots.data != nullptr) {
    slot = slots.wide ? static_cast<const std::int64_t*>(slots.data)[i] : static_cast<const std::int32_t*>(slots.data)[i];
  }
  return slot >= 0 && slot < rows ? slot : kNone;
}
std::int64_t source_of(const KvTransferProblem& p, std::int64_t i) {
  return slot_at(p.source_slots, i, 0, p.source.rows);
}
std::int64_t target_of(const KvTransferProblem& p, std::int64_t i) {
  return slot_at(p.target_slots, i, p.first_row, p.target.rows);
}

// Which rows of the transfer are overtaken: a later row has the same target slot. Empty where none can be.
class Overtaken {
 public:
  explicit Overtaken(const KvTransferProblem& p) {
    if (p.target_slots.data == nullptr || p.unique_target_slots || p.count < 2) return;
    overtaken_.assign(static_cast<std::size_t>(p.count), false);
    constexpr std::int64_t kSparse = 16;
    if (p.target.rows / kSparse <= p.count) {
      mark_by_slot(p);
    } else {
      mark_by_sorting(p);
    }
  }
  bool operator()(std::int64_t i) const { return !overtaken_.empty() && overtaken_[static_cast<std::size_t>(i)]; }

 private:
  // One table entry a slot: the last row seen.
  void mark_by_slot(const KvTransferProblem& p) {
    std::vector<std::int64_t> last(static_cast<std::size_t>(p.target.rows), kNone);
    for (std::int64_t i = 0; i < p.count; ++i) {
      if (source_of(p, i) == kNone) continue;
      const std::int64_t slot = target_of(p, i);
      if (slot == kNone) continue;
      if (last[slot] != kNone) overtaken_[last[slot]] = true;
      last[slot] = i;
    }
  }
  // Where the pool has many more slots than the transfer has rows.
  void mark_by_sorting(const KvTransferProblem& p) {
    std::vector<std::pair<std::int64_t, std::int64_t>> by_slot;
    by_slot.reserve(static_cast<std::size_t>(p.count));
    for (std::int64_t i = 0; i < p.count; ++i) {
      const std::int64_t slot = target_of(p, i);
      if (slot != kNone && source_of(p, i) != kNone) by_slot.emplace_back(slot, i);
    }
    std::sort(by_slot.begin(), by_slot.end());
    for (std::size_t k = 0; k + 1 < by_slot.size(); ++k) {
      if (by_slot[k].first == by_slot[k + 1].first) overtaken_[by_slot[k].second] = true;
    }
  }

  std::vector<bool> overtaken_;
};

// Codes and scales as they are, between places of one layout.
void copy_row(const KvTransferProblem& p, std::int64_t source, std::int64_t target) {
  const std::int64_t front = p.width - p.source.tail;
  std::byte* to = p.target.data + p.target.offset_of(target);
  const std::byte* from = p.source.data + p.source.offset_of(source);
  std::memcpy(to, from, static_cast<std::size_t>(front));
  std::memcpy(to + p.target.tail_offset, from + p.source.tail_offset, static_cast<std::size_t>(2 * p.source.tail));
  const std::int64_t groups = front / p.source.group;
  const std::int64_t scale_bytes = p.source.scales_are_exponents ? groups : groups * std::int64_t{sizeof(float)};
  std::byte* scales = p.target.scales + p.target.scale_offset_of(target);
  std::memcpy(scales, p.source.scales + p.source.scale_offset_of(source), static_cast<std::size_t>(scale_bytes));
  if (p.target.scales_have_pad) scales[groups] = std::byte{0};
}

void raise_to(std::atomic<float>& largest, float value) {
  float seen = largest;
  while (value > seen && !largest.compare_exchange_weak(seen, value)) {
  }
}

// The one scale of a q8kv8 cache, from every row that has a source and a target slot.
float one_scale_for(const KvTransferProblem& p, int threads) {
  std::atomic<float> largest = 0.0f;
  for_each_chunk(p.count, kChunkRows, threads, [&](std::int64_t begin, std::int64_t end) {
    RowBuffer row;
    float amax = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t source = source_of(p, i);
      if (source == kNone || target_of(p, i) == kNone) continue;
      load_row(p.source, source, p.width, row.values.data());
      amax = std::max(amax, finite_amax(row.values.data(), p.width));
    }
    raise_to(largest, amax);
  });
  return p.scaling == KvScaling::kAmax ? amax_kv_scale(largest) : power_of_two_kv_scale(largest);
}

void move_row(const KvTransferProblem& p, std::int64_t i, const Overtaken& overtaken, float* row) {
  const std::int64_t source = source_of(p, i);
  const std::int64_t target = target_of(p, i);
  const bool is_moved = source != kNone && target != kNone;
  if (p.remapped != nullptr) p.remapped[i] = static_cast<std::int32_t>(is_moved ? target : kNone);
  if (!is_moved || overtaken(i)) return;
  if (p.copies_codes) return copy_row(p, source, target);
  load_row(p.source, source, p.width, row);
  const float* given = p.given_scales == nullptr ? nullptr : p.given_scales + i * p.given_row_stride;
  store_row(row, p.width, p.target, target, p.scaling, given);
}

}  // namespace

void transfer(const KvTransferProblem& problem, int threads) {
  if (problem.count == 0) return;
  const Overtaken overtaken(problem);
  if (problem.target.makes_one_scale(problem.scaling)) {
    *reinterpret_cast<float*>(problem.target.scales) = one_scale_for(problem, threads);
  }
  for_each_chunk(problem.count, kChunkRows, threads, [&](std::int64_t begin, std::int64_t end) {
    RowBuffer row;
    for (std::int64_t i = begin; i < end; ++i) move_row(problem, i, overtaken, row.values.data());
  });
}

}  // namespace sparse_mla::kv
