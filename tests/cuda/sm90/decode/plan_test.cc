// The plan of src/cuda/sm90/decode/plan.h against brute force: whatever the lengths, every block of every token is done
// once, the CTAs agree on who does what, and the work is even.
#include "cuda/sm90/decode/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace sparse_mla::cuda::sm90::decode {
namespace {

using Blocks = std::vector<std::int32_t>;

struct Shape {
  std::int32_t windows = 132;
  std::int32_t cluster = 1;
  bool fixed = false;
  std::int32_t partials = 1 << 20;
};

Balance balance_for(const Blocks& blocks, const Shape& setup) {
  BlockStatistics statistics;
  for (const std::int32_t b : blocks) count(statistics, b);
  return balance_of(statistics, static_cast<std::int32_t>(blocks.size()), setup.windows, setup.cluster, setup.fixed);
}

// The token over the window's begin, by walking from the first.
Place start_of(const Balance& balance, const Blocks& blocks, const Shape& setup, std::int32_t window) {
  if (balance.mode == kTogether) return {window / setup.cluster, 0, 0};
  Place place;
  while (place.token < std::ssize(blocks)) {
    const Place next = after(balance, place, blocks[place.token]);
    if (balance.window * window < next.start) break;
    place = next;
  }
  return place;
}

std::vector<std::vector<PartRecord>> plan(const Blocks& blocks, const Shape& setup) {
  const Balance balance = balance_for(blocks, setup);
  std::vector<std::vector<PartRecord>> parts(setup.windows);
  for (std::int32_t window = 0; window < setup.windows; ++window) {
    Window walk{balance,       window,         static_cast<std::int32_t>(blocks.size()),
                setup.cluster, setup.partials, start_of(balance, blocks, setup, window)};
    const auto blocks_of_token = [&](std::int32_t token) { return blocks[token]; };
    for (PartRecord part = walk.next(blocks_of_token); part.token >= 0; part = walk.next(blocks_of_token)) {
      parts[window].push_back(part);
    }
  }
  return parts;
}

void expect_complete(const Blocks& blocks, const Shape& setup) {
  std::vector<std::vector<PartRecord>> of_token(blocks.size());
  std::set<std::int32_t> partials;
  for (const auto& window : plan(blocks, setup)) {
    for (const PartRecord& part : window) of_token[part.token].push_back(part);
  }
  for (std::size_t token = 0; token < blocks.size(); ++token) {
    auto& parts = of_token[token];
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.part < b.part; });
    ASSERT_FALSE(parts.empty()) << "token " << token << " is done by nobody";
    std::int32_t next_block = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const PartRecord& part = parts[i];
      ASSERT_EQ(part.part, static_cast<std::int32_t>(i)) << "token " << token;
      ASSERT_EQ(part.parts, static_cast<std::int32_t>(parts.size())) << "token " << token;
      ASSERT_EQ(part.first_block, next_block) << "token " << token << " part " << i;
      next_block += part.blocks;
      if (part.parts == 1) continue;
      ASSERT_GT(part.blocks, 0) << "an empty part of token " << token;
      // Every CTA names the same place for a part, and no two parts have the same.
      for (const PartRecord& other : parts) ASSERT_EQ(partial_of(other, part.part), partial_of(part, part.part));
      ASSERT_EQ(part.partials, parts.front().partials);
      ASSERT_TRUE(partials.insert(partial_of(part, part.part)).second) << "two parts share a partial result";
      ASSERT_GE(partial_of(part, part.part), 0);
      ASSERT_LT(partial_of(part, part.part), setup.fixed ? setup.partials : 2 * setup.windows);
    }
    ASSERT_EQ(next_block, blocks[token]) << "token " << token;
  }
}

Blocks random_blocks(std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) { return static_cast<std::int32_t>(random() % n); };
  Blocks blocks(1 + below(below(2) != 0 ? 300 : 12));
  const int kind = below(6);
  const std::int32_t longest = 1 + below(below(2) != 0 ? 12 : 1600);
  for (std::int32_t& b : blocks) {
    b = kind == 0       ? longest
        : kind == 1     ? below(longest + 1)
        : kind == 2     ? longest - below(2)
        : below(4) != 0 ? below(3)
                        : below(longest);
    b = std::max(b, 0);
  }
  if (kind == 5) blocks[below(std::ssize(blocks))] = 100000 / 64;
  return blocks;
}

