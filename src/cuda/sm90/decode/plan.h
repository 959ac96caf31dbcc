// How the work of a call is cut and dealt to CTAs. Pure functions, host and device: tests/cuda/sm90/decode/plan_test.cc
// holds them against brute force.
//
// A token's slots, those of the first pool and then those of the second, are read in blocks of 64; a token without
// slots counts as one block. Tokens lie one after the other on a line, each as long as its blocks plus `overhead`
// (what a part costs beside its blocks). The line is cut into equal windows; a window is the work of one CTA of each
// head group. A token that lies in several windows is one part in each, merged afterwards. So the grid is known
// without reading indptr, every CTA gets the same number of blocks, and a window holds at most two pieces of tokens
// that are cut: the end of one at its front, the start of one at its back.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/policy.h"

namespace sparse_mla::cuda::sm90::decode {

inline constexpr std::int32_t kOverhead = 4;      // cost of a part, in blocks
inline constexpr std::int32_t kLeastPiece = 3;    // smaller pieces stay with their neighbour
inline constexpr std::int32_t kLongWindow = 8;    // windows from which kLeastPiece applies
inline constexpr std::int32_t kFixedBlocks = 64;  // blocks of a part in batch-invariant mode: 4096 slots

// A token's slots in one pool: [begin, begin + length) of its index list. A step back is empty; what lies outside
// [0, total) does not count.
struct Segment {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
SPARSE_MLA_HD inline Segment segment_of(std::int32_t first, std::int32_t last, std::int64_t total) {
  const std::int64_t begin = first < 0 ? 0 : first;
  const std::int64_t end = last < total ? last : total;
  return {begin, end > begin ? end - begin : 0};
}

SPARSE_MLA_HD inline std::int32_t blocks_of(std::int64_t slots) {
  return static_cast<std::int32_t>((slots + kBlock - 1) / kBlock);
}
// What a token counts on the line.
SPARSE_MLA_HD inline std::int32_t line_blocks(std::int32_t blocks) { return blocks > 0 ? blocks : 1; }

// What all CTAs must agree on.
struct Balance {
  std::int64_t window = 1;    // length of a window
  std::int32_t overhead = 0;  // of a token (batch-invariant: of a part) on the line
  std::int32_t mode = 0;      // kWhole, kCut or kFixed
};
inline constexpr std::int32_t kWhole = 0;     // tokens are not cut
inline constexpr std::int32_t kCut = 1;       // tokens are cut at window ends
inline constexpr std::int32_t kFixed = 2;     // tokens are cut every kFixedBlocks, whatever else is in the batch
inline constexpr std::int32_t kTogether = 3;  // a token to a cluster: equal parts, one in each of its windows

// Where a token lies. `partial`: batch-invariant mode only, partial results of the tokens before.
struct Place {
  std::int32_t token = 0;
  std::int32_t partial = 0;
  std::int64_t start = 0;
};

// What a CTA starts from: the token over the begin of its window; token n is none.
struct Start {
  Balance balance;
  Place place;
};

SPARSE_MLA_HD inline std::int32_t fixed_parts(std::int32_t blocks) {
  return (line_blocks(blocks) + kFixedBlocks - 1) / kFixedBlocks;
}
SPARSE_MLA_HD inline std::int64_t line_length(const Balance& b, std::int32_t blocks) {
  return line_blocks(blocks) + static_cast<std::int64_t>(b.overhead) * (b.mode == kFixed ? fixed_parts(blocks) : 1);
}

struct BlockStatistics {
  std::int64_t total = 0;  // of line_blocks
  std::int64_t fixed_parts = 0;
  std::int32_t least = 0x7FFFFFFF;
  std::int32_t most = 0;
};
SPARSE_MLA_HD inline void count(BlockStatistics& s, std::int32_t blocks) {
  const std::int32_t on_line = line_blocks(blocks);
  s.total += on_line;
  s.fixed_parts += fixed_parts(blocks);
  s.least = on_line < s.least ? on_line : s.least;
  s.most = on_line > s.most ? on_line : s.most;
}

// a / b, upwards.
SPARSE_MLA_HD inline std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  if ((a | b) >> 31 == 0) {  // 32 bits divide much faster
    return (static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b) - 1) / static_cast<std::uint32_t>(b);
  }
  return (a + b - 1) / b;
}

