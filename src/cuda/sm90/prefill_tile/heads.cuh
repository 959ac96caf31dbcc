// One of the two MMA warpgroups. Blocks are numbered over the CTA's whole life; warpgroup w scores blocks b with
// b % 2 == w and weighs every block with its 256 of the 512 value dims.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"
#include "cuda/sm90/prefill_tile/handshakes.h"
#include "cuda/sm90/prefill_tile/shared.h"
#include "cuda/sm90/prefill_tile/work.cuh"
#include "cuda/sync/ring.h"
#include "cuda/tile/swizzle.h"
#include "cuda/tile/value_fragment.cuh"

namespace sparse_mla::cuda::sm90::prefill_tile {

#ifdef PT_STAMPS
__device__ unsigned long long stamps[2][4096];
#define STAMP(k) do { if (blockIdx.x == 7 && warp == PT_STAMPS && lane == 0 && stamp_n < 4096) stamps[group][stamp_n++] = ((unsigned long long)(k) << 48) | (clock64() & 0xFFFFFFFFFFFFull); } while (0)
#else
#define STAMP(k)
#endif
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// x[m] of lane i becomes x[i] of lane m, among the four lanes that differ in lane bits 2 and 3 (i = those bits).
__device__ inline void transpose_quad(std::uint32_t (&x)[4], std::uint32_t i) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, i & 1 ? x[k] : x[k + 1], 4);
    (i & 1 ? x[k] : x[k + 1]) = got;
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, i & 2 ? x[k] : x[k + 2], 8);
    (i & 2 ? x[k] : x[k + 2]) = got;
  }
}

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
#ifdef PT_STAMPS
  int stamp_n = 0;
