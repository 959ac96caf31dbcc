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

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

template <Policy kPolicy>
struct Heads {
  using S = Shared<kPolicy>;
  static constexpr int kN = kPolicy.heads;
  using KvRing = RingPosition<kPolicy.slots>;
  using PRing = RingPosition<kProbabilitySlots>;

  const Args& args;
  std::uint32_t shared;
  std::uint32_t group;  // 0 or 1
  std::uint32_t warp;   // 0..3 in the warpgroup: heads 16 warp .. 16 warp + 15 of S, dims 64 warp .. of the group's 256
  std::uint32_t lane;
  float scale = 0;      // |sm_scale q_scale kv_scale| log2 e, never 0
  bool negative = false;
  std::uint32_t begin = 0;  // first block of the row
  std::uint32_t end = 0;    // one past its last
  std::uint32_t q_tile = 0;

  float o[4][kN / 2];  // O^T: tile m, rows g and g + 8 = dims 16 (4 warp + m) + 2g and + 1; columns 8b + 2c and + 1
  float s[32];         // S: rows g and g + 8 of the warp's 16 heads; columns 8b + 2c and + 1 = tokens
  float sum[2];        // of the thread's columns, in the frame below
  float frame[2];      // log2: of the group's last block, rows g and g + 8

  __device__ bool scores_heads() const { return warp * 16 < kN; }

  __device__ void run() {
    const float factor =
        args.sm_scale * (args.q_scale ? *args.q_scale : 1.0f) * (args.kv_scale ? *args.kv_scale : 1.0f) * kLog2E;
    negative = factor < 0;
    scale = fmaxf(fabsf(factor), 1e-35f);  // not 0: a masked score is -inf, and -inf * 0 is not a number
    for (std::int64_t index = blockIdx.x; index < args.items; index += gridDim.x) {
      const Item item = item_at<kPolicy>(args, index);
      if (item.blocks == 0) {
        store_empty(item);
        continue;
      }
      begin = end;
      end = begin + static_cast<std::uint32_t>(item.blocks);
      ptx::mbarrier_wait(shared + S::q_full, q_tile & 1);
      ++q_tile;
      row();
      finish(item);
    }
  }

  __device__ void row() {
    sum[0] = sum[1] = 0;
    frame[0] = frame[1] = kNoFrame;
    std::uint32_t b = begin + ((begin ^ group) & 1);
    if (b >= end) {
      release_q();
      weigh(begin);
      ptx::wgmma_wait_group<0>();
      release_p(begin);
      return;
    }
    score(b);
    if (b > begin) weigh(begin);
    ptx::wgmma_wait_group<0>();
    if (b > begin) release_p(begin);
    ptx::wgmma_touch(s);
    if (b + 2 >= end) release_q();
    soften(b);
    for (b += 2; b < end; b += 2) {
      rescale(b - 2);
      weigh(b - 2);
      score(b);
      ptx::wgmma_wait_group<1>();
      release_p(b - 2);
      rescale(b - 1);
      weigh(b - 1);
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(s);
      release_p(b - 1);
      if (b + 2 >= end) release_q();
      soften(b);
    }
    rescale(b - 2);
    weigh(b - 2);
    ptx::wgmma_wait_group<0>();
    release_p(b - 2);
    if (b - 1 < end) {
      rescale(b - 1);
      weigh(b - 1);
      ptx::wgmma_wait_group<0>();
      release_p(b - 1);
    }
  }