SPARSE_MLA_HD inline std::int64_t divide(std::int64_t a, std::int64_t b) {
  if ((a | b) >> 31 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

// Tokens of (nearly) equal length are left whole where that takes no longer than cutting them would.
// `cluster`: so many windows in a row are CTAs of one cluster. Where tokens are few and none is much longer than the
// others, each goes to a cluster, whose CTAs merge without a detour.
SPARSE_MLA_HD inline Balance balance_of(const BlockStatistics& s, std::int32_t n, std::int32_t windows,
                                        std::int32_t cluster, bool fixed) {
  Balance b;
  if (!fixed && cluster > 1 && static_cast<std::int64_t>(n) * cluster <= windows &&
      s.most <= 2 * divide_up(s.total, n)) {
    b.mode = kTogether;
    b.window = cluster;  // places count windows: token t starts at t * cluster
    return b;
  }
  b.overhead = n > windows || fixed ? kOverhead : 0;
  if (fixed) {
    b.mode = kFixed;
    b.window = divide_up(s.total + b.overhead * s.fixed_parts, windows);
    return b;
  }
  b.window = divide_up(s.total + static_cast<std::int64_t>(b.overhead) * n, windows);
  const std::int64_t pieces = n > windows || 2 * static_cast<std::int64_t>(n) <= windows ? 1 : 2;
  const std::int64_t cut = b.window + pieces * kOverhead;
  const std::int64_t whole = s.most - s.least <= 1
                                 ? divide_up(n, windows) * (static_cast<std::int64_t>(s.most) + kOverhead)
                                 : b.window + s.most + kOverhead;
  b.mode = cut < whole ? kCut : kWhole;
  if (b.mode == kWhole && s.most - s.least <= 1) {
    b.window = divide_up(n, windows) * (static_cast<std::int64_t>(s.most) + b.overhead);
  }
  return b;
}

// How many of a token's blocks come before `boundary`, a window's end.
SPARSE_MLA_HD inline std::int32_t blocks_before(const Balance& b, std::int64_t start, std::int32_t blocks,
                                                std::int64_t boundary) {
  const std::int32_t on_line = line_blocks(blocks);
  if (b.mode == kWhole) return boundary > start ? on_line : 0;
  const std::int64_t before = boundary - start - b.overhead;
  const std::int32_t least = b.window >= kLongWindow ? kLeastPiece : 1;
  if (before < least) return on_line < least && before >= on_line ? on_line : 0;
  if (on_line - before < least) return on_line;
  return static_cast<std::int32_t>(before);
}

// What one CTA does next.
struct PartRecord {
  std::int32_t token = -1;       // -1: nothing more
  std::int32_t first_block = 0;  // of the token's blocks
  std::int32_t blocks = 0;
  std::int32_t part = 0;   // number of this part within its token
  std::int32_t parts = 0;  // parts of the token
  // Where partial results lie: part 0 at first_partial, part p > 0 at partials + p * partial_step.
  std::int32_t first_partial = 0;
  std::int32_t partials = 0;  // also the token's counter
  std::int32_t partial_step = 0;
};
SPARSE_MLA_HD inline std::int32_t partial_of(const PartRecord& r, std::int32_t part) {
  return part == 0 ? r.first_partial : r.partials + part * r.partial_step;
}

// The part of the token at `place` that lies in `window`, if any (blocks of an empty token: 0). Modes kWhole and kCut.
SPARSE_MLA_HD inline PartRecord part_in_window(const Balance& b, const Place& place, std::int32_t blocks,
                                               std::int32_t window) {
  const std::int64_t begin = b.window * window;
  const std::int32_t from = blocks_before(b, place.start, blocks, begin);
  const std::int32_t to = blocks_before(b, place.start, blocks, begin + b.window);
  PartRecord r;
  if (from == to) return r;
  const std::int32_t on_line = line_blocks(blocks);
  r.token = place.token;
  r.first_block = from;
  r.blocks = blocks > 0 ? to - from : 0;
  std::int32_t first = window;
  std::int32_t last = window;
  if (from > 0) {
    first = static_cast<std::int32_t>(divide(place.start, b.window));
    while (blocks_before(b, place.start, blocks, b.window * (first + 1)) == 0) ++first;
  }
  if (to < on_line) {
    last = static_cast<std::int32_t>(divide(place.start + b.overhead + on_line - 1, b.window));
    while (blocks_before(b, place.start, blocks, b.window * last) == on_line) --last;
  }
  r.part = window - first;
  r.parts = last - first + 1;
  r.first_partial = 2 * first + 1;
  r.partials = 2 * first;
  r.partial_step = 2;
  return r;
}

// Part `k` of a token in mode kFixed. Where `partials` run out (overlapping segments only), the token stays whole.
SPARSE_MLA_HD inline PartRecord fixed_part(const Place& place, std::int32_t blocks, std::int32_t k,
                                           std::int32_t partials) {
  PartRecord r;
  r.token = place.token;
  r.parts = fixed_parts(blocks);
  if (r.parts > partials - place.partial) r.parts = 1;
  if (k >= r.parts) return {};
  r.first_block = k * kFixedBlocks;
  const std::int32_t left = blocks - r.first_block;
  r.blocks = r.parts > 1 && left > kFixedBlocks ? kFixedBlocks : left;
  r.part = k;
  r.first_partial = place.partial;
  r.partials = place.partial;
  r.partial_step = 1;
  return r;
}

// Part `member` of a token in mode kTogether.
SPARSE_MLA_HD inline PartRecord together_part(std::int32_t token, std::int32_t blocks, std::int32_t member,
                                              std::int32_t cluster) {
  PartRecord r;
  r.parts = line_blocks(blocks) < cluster ? line_blocks(blocks) : cluster;
  if (member >= r.parts) return {};
  r.token = token;
  r.first_block = static_cast<std::int32_t>(static_cast<std::int64_t>(blocks) * member / r.parts);
  r.blocks = static_cast<std::int32_t>(static_cast<std::int64_t>(blocks) * (member + 1) / r.parts) - r.first_block;
  r.part = member;
  r.first_partial = token * cluster;
  r.partials = token * cluster;
  r.partial_step = 1;
  return r;
}

// The next token's place.
SPARSE_MLA_HD inline Place after(const Balance& b, const Place& place, std::int32_t blocks) {
  const std::int32_t parts = b.mode == kFixed ? fixed_parts(blocks) : 0;
  return {place.token + 1, place.partial + (parts > 1 ? parts : 0), place.start + line_length(b, blocks)};
}

// From part to part through a window, from the token over its begin on.
struct Window {
  Balance balance;
  std::int32_t window = 0;
  std::int32_t n = 0;
  std::int32_t cluster = 1;
  std::int32_t partials = 0;  // that the workspace holds
  Place place;
  std::int32_t fixed = 0;  // mode kFixed: the next part of the token

  // `blocks_of_token(t)` is called for the tokens it comes to; the last one is that of the part. Token -1: the end.
  template <class BlocksOfToken>
  SPARSE_MLA_HD PartRecord next(BlocksOfToken&& blocks_of_token) {
    if (balance.mode == kTogether) return next_together(blocks_of_token);
    const std::int64_t begin = balance.window * window;
    const std::int64_t end = begin + balance.window;
    while (place.token < n && place.start < end) {
      const std::int32_t blocks = blocks_of_token(place.token);
      if (balance.mode != kFixed) {
        const PartRecord part = part_in_window(balance, place, blocks, window);
        place = after(balance, place, blocks);
        if (part.token >= 0) return part;
        continue;
      }
      // A part belongs to the window in which it starts.
      const std::int64_t at = place.start + static_cast<std::int64_t>(fixed) * (balance.overhead + kFixedBlocks);
      const PartRecord part = fixed_part(place, blocks, fixed, partials);
      if (part.token < 0) {
        fixed = 0;
        place = after(balance, place, blocks);
        continue;
      }
      if (at >= end) return {};
      ++fixed;
      if (at >= begin) return part;
    }
    return {};
  }

 private:
  template <class BlocksOfToken>
  SPARSE_MLA_HD PartRecord next_together(BlocksOfToken&& blocks_of_token) {
    const std::int32_t token = place.token;
    place.token = n;
    if (token >= n) return {};
    return together_part(token, blocks_of_token(token), window % cluster, cluster);
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
