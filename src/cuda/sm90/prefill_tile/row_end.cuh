// What happens to a finished row: sums of both groups, the merge of a split row, outputs.
#pragma once

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/sm90/prefill_tile/handshakes.h"
#include "cuda/sm90/prefill_tile/heads.cuh"

namespace sparse_mla::cuda::sm90::prefill_tile {

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

// The group's sums, frames and maxima of a row, for finish. Two sets by row parity: a group may be one row ahead.
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::put_sums(std::uint32_t set) {
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

template <Policy kPolicy>
__device__ inline typename Heads<kPolicy>::HeadSums Heads<kPolicy>::head_sums(std::uint32_t set, std::uint32_t head) const {
  const std::uint32_t sums = shared + S::sums + set * (2 * 64 * 16);
  const uint4 x = ptx::ld_shared_v4(sums + head * 16);
  const uint4 y = ptx::ld_shared_v4(sums + (64 + head) * 16);
  const float top = fmaxf(__uint_as_float(x.y), __uint_as_float(y.y));
  // Symmetric in the groups, bit for bit: which of them has a row's even blocks depends on the rows before.
  const float total = __fadd_rn(__fmul_rn(__uint_as_float(x.x), ptx::ex2(__uint_as_float(x.y) - top)),
                                __fmul_rn(__uint_as_float(y.x), ptx::ex2(__uint_as_float(y.y) - top)));
  return {total, top, fmaxf(__uint_as_float(x.z), __uint_as_float(y.z))};
}

// What value_scale O^T of this frame is multiplied by: 1 over the sum, sink included. 0 for a head without tokens.
template <Policy kPolicy>
__device__ inline float Heads<kPolicy>::output_factor(const HeadSums& sums, const Item& item, int head) const {
  if (!(sums.frame > kNoFrame)) return 0;
  float denominator = sums.total;
  if (args.attn_sink && head < item.heads) {
    denominator += ptx::ex2(fmaf(args.attn_sink[item.first_head + head], kLog2E, kTopExponent - sums.frame));
  }
  return 1.0f / denominator;
}

template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::store_sums(const HeadSums& sums, const Item& item, int head) const {
  if (head >= item.heads) return;
  const std::int64_t at = item.row * args.h_q + item.first_head + head;
  const bool empty = !(sums.frame > kNoFrame);
  const float infinity = __int_as_float(0x7F800000);
  args.max_logits[at] = empty ? -infinity : sums.maximum * scale * kLn2;
  args.lse[at] = empty ? infinity : (ptx::lg2(sums.total) + (sums.frame - kTopExponent)) * kLn2;
}

template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::finish(const Item& item, std::uint32_t set) {
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
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::finish_part(const Item& item, std::uint32_t set) {
  ptx::mbarrier_wait(shared + S::sums_full, set ^ 1);  // both groups are done with the kv slots
  stage();
  HeadSums sums{};
  if (warp * 32 + lane < kN) sums = head_sums(set, warp * 32 + lane);
  merge(item, sums);
}

// Each CTA of the cluster merges its share of the outputs. `sums`: of this part, for the head of the thread's number.
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::merge(const Item& item, const HeadSums& sums) const {
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
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::stage() const {
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
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::weigh_parts(const Item& item, std::uint32_t head) const {
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
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::merge_outputs(const Item& item) const {
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
template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::store(const Item& item) const {
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

template <Policy kPolicy>
__device__ inline void Heads<kPolicy>::store_empty(const Item& item) {
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

}  // namespace sparse_mla::cuda::sm90::prefill_tile