TEST(DecodePlan, EveryBlockIsDoneOnceWhateverTheLengths) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000; ++i) {
    const Blocks blocks = random_blocks(random);
    Shape setup;
    setup.windows = std::vector<std::int32_t>{1, 2, 8, 16, 33, 66, 132}[random() % 7];
    setup.cluster = std::vector<std::int32_t>{1, 1, 2, 3, 5}[random() % 5];
    if (setup.windows % setup.cluster != 0) setup.cluster = 1;
    setup.fixed = random() % 4 == 0;
    SCOPED_TRACE("case " + std::to_string(i));
    ASSERT_NO_FATAL_FAILURE(expect_complete(blocks, setup));
  }
}

TEST(DecodePlan, MixedLengthsAreSharedEvenly) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 200; ++i) {
    Blocks blocks(200 + random() % 200);
    std::int64_t total = 0;
    for (std::int32_t& b : blocks) total += b = static_cast<std::int32_t>(random() % (random() % 8 == 0 ? 200 : 20));
    const Shape setup;
    const Balance balance = balance_for(blocks, setup);
    for (const auto& window : plan(blocks, setup)) {
      std::int64_t cost = 0;
      for (const PartRecord& part : window) cost += part.blocks + kOverhead;
      // A window's length, the parts that are cut in two, and pieces too small to cut.
      ASSERT_LE(cost, balance.window + 2 * kOverhead + 2 * kLeastPiece);
    }
  }
}

TEST(DecodePlan, OneLongTokenIsSpreadOverAllCtas) {
  Blocks blocks(31, 1);
  blocks[17] = 100000 / 64;
  const Shape setup{.windows = 132};
  std::size_t busiest = 0;
  for (const auto& window : plan(blocks, setup)) {
    std::size_t work = 0;
    for (const PartRecord& part : window) work += part.blocks;
    busiest = std::max(busiest, work);
  }
  EXPECT_LE(busiest, 1600u / 132 + 4);
}

TEST(DecodePlan, EqualTokensStayWhole) {
  for (const std::int32_t n : {128, 132, 264}) {
    for (const auto& window : plan(Blocks(n, 10), Shape{})) {
      for (const PartRecord& part : window) EXPECT_EQ(part.parts, 1);
    }
  }
}

TEST(DecodePlan, ABatchInvariantTokenIsCutWithoutRegardToTheOthers) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    Blocks blocks = random_blocks(random);
    std::map<std::int32_t, std::int32_t> alone, together;  // first block -> blocks
    for (const auto& window : plan({blocks[0]}, {.fixed = true})) {
      for (const PartRecord& part : window) alone[part.first_block] = part.blocks;
    }
    for (const auto& window : plan(blocks, {.fixed = true})) {
      for (const PartRecord& part : window) {
        if (part.token == 0) together[part.first_block] = part.blocks;
      }
    }
    ASSERT_EQ(alone, together);
  }
}

TEST(DecodePlan, BatchInvariantTokensStayWholeWherePartialResultsRunOut) {
  const Blocks blocks(40, 1000);
  const Shape setup{.fixed = true, .partials = 50};
  ASSERT_NO_FATAL_FAILURE(expect_complete(blocks, setup));
}

TEST(DecodePlan, SegmentsOfAHostileIndptr) {
  EXPECT_EQ(segment_of(10, 30, 100).length, 20);
  EXPECT_EQ(segment_of(30, 10, 100).length, 0);
  EXPECT_EQ(segment_of(-5, 10, 100).begin, 0);
  EXPECT_EQ(segment_of(-5, 10, 100).length, 10);
  EXPECT_EQ(segment_of(90, 2147483647, 100).length, 10);
  EXPECT_EQ(segment_of(2147483647, 2147483647, 100).length, 0);
  EXPECT_EQ(segment_of(-2147483647 - 1, -1, 100).length, 0);
  EXPECT_EQ(segment_of(0, 2147483647, 2147483647).length, 2147483647);
}

}  // namespace
}  // namespace sparse_mla::cuda::sm90::decode
