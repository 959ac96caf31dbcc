// One of the two MMA warpgroups. Blocks are numbered over the CTA's whole life; warpgroup w scores blocks b with
// b % 2 == w and weighs every block with its 256 of the 512 value dims.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/prefill_tile/shared.h"
#include "cuda/sm90/prefill_tile/work.cuh"
#include "cuda/sync/ring.h"


namespace sparse_mla::cuda::sm90::prefill_tile {

inline constexpr float kLog2E = 1.4426950408889634f;

template <Policy kPolicy>
struct Heads {
  using S = Shared<kPolicy>;
  static constexpr int kN = kPolicy.heads;
  static constexpr int kUnit = kPolicy.unit;
  using KvRing = RingPosition<kPolicy.slots>;
  using PRing = RingPosition<kProbabilitySlots>;

  const Args& args;
  std::uint32_t shared;
  std::uint32_t group;  // 0 or 1
  std::uint32_t warp;   // 0..3 in the warpgroup: heads 16 warp .. 16 warp + 15 of S, dims 64 warp .. of the group's 256
  std::uint32_t lane;
  float scale = 0;      // |sm_scale q_scale kv_scale| log2 e, never 0
  bool negative = false;
  float value_scale = 1;
  std::uint32_t begin = 0;  // first block of the row
  std::uint32_t end = 0;    // one past its last
  std::uint32_t rows = 0;  // started

  float o[4][kN / 2];  // O^T: tile m, rows g and g + 8 = dims 16 (4 warp + m) + 2g and + 1; columns 8b + 2c and + 1
  std::uint32_t a[2][kUnit][4];  // V^T fragments: products in flight may still read one half
  std::uint32_t q[kPolicy.q_steps > 0 ? kPolicy.q_steps : 1][4];  // Q fragments of the first k steps
  float s[32];         // S: rows g and g + 8 of the warp's 16 heads; columns 8b + 2c and + 1 = tokens
  float sum[2];        // of P over the thread's columns, in the frame below
  float seen[2];       // maximum of S over the thread's columns
  float frame[2];      // log2: of the group's last block, rows g and g + 8

  // A head's sum, frame (that of O^T) and maximum over both groups.
  struct HeadSums {
    float total, frame, maximum;
  };

  __device__ bool scores_heads() const { return warp * 16 < kN; }

  __device__ void run() {
    value_scale = args.kv_scale ? *args.kv_scale : 1.0f;
    const float factor = args.sm_scale * (args.q_scale ? *args.q_scale : 1.0f) * value_scale * kLog2E;
    negative = factor < 0;
    scale = fmaxf(fabsf(factor), 1e-35f);  // not 0: a masked score is -inf, and -inf * 0 is not a number
    std::uint32_t index = kPolicy.split ? blockIdx.y : blockIdx.x;
    Item item;
    if (!next_item(index, item)) return;
    std::uint32_t b = start_row(item);
    for (;;) {
      weigh_row(b);
      const Item done = item;
      const std::uint32_t set = rows & 1;
      put_sums(set);
      const bool more = next_item(index, item);
      if (more) b = start_row(item);
      if constexpr (kPolicy.split) {
        finish_part(done, set);
      } else {
        finish(done, set);
      }
      if (!more) return;
    }
  }

  // The CTA's next item that has tokens; items without are answered on the way. False: there is none. A part of a split
  // row is the only item of its CTA.
  __device__ bool next_item(std::uint32_t& index, Item& item) {
    while (index < args.items) {
      item = item_at<kPolicy>(args, index, part(), args.splits);
      index += kPolicy.split ? args.items : gridDim.x;
      if (item.blocks > 0) return true;
      if (item.row_blocks == 0) {
        if (part() == 0) store_empty(item);
      } else if constexpr (kPolicy.split) {
        merge(item, {0, kNoFrame, -__int_as_float(0x7F800000)});
      }
    }
    return false;
  }

