// Which tokens of which row and heads a work item is.
#pragma once

#include "cuda/sm90/prefill_tile/args.h"
#include "cuda/sm90/prefill_tile/policy.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

struct Item {
  std::int64_t row;
  int first_head;
  int heads;       // real heads of the tile
  int first;       // first entry of the row's index list
  int end;         // one past the last entry that counts
  int blocks;      // of entries first .. end
  int row_blocks;  // of the whole row, over all splits
};

// Part `split` of `splits` of item `index`: its share of the row's blocks, so a row's tokens are cut by its own length.
template <Policy kPolicy>
__device__ inline Item item_at(const Args& args, std::uint32_t index, int split, int splits) {
  Item item;
  const std::uint32_t row = index / args.head_tiles;
  item.row = row;
  item.first_head = static_cast<int>(index - row * args.head_tiles) * kPolicy.heads;
  item.heads = min(kPolicy.heads, args.h_q - item.first_head);
  item.end = args.topk;
  if (args.topk_length) item.end = min(max(args.topk_length[row], 0), args.topk);
  item.row_blocks = (item.end + kBlockTokens - 1) / kBlockTokens;
  item.first = 0;
  item.blocks = item.row_blocks;
  if constexpr (kPolicy.split) {
    const int first = item.row_blocks * split / splits;  // below 2^24 * 8
    const int end = item.row_blocks * (split + 1) / splits;
    item.first = first * kBlockTokens;
    item.end = min(item.end, end * kBlockTokens);
    item.blocks = end - first;
  }
  return item;
}

}  // namespace sparse_mla::cuda::sm90::prefill_tile
