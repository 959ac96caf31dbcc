// How the work of a call is cut into parts, one CTA (of each head group) a part. Pure functions, host and device:
// tests/cuda/sm90/decode/plan_test.cc holds them against brute force.
//
// A token's slots, those of the first pool and then those of the second, are read in blocks of 64. A part is a run of
// blocks of one token; a token of more than `blocks_per_part` blocks is cut into equal parts. Every token has at least
// one part, which writes its zeros if it has no slots. The number of parts never exceeds n + extra_parts, whatever is
// in indptr, so the grid is known without reading it.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/policy.h"

namespace sparse_mla::cuda::sm90::decode {

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

SPARSE_MLA_HD inline std::int64_t blocks_of(std::int64_t slots) { return (slots + kBlock - 1) / kBlock; }

// Blocks per part so that `extra` parts beyond one per token suffice: sum of ceil(b / c) <= n + total / c.
SPARSE_MLA_HD inline std::int64_t least_blocks_per_part(std::int64_t total_blocks, std::int64_t extra) {
  const std::int64_t blocks = (total_blocks + extra - 1) / extra;
  return blocks > 1 ? blocks : 1;
}
SPARSE_MLA_HD inline std::int64_t parts_of(std::int64_t blocks, std::int64_t blocks_per_part) {
  if (blocks <= blocks_per_part) return 1;
  // A token has less than 2^27 blocks, so 32 bits do, and divide faster.
  const auto per_part = static_cast<std::uint32_t>(blocks_per_part);
  return (static_cast<std::uint32_t>(blocks) + per_part - 1) / per_part;
}

// What one CTA does.
struct PartRecord {
  std::int32_t token = -1;        // -1: nothing
  std::int32_t first_block = 0;   // of the token's blocks
  std::int32_t blocks = 0;
  std::int32_t part = 0;          // number of this part within its token
  std::int32_t parts = 0;         // parts of the token
  std::int32_t partial = 0;       // where the token's partial results start, if parts > 1
};

// Part `part` of `parts` equal ones of a token of `blocks` blocks.
SPARSE_MLA_HD inline PartRecord part_record(std::int32_t token, std::int64_t blocks, std::int32_t part, std::int32_t parts,
                                     std::int32_t partial) {
  const std::int64_t first = blocks * part / parts;
  const std::int64_t last = blocks * (part + 1) / parts;
  return {token, static_cast<std::int32_t>(first), static_cast<std::int32_t>(last - first), part, parts, partial};
}

}  // namespace sparse_mla::cuda::sm90::decode