#endif

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
      STAMP(13);
      const bool more = next_item(index, item);
      if (more) b = start_row(item);
      STAMP(14);
      if constexpr (kPolicy.split) {
        finish_part(done, set);
      } else {
        finish(done, set);
      }
      STAMP(15);
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

  // The A fragment of a k step: rows g and g + 8 of the warp's 16 heads, bytes 4c .. 4c + 3 of each half of 32.
  __device__ void load_q() {
    const std::uint32_t head = warp * 16 + (lane & 15);
#pragma unroll
    for (int step = 0; step < kPolicy.q_steps; ++step) {
      ptx::ldmatrix_x4(q[step],
                       shared + S::q + (step / 4) * S::kPanel + swizzle_128b(head, (step % 4) * 2 + lane / 16));
    }
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
        STAMP(0);
        weigh(b - 3);
        STAMP(1);
        weigh(b - 2);
        STAMP(2);
        score(b);
        STAMP(5);
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

  // S = Q K^T, 64 heads x 64 tokens.
  __device__ void score(std::uint32_t b) {
    const KvRing at(b);
    ptx::mbarrier_wait(shared + S::full + at.slot * 8, at.full_parity());
    // The rows came by cp.async, a generic-proxy write; wgmma reads them by the async proxy.
    STAMP(3);
#ifndef PT_NO_FENCE
    ptx::fence_proxy_async_shared();
#endif
    const std::uint32_t k_tile = shared + S::kv + at.slot * S::kTile;
    const std::uint64_t q_tile_at = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(shared + S::q);
    const std::uint64_t k = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(k_tile);
    ptx::wgmma_touch(s);
    ptx::wgmma_fence();
#pragma unroll
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::uint32_t step = order(i);
      const std::uint32_t bytes = (step / 4) * S::kPanel + (step % 4) * 32;
      if (static_cast<int>(step) < kPolicy.q_steps) {
        ptx::wgmma_e4m3_rs(s, q[step], ptx::wgmma_descriptor_at(k, bytes), i > 0);
      } else {
        ptx::wgmma_e4m3_ss(s, ptx::wgmma_descriptor_at(q_tile_at, bytes), ptx::wgmma_descriptor_at(k, bytes), i > 0);
      }
    }
    if constexpr (kPolicy.d_qk > kValueDims) {
      const std::uint64_t q_rope = ptx::wgmma_descriptor<ptx::Swizzle::k64B>(shared + S::q + S::kRope);
      const std::uint64_t k_rope = ptx::wgmma_descriptor<ptx::Swizzle::k64B>(k_tile + S::kRope);
#pragma unroll
      for (std::uint32_t step = 0; step < 2; ++step) {
        ptx::wgmma_e4m3_ss(s, ptx::wgmma_descriptor_at(q_rope, step * 32), ptx::wgmma_descriptor_at(k_rope, step * 32),
                           true);
      }
    }
    ptx::wgmma_commit_group();
  }

  // P = 2^(S scale - frame + kTopExponent), published as e4m3. S is in flight on entry; all products are complete after.
  __device__ void soften(std::uint32_t b) {
    const std::uint32_t lane = ptx::opaque(this->lane);
    const PRing at(b);
    const std::uint32_t head = warp * 16 + lane / 4;
    float before[2] = {kNoFrame, kNoFrame};
    if (scores_heads() && b > begin) {
      ptx::mbarrier_wait(shared + S::chain + (((b - 1) & 1) * 4 + warp) * 8, ((b - 1) >> 1) & 1);
      before[0] = ptx::ld_shared_f32(shared + S::frame + (((b - 1) & 1) * 64 + head) * 4);
      before[1] = ptx::ld_shared_f32(shared + S::frame + (((b - 1) & 1) * 64 + head + 8) * 4);
    }
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_touch(s);
    STAMP(8);
    if (b + 2 >= end) release_q();
    if (scores_heads()) {
      mask(b, lane);
      if (negative) {
#pragma unroll
        for (float& x : s) x = -x;
      }
      float now[2] = {before[0], before[1]};
      const bool moved = adopt(b, now);
      STAMP(9);
      if ((lane & 3) == 0) {
        ptx::st_shared_f32(shared + S::frame + ((b & 1) * 64 + head) * 4, now[0]);
        ptx::st_shared_f32(shared + S::frame + ((b & 1) * 64 + head + 8) * 4, now[1]);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(shared + S::chain + ((b & 1) * 4 + warp) * 8);
      STAMP(10);

      const float offset[2] = {kTopExponent - now[0], kTopExponent - now[1]};
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = ptx::ex2(fmaf(s[i], scale, offset[(i / 2) & 1]));
      float add[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < 32; ++i) add[i & 3] += s[i];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] = fmaf(sum[r], ptx::ex2(frame[r] - now[r]), add[2 * r] + add[2 * r + 1]);
        frame[r] = now[r];
      }
      STAMP(11);
      publish(b, lane, head, moved, before, now);
      STAMP(12);
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + S::p_full + at.slot * 8);
  }

  // Lets the frames follow the running maximum, in the blocks of the schedule and wherever P would not fit e4m3.
  // True where a frame of the warp moved.
  __device__ bool adopt(std::uint32_t b, float (&now)[2]) {
    float top[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < 32; ++i) top[i & 3] = fmaxf(top[i & 3], s[i]);
    top[0] = fmaxf(top[0], top[1]);
    top[2] = fmaxf(top[2], top[3]);
    seen[0] = fmaxf(seen[0], top[0]);
    seen[1] = fmaxf(seen[1], top[2]);
    const bool over = fmaf(top[0], scale, -now[0]) > kHeadroom || fmaf(top[2], scale, -now[1]) > kHeadroom;
    if (!adopts(b - begin) && !__any_sync(0xFFFFFFFFu, over)) return false;
    const float before[2] = {now[0], now[1]};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      seen[r] = fmaxf(seen[r], __shfl_xor_sync(0xFFFFFFFFu, seen[r], 1));
      seen[r] = fmaxf(seen[r], __shfl_xor_sync(0xFFFFFFFFu, seen[r], 2));
      now[r] = fmaxf(now[r], seen[r] * scale);
    }
    return __any_sync(0xFFFFFFFFu, now[0] != before[0] || (kN > 8 && now[1] != before[1]));
  }

  __device__ void mask(std::uint32_t b, std::uint32_t lane) {
    const KvRing at(b);
    const uint2 valid = ptx::ld_shared_v2(shared + S::valid + at.slot * 8);
    if ((valid.x & valid.y) == 0xFFFFFFFFu) return;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t token = static_cast<std::uint32_t>(i / 4) * 8 + (lane & 3) * 2 + (i & 1);
      const std::uint32_t word = i < 16 ? valid.x : valid.y;
      if (!((word >> (token & 31)) & 1)) s[i] = negative ? __int_as_float(0x7F800000) : __int_as_float(0xFF800000);
    }
  }

  __device__ void publish(std::uint32_t b, std::uint32_t lane, std::uint32_t head, bool moved, const float (&before)[2], const float (&now)[2]) {
    const PRing at(b);
    ptx::mbarrier_wait(shared + S::p_empty + at.slot * 8, at.empty_parity());
    const std::uint32_t tile = shared + S::p + at.slot * S::kProbabilityTile;
    const std::uint32_t row = warp * 16 + (lane & 7);
    const std::uint32_t chunk = lane / 8;
    std::uint32_t packed[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // row i / 4, chunk i % 4
      const int at4 = (i % 4) * 8 + (i / 4) * 2;
      packed[i] = ptx::cvt_e4m3x2_f32(s[at4], s[at4 + 1]) |
                  static_cast<std::uint32_t>(ptx::cvt_e4m3x2_f32(s[at4 + 4], s[at4 + 5])) << 16;
    }
    ptx::stmatrix_x4(tile + swizzle_64b(row, chunk), packed[0], packed[1], packed[2], packed[3]);
    if constexpr (kN > 8) {
      ptx::stmatrix_x4(tile + swizzle_64b(row + 8, chunk), packed[4], packed[5], packed[6], packed[7]);
    }
    if ((lane & 3) == 0) {
      ptx::st_shared_f32(shared + S::alpha + (at.slot * 64 + head) * 4, ptx::ex2(before[0] - now[0]));
      ptx::st_shared_f32(shared + S::alpha + (at.slot * 64 + head + 8) * 4, ptx::ex2(before[1] - now[1]));
    }
    if (lane == 0) ptx::st_shared_b8(shared + S::moved + at.slot * 4 + warp, moved);
  }

  // O^T into the frames of block b: the factor of a head is 2^(frame before - frame of b).
  __device__ void rescale(std::uint32_t slot, std::uint32_t lane) {
    if (ptx::ld_shared_b32(shared + S::moved + slot * 4) == 0) return;
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int m = 0; m < 4; ++m) ptx::wgmma_touch(o[m]);
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const float2 alpha = ptx::ld_shared_f32x2(shared + S::alpha + (slot * 64 + n * 8 + (lane & 3) * 2) * 4);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        o[m][n * 4 + 0] *= alpha.x;
        o[m][n * 4 + 1] *= alpha.y;
        o[m][n * 4 + 2] *= alpha.x;
        o[m][n * 4 + 3] *= alpha.y;
      }
    }
  }

  // O^T (+)= V^T P^T of block b. The products are in flight on return; the kv slot is free.
  __device__ void weigh(std::uint32_t b) {
    const std::uint32_t lane = ptx::opaque(this->lane);
    const PRing at(b);
    const KvRing kv(b);
    ptx::mbarrier_wait(shared + S::p_full + at.slot * 8, at.full_parity());
    const std::uint32_t values = shared + S::kv + kv.slot * S::kTile + (2 * group + warp / 2) * S::kPanel +
                                 swizzle_128b(lane, (warp & 1) * 4);
    const std::uint64_t p =
        ptx::wgmma_descriptor<ptx::Swizzle::k64B>(shared + S::p + at.slot * S::kProbabilityTile);
    const bool accumulate = b != begin;
    if (accumulate) rescale(at.slot, lane);
#pragma unroll
    for (int unit = 0; unit < 8 / kUnit; ++unit) {  // products 0-3: tiles 0-3 of the first k step, 4-7: of the second
      std::uint32_t(&fragment)[kUnit][4] = a[unit & 1];
      std::uint32_t raw[kUnit][4];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        const auto m = static_cast<std::uint32_t>((unit * kUnit + i) % 4);
        ptx::ldmatrix_x4_trans(raw[i], (values ^ (m << 4)) + (unit * kUnit / 4) * 32 * 128);
      }
      ptx::wgmma_wait_group<1>();  // the products that read this half of `a` are complete
#pragma unroll
      for (int i = 0; i < kUnit; ++i) ptx::wgmma_touch(fragment[i]);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) value_fragment(fragment[i], raw[i]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        const int product = unit * kUnit + i;
        ptx::wgmma_e4m3_rs(o[product % 4], fragment[i], ptx::wgmma_descriptor_at(p, (product / 4) * 32),
                           product >= 4 || accumulate);
      }
      ptx::wgmma_commit_group();
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + S::empty + kv.slot * 8);
  }

  __device__ void release_p(std::uint32_t b) {
    if (lane == 0) ptx::mbarrier_arrive(shared + S::p_empty + PRing(b).slot * 8);
  }
  __device__ void release_q() {
    if (lane == 0) ptx::mbarrier_arrive(shared + S::q_empty);
  }

  // The group's sums, frames and maxima of a row, for finish. Two sets by row parity: a group may be one row ahead.
  __device__ void put_sums(std::uint32_t set) {
    if (scores_heads()) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 2);
        seen[r] = fmaxf(seen[r], __shfl_xor_sync(0xFFFFFFFFu, seen[r], 1));
        seen[r] = fmaxf(seen[r], __shfl_xor_sync(0xFFFFFFFFu, seen[r], 2));
        const std::uint32_t head = warp * 16 + lane / 4 + r * 8;
        if ((lane & 3) == 0) {
          ptx::st_shared_v4(shared + S::sums + ((set * 2 + group) * 64 + head) * 16,
                            make_uint4(__float_as_uint(sum[r]), __float_as_uint(frame[r]), __float_as_uint(seen[r]), 0));
        }
      }
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + S::sums_full);
  }

  __device__ HeadSums head_sums(std::uint32_t set, std::uint32_t head) const {
    const std::uint32_t sums = shared + S::sums + set * (2 * 64 * 16);
    const uint4 x = ptx::ld_shared_v4(sums + head * 16);
    const uint4 y = ptx::ld_shared_v4(sums + (64 + head) * 16);
    const float top = fmaxf(__uint_as_float(x.y), __uint_as_float(y.y));
    const float total = fmaf(__uint_as_float(x.x), ptx::ex2(__uint_as_float(x.y) - top),
                             __uint_as_float(y.x) * ptx::ex2(__uint_as_float(y.y) - top));
    return {total, top, fmaxf(__uint_as_float(x.z), __uint_as_float(y.z))};
  }

  // What value_scale O^T of this frame is multiplied by: 1 over the sum, sink included. 0 for a head without tokens.
  __device__ float output_factor(const HeadSums& sums, const Item& item, int head) const {
    if (!(sums.frame > kNoFrame)) return 0;
    float denominator = sums.total;
    if (args.attn_sink && head < item.heads) {
      denominator += ptx::ex2(fmaf(args.attn_sink[item.first_head + head], kLog2E, kTopExponent - sums.frame));
    }
    return 1.0f / denominator;
  }

  __device__ void store_sums(const HeadSums& sums, const Item& item, int head) const {
    if (head >= item.heads) return;
    const std::int64_t at = item.row * args.h_q + item.first_head + head;
    const bool empty = !(sums.frame > kNoFrame);
    const float infinity = __int_as_float(0x7F800000);
    args.max_logits[at] = empty ? -infinity : sums.maximum * scale * kLn2;
    args.lse[at] = empty ? infinity : (ptx::lg2(sums.total) + (sums.frame - kTopExponent)) * kLn2;
  }

  __device__ void finish(const Item& item, std::uint32_t set) {
    // Rows count from 1, so the row with parity `set` completes the phase of parity set ^ 1.
    ptx::mbarrier_wait(shared + S::sums_full, set ^ 1);
    const std::uint32_t thread = warp * 32 + lane;
    if (thread < kN) {
      const HeadSums sums = head_sums(set, thread);
      ptx::st_shared_f32(shared + S::factor + (group * 64 + thread) * 4,
                         output_factor(sums, item, static_cast<int>(thread)) * value_scale);
      if (group == 0) store_sums(sums, item, static_cast<int>(thread));
    }
    ptx::bar_sync(kFactorReady + static_cast<int>(group), 128);
    store(item);
  }

  // One part of a split row: O^T waits in shared memory for the merge.
  __device__ void finish_part(const Item& item, std::uint32_t set) {
    ptx::mbarrier_wait(shared + S::sums_full, set ^ 1);  // both groups are done with the kv slots
    stage();
    HeadSums sums{};
    if (warp * 32 + lane < kN) sums = head_sums(set, warp * 32 + lane);
    merge(item, sums);
  }

  // Each CTA of the cluster merges its share of the outputs. `sums`: of this part, for the head of the thread's number.
  __device__ void merge(const Item& item, const HeadSums& sums) const {
    const std::uint32_t thread = warp * 32 + lane;
    if (group == 0 && thread < kN) {
      ptx::st_shared_v4(shared + S::part + thread * 16,
                        make_uint4(__float_as_uint(sums.total), __float_as_uint(sums.frame),
                                   __float_as_uint(sums.maximum), 0));
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (group == 0 && thread < kN) weigh_parts(item, thread);
    ptx::bar_sync(kWeightReady, 256);
    merge_outputs(item);
    ptx::cluster_arrive();  // the others may still read this CTA's shared memory
    ptx::cluster_wait();
  }

  // The accumulators pass through a product by value_scale: stored as they are, ptxas serialises every wgmma (C7520).
  __device__ void stage() const {
    const std::uint32_t at = shared + S::stage + (group * kDimsPerWarpgroup + warp * 64 + (lane / 4) * 2) * 4;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const std::uint32_t row = at + (static_cast<std::uint32_t>(n) * 8 + (lane & 3) * 2) * S::kStageRow;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        ptx::st_shared_f32x2(row + m * 64, o[m][n * 4] * value_scale, o[m][n * 4 + 2] * value_scale);
        ptx::st_shared_f32x2(row + S::kStageRow + m * 64, o[m][n * 4 + 1] * value_scale, o[m][n * 4 + 3] * value_scale);
      }
    }
  }

  // The weight of each part of a head: the output factor of the merged sums, in the part's frame.
  __device__ void weigh_parts(const Item& item, std::uint32_t head) const {
    HeadSums all{0, kNoFrame, -__int_as_float(0x7F800000)};
    for (int i = 0; i < args.splits; ++i) {
      const float4 x = ptx::ld_cluster_f32x4(ptx::mapa(shared + S::part + head * 16, i));
      const float top = fmaxf(all.frame, x.y);
      all.total = fmaf(all.total, ptx::ex2(all.frame - top), x.x * ptx::ex2(x.y - top));
      all.frame = top;
      all.maximum = fmaxf(all.maximum, x.z);
    }
    const float factor = output_factor(all, item, static_cast<int>(head));
    for (int i = 0; i < args.splits; ++i) {
      const float4 x = ptx::ld_cluster_f32x4(ptx::mapa(shared + S::part + head * 16, i));
      const float weight = x.y > kNoFrame ? factor * ptx::ex2(x.y - all.frame) : 0.0f;
      ptx::st_shared_f32(shared + S::weight + (i * 64 + head) * 4, weight);
    }
    if (part() == 0) store_sums(all, item, static_cast<int>(head));
  }

  // out = the weighted sum of the parts, in their order; four dims a thread at a time. A part of weight 0 may never have
  // written its stage.
  __device__ void merge_outputs(const Item& item) const {
    constexpr std::uint32_t kQuads = kValueDims / 4;
    const std::uint32_t share = (kN * kQuads + args.splits - 1) / args.splits;
    const auto mine = static_cast<std::uint32_t>(part());
    const std::uint32_t end = min((mine + 1) * share, static_cast<std::uint32_t>(item.heads) * kQuads);
    std::uint16_t* out = args.out + (item.row * args.h_q + item.first_head) * kValueDims;
    for (std::uint32_t i = mine * share + group * 128 + warp * 32 + lane; i < end; i += 256) {
      const std::uint32_t head = i / kQuads;
      const std::uint32_t at = shared + S::stage + head * S::kStageRow + (i % kQuads) * 16;
      float4 sum = make_float4(0, 0, 0, 0);
      for (int k = 0; k < args.splits; ++k) {
        const float weight = ptx::ld_shared_f32(shared + S::weight + (k * 64 + head) * 4);
        if (weight == 0) continue;
        const float4 x = ptx::ld_cluster_f32x4(ptx::mapa(at, k));
        sum = make_float4(fmaf(weight, x.x, sum.x), fmaf(weight, x.y, sum.y), fmaf(weight, x.z, sum.z),
                          fmaf(weight, x.w, sum.w));
      }
      reinterpret_cast<uint2*>(out)[i] =
          make_uint2(ptx::cvt_bf16x2_f32(sum.x, sum.y), ptx::cvt_bf16x2_f32(sum.z, sum.w));
    }
  }

  // out = O factor in bf16. Four lanes that hold four pairs of dims of four tiles each swap them, so that each has 16
  // consecutive bytes of one tile, and the warp writes 128 consecutive bytes of four heads at a time.
  __device__ void store(const Item& item) const {
    const std::uint32_t quad = (lane / 4) & 3;
    std::uint16_t* out = args.out + (item.row * args.h_q + item.first_head) * kValueDims + group * kDimsPerWarpgroup +
                         warp * 64 + quad * 16 + (lane / 16) * 8;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const int head = n * 8 + static_cast<int>(lane & 3) * 2;
      const float2 factor = ptx::ld_shared_f32x2(shared + S::factor + (group * 64 + head) * 4);
      std::uint32_t even[4];
      std::uint32_t odd[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        even[m] = ptx::cvt_bf16x2_f32(o[m][n * 4] * factor.x, o[m][n * 4 + 2] * factor.x);
        odd[m] = ptx::cvt_bf16x2_f32(o[m][n * 4 + 1] * factor.y, o[m][n * 4 + 3] * factor.y);
      }
      transpose_quad(even, quad);
      transpose_quad(odd, quad);
      if (head < item.heads) {
        *reinterpret_cast<uint4*>(out + head * kValueDims) = make_uint4(even[0], even[1], even[2], even[3]);
      }
      if (head + 1 < item.heads) {
        *reinterpret_cast<uint4*>(out + (head + 1) * kValueDims) = make_uint4(odd[0], odd[1], odd[2], odd[3]);
      }
    }
  }

  __device__ void store_empty(const Item& item) {
    const std::int64_t first = item.row * args.h_q + item.first_head;
    const int thread = static_cast<int>(group * 128 + warp * 32 + lane);
    for (int i = thread; i < item.heads * kValueDims / 8; i += 256) {
      reinterpret_cast<uint4*>(args.out + first * kValueDims)[i] = make_uint4(0, 0, 0, 0);
    }
    if (thread < item.heads) {
      args.max_logits[first + thread] = __int_as_float(0xFF800000);
      args.lse[first + thread] = __int_as_float(0x7F800000);
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_tile
