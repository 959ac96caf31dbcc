// The gather warpgroup: brings Q and the named kv rows into shared memory.
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/sm90/prefill_tile/handshakes.h"
#include "cuda/sm90/prefill_tile/shared.h"
#include "cuda/sm90/prefill_tile/work.cuh"
#include "cuda/sync/ring.h"
#include "cuda/tile/swizzle.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

template <Policy kPolicy>
struct Loader {
  using S = Shared<kPolicy>;
  static constexpr bool kRope = kPolicy.d_qk > kValueDims;

  const Args& args;
  std::uint32_t shared;  // base address
  std::uint32_t warp;    // 0..3 in the warpgroup
  std::uint32_t lane;
  std::uint32_t block = 0;  // blocks loaded since the start
  std::uint32_t q_tile = 0;

  __device__ void run() {
    if constexpr (kPolicy.split) {
      const Item item = item_at<kPolicy>(args, blockIdx.y, static_cast<int>(blockIdx.x), args.splits);
      if (item.blocks > 0) load_item(item);
    } else {
      for (std::uint32_t index = blockIdx.x; index < args.items; index += gridDim.x) {
        const Item item = item_at<kPolicy>(args, index, 0, 1);
        if (item.blocks > 0) load_item(item);
      }
    }
  }

  // Q is asked for after the first block: that block's slot is free before the row before has scored its last block, when
  // the buffer of Q becomes free; the second block's slot is not.
  __device__ void load_item(const Item& item) {
    const std::int32_t* list = args.indices + item.row * args.indices_row_stride;
    const int mine = item.first + static_cast<int>(warp * 16 + (lane & 15));  // the lane reads this entry of each block
    std::int32_t next = mine < item.end ? list[mine] : -1;
    for (int k = 0; k < item.blocks; ++k) {
      const std::int32_t token = next < args.s_kv ? next : -1;
      const int position = (k + 1) * kBlockTokens + mine;
      next = position < item.end ? list[position] : -1;  // first looked at when the block after is loaded
      load_block(token);
      if (k == 0) load_q(item);
    }
  }

  // `token` of lanes 0-15 (lanes 16-31 repeat them): row numbers of the warp's 16 tokens; negative: none. A row is copied
  // by eight lanes, 16 bytes each, panel after panel; missing rows become zeros and no byte of kv is read for them.
  __device__ void load_block(std::int32_t token) {
    const RingPosition<kPolicy.slots> at(block);
    const std::uint32_t valid = __ballot_sync(0xFFFFFFFFu, token >= 0) & 0xFFFFu;
    std::int32_t row[4];
    std::int32_t rope_row[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) row[i] = __shfl_sync(0xFFFFFFFFu, token, i * 4 + static_cast<int>(lane / 8));
#pragma unroll
    for (int i = 0; i < 2; ++i) rope_row[i] = __shfl_sync(0xFFFFFFFFu, token, i * 8 + static_cast<int>(lane / 4));
    ptx::mbarrier_wait(shared + S::empty + at.slot * 8, at.empty_parity());
    const std::uint32_t tile = shared + S::kv + at.slot * S::kTile;
    // Rows 4i + lane / 8: the swizzle's row & 7 alternates between two values.
    const std::uint32_t even = tile + warp * 16 * 128 + swizzle_128b(lane / 8, lane & 7);
    const std::uint32_t odd = tile + warp * 16 * 128 + swizzle_128b(4 + lane / 8, lane & 7);
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint8_t* from = kv_row(row[i]) + (lane & 7) * 16;
#pragma unroll
      for (std::uint32_t panel = 0; panel < 4; ++panel) {
        ptx::cp_async_16((i & 1 ? odd : even) + (i / 2) * 1024 + panel * S::kPanel, from + panel * 128,
                         row[i] >= 0 ? 16u : 0u);
      }
    }
    if constexpr (kRope) {
      const std::uint32_t rope = tile + S::kRope + warp * 16 * 64 + swizzle_64b(lane / 4, lane & 3);
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        ptx::cp_async_16(rope + i * 8 * 64, kv_row(rope_row[i]) + kValueDims + (lane & 3) * 16,
                         rope_row[i] >= 0 ? 16u : 0u);
      }
    }
    ptx::cp_async_mbarrier_arrive_noinc(shared + S::full + at.slot * 8);
    if (lane == 0) {
      ptx::st_shared_b16(shared + S::valid + at.slot * 8 + warp * 2, static_cast<std::uint16_t>(valid));
      ptx::mbarrier_arrive(shared + S::full + at.slot * 8);
    }
    ++block;
  }

  __device__ const std::uint8_t* kv_row(std::int32_t row) const {
    return args.kv + static_cast<std::uint64_t>(static_cast<std::uint32_t>(max(row, 0))) * args.kv_row_stride;
  }

  // Rows of heads that don't exist become zeros.
  __device__ void load_q(const Item& item) {
    ptx::mbarrier_wait(shared + S::q_empty, (q_tile & 1) ^ 1);
    const std::uint8_t* q = args.q + item.row * args.q_row_stride + item.first_head * args.q_head_stride;
    const std::uint32_t thread = warp * 32 + lane;
    for (std::uint32_t head = thread / 8; head < kPolicy.heads; head += 16) {
      const bool real = head < static_cast<std::uint32_t>(item.heads);
      const std::uint8_t* from = q + (real ? head : 0) * args.q_head_stride + (thread & 7) * 16;
#pragma unroll
      for (std::uint32_t panel = 0; panel < 4; ++panel) {
        ptx::cp_async_16(shared + S::q + panel * S::kPanel + swizzle_128b(head, thread & 7), from + panel * 128,
                         real ? 16u : 0u);
      }
      if (kRope && (thread & 7) < 4) {
        ptx::cp_async_16(shared + S::q + S::kRope + swizzle_64b(head, thread & 3), from + kValueDims, real ? 16u : 0u);
      }
    }
    ptx::cp_async_mbarrier_arrive_noinc(shared + S::q_full);
    ++q_tile;
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_tile
