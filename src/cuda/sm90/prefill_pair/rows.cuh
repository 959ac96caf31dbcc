// The rows of one pair of CTAs and their turns, in the order in which every role walks them.
#pragma once

#include <cstdint>

#include "cuda/sm90/prefill_pair/args.h"
#include "cuda/sm90/prefill_pair/policy.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

// Index slots of a row, as the caller wrote them (not clamped).
__device__ inline std::int32_t stored_length(const Args& args, std::uint32_t row) {
  if (args.topk_length == nullptr || row >= args.rows) return args.topk;
  return __ldg(args.topk_length + args.query_of(row));
}

struct RowWalk {
  std::uint32_t row;
  std::uint32_t step;
  std::int32_t length;
  std::int32_t next_length;  // of row + step; loaded a row ahead, so that nobody waits for it
  std::uint32_t turn = 0;
  std::uint32_t turns;

  __device__ RowWalk(const Args& args, std::uint32_t first, std::uint32_t stride) : row(first), step(stride) {
    next_length = stored_length(args, first);
    enter(args);
  }
  __device__ bool inside(const Args& args) const { return row < args.rows; }
  __device__ bool last_turn() const { return turn + 1 == turns; }
  __device__ void advance(const Args& args) {
    if (++turn < turns) return;
    row += step;
    enter(args);
  }

 private:
  __device__ void enter(const Args& args) {
    turn = 0;
    length = min(max(next_length, 0), args.topk);
    turns = __shfl_sync(0xFFFFFFFFu, turns_of(length), 0);
    next_length = stored_length(args, row + step);
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
