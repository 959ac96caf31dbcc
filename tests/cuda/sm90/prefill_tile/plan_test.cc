// What the kernel decides on the host: how a call is cut, which blocks adopt frames, where shared memory goes.
#include <cmath>

#include <gtest/gtest.h>

#include "cuda/sm90/prefill_tile/plan.h"
#include "cuda/sm90/prefill_tile/policy.h"
#include "cuda/sm90/prefill_tile/shared.h"
#include "cuda/sync/ring.h"

namespace sparse_mla::cuda::sm90::prefill_tile {
namespace {

constexpr int kMultiprocessors = 132;

TEST(PrefillTilePlan, TheTileIsTheSmallestThatHoldsTheHeads) {
  for (int h_q = 1; h_q <= 64; ++h_q) {
    const int tile = smallest_tile(h_q);
    EXPECT_GE(tile, h_q);
    EXPECT_TRUE(tile == 8 || tile / 2 < h_q) << h_q;
  }
  EXPECT_EQ(smallest_tile(65), 64);
}

TEST(PrefillTilePlan, FullCallsAreNotSplit) {
  for (const int heads : {8, 16, 32, 64}) {
    const Plan plan = make_plan(4096, heads, 2048, kMultiprocessors, false);
    EXPECT_EQ(plan, (Plan{.heads = heads, .splits = 1})) << heads;
  }
}

TEST(PrefillTilePlan, FewQueriesAreSplitAndFitTheCardAtOnce) {
  for (const int s_q : {1, 2, 4, 8}) {
    const Plan plan = make_plan(s_q, 128, 2048, kMultiprocessors, false);
    EXPECT_GT(plan.splits, 1) << s_q;
    EXPECT_LE(s_q * (128 / plan.heads) * plan.splits, resident_ctas(plan.splits, kMultiprocessors)) << s_q;
  }
}

TEST(PrefillTilePlan, ARowIsNeverCutIntoMorePartsThanBlocksOrAPortableClusterHolds) {
  for (std::int64_t topk = 1; topk <= 640; topk += 21) {
    for (const int s_q : {1, 3, 40}) {
      const Plan plan = make_plan(s_q, 16, topk, kMultiprocessors, false);
      EXPECT_LE(plan.splits, (topk + 63) / 64) << topk;
      EXPECT_LE(plan.splits, kMaxSplits);
    }
  }
}

TEST(PrefillTilePlan, BatchInvariantCallsAreCutTheSameWayWhateverTheNumberOfRows) {
  for (const int h_q : {8, 16, 64, 128}) {
    const Plan one = make_plan(1, h_q, 2048, kMultiprocessors, true);
    for (const int s_q : {2, 131, 4096}) EXPECT_EQ(make_plan(s_q, h_q, 2048, kMultiprocessors, true), one);
    EXPECT_EQ(one.splits, 1);
  }
}

TEST(PrefillTilePlan, ACardTooSmallForAClusterStillGetsAPlan) {
  EXPECT_EQ(make_plan(1, 8, 2048, 1, false).splits, 1);
}

TEST(PrefillTileFrames, TheFirstBlockAdoptsAndBothWarpgroupsDoOneAfterTheOther) {
  EXPECT_TRUE(adopts(0));
  for (unsigned block = 0; block < 256; block += 2) EXPECT_EQ(adopts(block), adopts(block + 1)) << block;
}

TEST(PrefillTileFrames, TheLargestProbabilityFitsE4m3) { EXPECT_LT(std::exp2(kTopExponent + kHeadroom), 448.0f); }

TEST(PrefillTileRing, ParitiesAlternateByLap) {
  using Ring = RingPosition<4>;
  for (std::uint32_t block = 0; block < 64; ++block) {
    const Ring at(block);
    EXPECT_EQ(at.slot, block % 4);
    EXPECT_EQ(at.full_parity(), (block / 4) % 2);
    EXPECT_NE(at.full_parity(), at.empty_parity());
  }
}

// Compile-time: every instance's shared memory fits a CTA (shared.h asserts it when it is instantiated).
template <int kHeads>
constexpr bool fits() {
  return Shared<kPolicyOf<kHeads, 512, false>>::bytes <= 232448 && Shared<kPolicyOf<kHeads, 576, true>>::bytes <= 232448;
}
static_assert(fits<8>() && fits<16>() && fits<32>() && fits<64>());

}  // namespace
}  // namespace sparse_mla::cuda::sm90::prefill_tile
