// Which tokens of which row and heads a work item is.
#pragma once

#include "cuda/sm90/prefill_tile/args.h"
#include "cuda/sm90/prefill_tile/policy.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

struct Item {
  std::int64_t row;
  int first_head;
  int heads;   // real heads of the tile
  int tokens;  // entries of the row's index list that count
  int blocks;
};

template <Policy kPolicy>
__device__ inline Item item_at(const Args& args, std::uint32_t index) {
  Item item;
  const std::uint32_t row = index / args.head_tiles;
  item.row = row;
  item.first_head = static_cast<int>(index - row * args.head_tiles) * kPolicy.heads;
  item.heads = min(kPolicy.heads, args.h_q - item.first_head);
  item.tokens = args.topk;
  if (args.topk_length) item.tokens = min(max(args.topk_length[item.row], 0), args.topk);
  item.blocks = (item.tokens + kBlockTokens - 1) / kBlockTokens;
  return item;
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
