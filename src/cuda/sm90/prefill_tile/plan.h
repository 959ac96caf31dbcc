// How a call is cut into work: the width of the head tile, and over how many CTAs a row's tokens are split.
// Depends on shapes and on the number of multiprocessors only, so a captured graph stays right for other index values.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace sparse_mla::cuda::sm90::prefill_tile {

struct Plan {
  int heads = 64;  // 8, 16, 32 or 64
  int splits = 1;  // CTAs of a cluster that share a row; 1 is no cluster
  bool operator==(const Plan&) const = default;
};

constexpr int smallest_tile(int h_q) { return h_q <= 8 ? 8 : h_q <= 16 ? 16 : h_q <= 32 ? 32 : 64; }

// CTAs that run at once as clusters of `splits`, one CTA per multiprocessor: clusters don't cross a GPC, so some stay idle.
// 132 multiprocessors hold 66, 39, 30, 22 and 15 clusters of 2, 3, 4, 5 and 8.
constexpr std::int64_t resident_ctas(int splits, int multiprocessors) {
  const std::int64_t of_132 = splits == 1 ? 132 : splits == 2 ? 132 : splits == 3 ? 117 : splits == 4 ? 120
                              : splits == 5 ? 110 : 120;
  return of_132 * multiprocessors / 132 / splits * splits;
}

// Cycles of a call, roughly: what the plan minimises. Per block of 64 tokens 2000 (64 heads) to 1650 (8 heads).
constexpr std::int64_t estimated_cycles(const Plan& plan, std::int64_t s_q, int h_q, std::int64_t topk,
                                        int multiprocessors) {
  constexpr std::int64_t kFixed = 6000;
  constexpr std::int64_t kRowEnd = 4000;
  const std::int64_t per_block = plan.heads == 64 ? 2000 : plan.heads == 32 ? 1900 : plan.heads == 16 ? 1750 : 1650;
  const std::int64_t blocks = (topk + 63) / 64;
  const std::int64_t items = s_q * ((h_q + plan.heads - 1) / plan.heads);
  const std::int64_t resident = resident_ctas(plan.splits, multiprocessors);
  if (resident == 0 || (plan.splits > 1 && items > 65535)) return INT64_MAX;  // items are the grid's y
  const std::int64_t waves = (items * plan.splits + resident - 1) / resident;
  const std::int64_t mine = (blocks + plan.splits - 1) / plan.splits * per_block;
  if (plan.splits == 1) return kFixed + waves * (mine + kRowEnd);
  const std::int64_t merge = 3500 + plan.heads * 40;
  return waves * (kFixed + mine + merge);
}

constexpr Plan make_plan(std::int64_t s_q, int h_q, std::int64_t topk, int multiprocessors, bool batch_invariant) {
  Plan best{.heads = smallest_tile(h_q), .splits = 1};
  if (batch_invariant) return best;
  for (int heads = best.heads; heads >= 8; heads /= 2) {
    for (const int splits : {1, 2, 3, 4, 5, 8}) {
      const Plan plan{.heads = heads, .splits = splits};
      if (splits > (topk + 63) / 64) continue;
      if (estimated_cycles(plan, s_q, h_q, topk, multiprocessors) <
          estimated_cycles(best, s_q, h_q, topk, multiprocessors)) {
        best = plan;
      }
    }
  }
  return best;
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
