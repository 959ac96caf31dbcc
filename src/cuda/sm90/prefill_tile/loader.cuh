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
    for (std::int64_t index = blockIdx.x; index < args.items; index += gridDim.x) {
      const Item item = item_at<kPolicy>(args, index);
      if (item.blocks == 0) continue;
      load_item(item);
    }
  }

  // Q is asked for after the second block: its buffer is free once the row before has scored its last block, while
  // blocks of this row may go out as soon as they find a free slot.
  __device__ void load_item(const Item& item) {
    const std::int32_t* list = args.indices + item.row * args.indices_row_stride;
    const int q_after = min(item.blocks, 2) - 1;
    std::int32_t next = entry(list, item, 0);
    for (int k = 0; k < item.blocks; ++k) {
      const std::int32_t token = next;
      if (k + 1 < item.blocks) next = entry(list, item, k + 1);
      load_block(token);
      if (k == q_after) load_q(item);
    }
  }

  // The row number that this lane reads for its warp's 16 tokens of a block (lanes 16-31 repeat them); negative: none.
  __device__ std::int32_t entry(const std::int32_t* list, const Item& item, int k) const {
    const int position = k * kBlockTokens + static_cast<int>(warp * 16 + (lane & 15));
    const std::int32_t token = position < item.tokens ? list[position] : -1;
    return token < args.s_kv ? token : -1;
  }

  __device__ void load_block(std::int32_t token) {
    const RingPosition<kPolicy.slots> at(block);
    const std::uint32_t valid = __ballot_sync(0xFFFFFFFFu, token >= 0) & 0xFFFFu;
    ptx::mbarrier_wait(shared + S::empty + at.slot * 8, at.empty_parity());
    const std::uint32_t tile = shared + S::kv + at.slot * S::kTile + warp * 16 * 128;
#ifdef PT_NO_GATHER
    if (block >= 64) goto done;
#endif
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t row = i * 4 + lane / 8;
      const std::int32_t named = __shfl_sync(0xFFFFFFFFu, token, static_cast<int>(row));
      const std::uint8_t* from = args.kv + static_cast<std::int64_t>(max(named, 0)) * args.kv_row_stride + (lane & 7) * 16;
      const std::uint32_t bytes = named >= 0 ? 16u : 0u;
#pragma unroll
      for (std::uint32_t panel = 0; panel < 4; ++panel) {
        ptx::cp_async_16(tile + panel * S::kPanel + swizzle_128b(row, lane & 7), from + panel * 128, bytes);
      }
    }
    if constexpr (kRope) {
      const std::uint32_t rope = shared + S::kv + at.slot * S::kTile + S::kRope + warp * 16 * 64;
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        const std::uint32_t row = i * 8 + lane / 4;
        const std::int32_t named = __shfl_sync(0xFFFFFFFFu, token, static_cast<int>(row));
        const std::uint8_t* from =
            args.kv + static_cast<std::int64_t>(max(named, 0)) * args.kv_row_stride + kValueDims + (lane & 3) * 16;
        ptx::cp_async_16(rope + swizzle_64b(row, lane & 3), from, named >= 0 ? 16u : 0u);
      }
    }
#ifdef PT_NO_GATHER
  done:
#endif
    ptx::cp_async_mbarrier_arrive_noinc(shared + S::full + at.slot * 8);
    if (lane == 0) {
      ptx::st_shared_b16(shared + S::valid + at.slot * 8 + warp * 2, static_cast<std::uint16_t>(valid));
      ptx::mbarrier_arrive(shared + S::full + at.slot * 8);
    }
    ++block;
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