  // S = Q K^T, 64 heads x 64 tokens.
  __device__ void score(std::uint32_t b) {
    const KvRing at(b);
    ptx::mbarrier_wait(shared + S::full + at.slot * 8, at.full_parity());
    // The rows came by cp.async, a generic-proxy write; wgmma reads them by the async proxy.
    ptx::fence_proxy_async_shared();
    const std::uint32_t k_tile = shared + S::kv + at.slot * S::kTile;
    const std::uint64_t q = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(shared + S::q);
    const std::uint64_t k = ptx::wgmma_descriptor<ptx::Swizzle::k128B>(k_tile);
    ptx::wgmma_touch(s);
    ptx::wgmma_fence();
#pragma unroll
    for (std::uint32_t step = 0; step < 16; ++step) {
      const std::uint32_t bytes = (step / 4) * S::kPanel + (step % 4) * 32;
      ptx::wgmma_e4m3_ss(s, ptx::wgmma_descriptor_at(q, bytes), ptx::wgmma_descriptor_at(k, bytes), step > 0);
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

  // P = 2^(S scale - frame + kTopExponent) in the frame of the exact running maximum, published as e4m3.
  __device__ void soften(std::uint32_t b) {
    const PRing at(b);
    if (scores_heads()) {
      mask(b);
      if (negative) {
#pragma unroll
        for (float& x : s) x = -x;
      }
      float top[2] = {s[0], s[2]};
#pragma unroll
      for (int i = 0; i < 32; ++i) top[(i / 2) & 1] = fmaxf(top[(i / 2) & 1], s[i]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xFFFFFFFFu, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xFFFFFFFFu, top[r], 2));
      }
      const std::uint32_t head = warp * 16 + lane / 4;
      float before[2] = {kNoFrame, kNoFrame};
      if (b > begin) {
        ptx::mbarrier_wait(shared + S::chain + (((b - 1) & 1) * 4 + warp) * 8, ((b - 1) >> 1) & 1);
        before[0] = ptx::ld_shared_f32(shared + S::frame + (((b - 1) & 1) * 64 + head) * 4);
        before[1] = ptx::ld_shared_f32(shared + S::frame + (((b - 1) & 1) * 64 + head + 8) * 4);
      }
      const float now[2] = {fmaxf(before[0], top[0] * scale), fmaxf(before[1], top[1] * scale)};
      if ((lane & 3) == 0) {
        ptx::st_shared_f32(shared + S::frame + ((b & 1) * 64 + head) * 4, now[0]);
        ptx::st_shared_f32(shared + S::frame + ((b & 1) * 64 + head + 8) * 4, now[1]);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(shared + S::chain + ((b & 1) * 4 + warp) * 8);

      const float offset[2] = {kTopExponent - now[0], kTopExponent - now[1]};
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = ptx::ex2(fmaf(s[i], scale, offset[(i / 2) & 1]));
      float add[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 32; ++i) add[(i / 2) & 1] += s[i];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] = fmaf(sum[r], ptx::ex2(frame[r] - now[r]), add[r]);
        frame[r] = now[r];
      }
      publish(b, head, before, now);
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + S::p_full + at.slot * 8);
  }

  __device__ void mask(std::uint32_t b) {
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

  __device__ void publish(std::uint32_t b, std::uint32_t head, const float (&before)[2], const float (&now)[2]) {
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
    const float alpha[2] = {ptx::ex2(before[0] - now[0]), ptx::ex2(before[1] - now[1])};
    if ((lane & 3) == 0) {
      ptx::st_shared_f32(shared + S::alpha + (at.slot * 64 + head) * 4, alpha[0]);
      ptx::st_shared_f32(shared + S::alpha + (at.slot * 64 + head + 8) * 4, alpha[1]);
    }
    const bool moved = __any_sync(0xFFFFFFFFu, alpha[0] != 1.0f || (kN > 8 && alpha[1] != 1.0f));
    if (lane == 0) ptx::st_shared_b8(shared + S::moved + at.slot * 4 + warp, moved);
  }

  // O^T into the frames of block b: the factor of a head is 2^(frame before - frame of b).
  __device__ void rescale(std::uint32_t b) {
    const PRing at(b);
    ptx::mbarrier_wait(shared + S::p_full + at.slot * 8, at.full_parity());
    if (b == begin || ptx::ld_shared_b32(shared + S::moved + at.slot * 4) == 0) return;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const float2 alpha = ptx::ld_shared_f32x2(shared + S::alpha + (at.slot * 64 + n * 8 + (lane & 3) * 2) * 4);
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
    const PRing at(b);
    const KvRing kv(b);
    ptx::mbarrier_wait(shared + S::p_full + at.slot * 8, at.full_parity());
    const std::uint32_t values = shared + S::kv + kv.slot * S::kTile + (2 * group + warp / 2) * S::kPanel +
                                 swizzle_128b(lane, (warp & 1) * 4);
    const std::uint64_t p =
        ptx::wgmma_descriptor<ptx::Swizzle::k64B>(shared + S::p + at.slot * S::kProbabilityTile);
    const bool accumulate = b != begin;
    std::uint32_t a[2][2][4];
    std::uint32_t raw[2][2][4];
    load_values(raw[0], values, 0);
#pragma unroll
    for (int unit = 0; unit < 4; ++unit) {  // k step unit / 2, tiles 2 (unit % 2) and + 1
      if (unit < 3) load_values(raw[(unit + 1) & 1], values, unit + 1);
      if (unit >= 2) {
        ptx::wgmma_wait_group<1>();
        ptx::wgmma_touch(a[unit & 1][0]);
        ptx::wgmma_touch(a[unit & 1][1]);
      }
      value_fragment(a[unit & 1][0], raw[unit & 1][0]);
      value_fragment(a[unit & 1][1], raw[unit & 1][1]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::wgmma_e4m3_rs(o[(unit & 1) * 2 + i], a[unit & 1][i], ptx::wgmma_descriptor_at(p, (unit / 2) * 32),
                           unit >= 2 || accumulate);
      }
      ptx::wgmma_commit_group();
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared + S::empty + kv.slot * 8);
  }

  __device__ void load_values(std::uint32_t (&raw)[2][4], std::uint32_t values, int unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t tile = static_cast<std::uint32_t>((unit & 1) * 2 + i);
      ptx::ldmatrix_x4_trans(raw[i], (values ^ (tile << 4)) + static_cast<std::uint32_t>(unit / 2) * 32 * 128);
    }
  }

  __device__ void release_p(std::uint32_t b) {
    if (lane == 0) ptx::mbarrier_arrive(shared + S::p_empty + PRing(b).slot * 8);
  }
  __device__ void release_q() {
    if (lane == 0) ptx::mbarrier_arrive(shared + S::q_empty);
  }

  __device__ void finish(const Item& item) {
#pragma unroll
    for (int m = 0; m < 4; ++m) ptx::wgmma_touch(o[m]);
    // Two sets by row parity: a group may be one row ahead of a group that still reads.
    const std::uint32_t sums = shared + S::sums + (q_tile & 1) * (2 * 64 * 8);
    if (scores_heads()) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 2);
        const std::uint32_t head = warp * 16 + lane / 4 + r * 8;
        if ((lane & 3) == 0) {
          ptx::st_shared_f32(sums + (group * 64 + head) * 8, sum[r]);
          ptx::st_shared_f32(sums + (group * 64 + head) * 8 + 4, frame[r]);
        }
      }
    }
    ptx::bar_sync(kSumsReady, 256);
    const std::uint32_t thread = warp * 32 + lane;
    if (thread < kN) {
      const float2 x = ptx::ld_shared_f32x2(sums + thread * 8);
      const float2 y = ptx::ld_shared_f32x2(sums + (64 + thread) * 8);
      const float top = fmaxf(x.y, y.y);
      const float total = fmaf(x.x, ptx::ex2(x.y - top), y.x * ptx::ex2(y.y - top));
      const bool empty = !(top > kNoFrame);
      const bool real = static_cast<int>(thread) < item.heads;
      const int head = item.first_head + static_cast<int>(thread);
      float denominator = total;
      if (real && args.attn_sink) denominator += ptx::ex2(fmaf(args.attn_sink[head], kLog2E, kTopExponent - top));
      ptx::st_shared_f32(shared + S::factor + (group * 64 + thread) * 4, empty ? 0.0f : 1.0f / denominator);
      if (group == 0 && real) {
        const std::int64_t at = item.row * args.h_q + head;
        args.max_logits[at] = empty ? __int_as_float(0xFF800000) : top * kLn2;
        args.lse[at] = empty ? __int_as_float(0x7F800000) : (ptx::lg2(total) + (top - kTopExponent)) * kLn2;
      }
    }
    ptx::bar_sync(kFactorReady + static_cast<int>(group), 128);
    std::uint16_t* out = args.out + (item.row * args.h_q + item.first_head) * kValueDims + group * kDimsPerWarpgroup +
                         warp * 64 + (lane / 4) * 2;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const int head = n * 8 + static_cast<int>(lane & 3) * 2;
      const float2 factor = ptx::ld_shared_f32x2(shared + S::factor + (group * 64 + head) * 4);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const std::uint32_t even = ptx::cvt_bf16x2_f32(o[m][n * 4] * factor.x, o[m][n * 4 + 2] * factor.x);
        const std::uint32_t odd = ptx::cvt_bf16x2_f32(o[m][n * 4 + 1] * factor.y, o[m][n * 4 + 3] * factor.y);
        if (head < item.heads) *reinterpret_cast<std::uint32_t*>(out + head * kValueDims + m * 16) = even;
        if (head + 1 < item.heads) *reinterpret_cast<std::uint32_t*>(out + (head + 1) * kValueDims + m * 16) = odd;
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