  __device__ int part() const { return kPolicy.split ? static_cast<int>(blockIdx.x) : 0; }
  // Scores and softens the group's first block of a row, if it has one, and returns it. O^T still holds the row before.
  __device__ std::uint32_t start_row(const Item& item) {
    begin = end;
    end = begin + static_cast<std::uint32_t>(item.blocks);
    ptx::mbarrier_wait(shared + S::q_full, rows & 1);
    ++rows;
    sum[0] = sum[1] = 0;
    seen[0] = seen[1] = -__int_as_float(0x7F800000);
    frame[0] = frame[1] = kNoFrame;
    const std::uint32_t b = begin + ((begin ^ group) & 1);
    if (b < end) {
      load_q();
      score(b);
      soften(b);
    } else {
      release_q();
    }
    return b;
  }

  // From the group's first block, already softened, to the end of the row. O^T is complete on return.
  __device__ void weigh_row(std::uint32_t b) {
    if (b < end) {
      if (b == begin && b + 2 < end) {
        weigh(b);
        score(b + 2);
        soften(b + 2);
        release_p(b);
        b += 2;
      }
      for (b += 2; b < end; b += 2) {
        weigh(b - 3);
        weigh(b - 2);
        score(b);
        soften(b);
        release_p(b - 3);
        release_p(b - 2);
      }
      if (b - 2 != begin) {
        weigh(b - 3);
        ptx::wgmma_wait_group<0>();
        release_p(b - 3);
      }
      weigh(b - 2);
      ptx::wgmma_wait_group<0>();
      release_p(b - 2);
    }
    if (b - 1 < end) {
      weigh(b - 1);
      ptx::wgmma_wait_group<0>();
      release_p(b - 1);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) ptx::wgmma_touch(o[m]);
  }

  // Steps with Q in registers and steps with Q in shared memory take turns: the first leave half of the shared-memory
  // port free for the second.
  static constexpr __device__ std::uint32_t order(std::uint32_t i) {
    constexpr auto kInRegisters = static_cast<std::uint32_t>(kPolicy.q_steps);
    constexpr std::uint32_t kPairs = kInRegisters < 16 - kInRegisters ? kInRegisters : 16 - kInRegisters;
    if (i >= 2 * kPairs) return kInRegisters == kPairs ? i : i - kPairs;
    return i % 2 == 0 ? i / 2 : kInRegisters + i / 2;
  }

  __device__ void release_p(std::uint32_t b) {
    if (lane == 0) ptx::mbarrier_arrive(shared + S::p_empty + PRing(b).slot * 8);
  }

  __device__ void release_q() {
    if (lane == 0) ptx::mbarrier_arrive(shared + S::q_empty);
  }

  // scores.cuh
  __device__ void load_q();
  __device__ void score(std::uint32_t b);

  // softmax.cuh
  __device__ void soften(std::uint32_t b);
  __device__ bool adopt(std::uint32_t b, float (&now)[2]);
  __device__ void mask(std::uint32_t b, std::uint32_t lane);
  __device__ void publish(std::uint32_t b, std::uint32_t lane, std::uint32_t head, bool moved, const float (&before)[2], const float (&now)[2]);

  // values.cuh
  __device__ void rescale(std::uint32_t slot, std::uint32_t lane);
  __device__ void weigh(std::uint32_t b);

  // row_end.cuh
  __device__ void put_sums(std::uint32_t set);
  __device__ HeadSums head_sums(std::uint32_t set, std::uint32_t head) const;
  __device__ float output_factor(const HeadSums& sums, const Item& item, int head) const;
  __device__ void store_sums(const HeadSums& sums, const Item& item, int head) const;
  __device__ void finish(const Item& item, std::uint32_t set);
  __device__ void finish_part(const Item& item, std::uint32_t set);
  __device__ void merge(const Item& item, const HeadSums& sums) const;
  __device__ void stage() const;
  __device__ void weigh_parts(const Item& item, std::uint32_t head) const;
  __device__ void merge_outputs(const Item& item) const;
  __device__ void store(const Item& item) const;
  __device__ void store_empty(const Item& item);
};

}  // namespace sparse_mla::cuda::sm90::prefill_tile
