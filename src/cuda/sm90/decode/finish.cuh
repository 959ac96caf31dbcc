// From accumulators to results: out and lse of a token that has one part; otherwise partial results to the workspace,
// and the merge of all parts, in their order, by the CTA that arrives last.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/handshakes.h"
#include "cuda/sm90/decode/plan.h"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"
#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/decode/weigh.cuh"

namespace sparse_mla::cuda::sm90::decode {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// Arrivals at a split token, counted in a workspace word that may hold anything before: a value outside
// [kArrivals, kArrivals + parts) is no arrival, and the last one leaves 0 behind. True for the last.
__device__ inline bool arrive_last(std::uint64_t* counter, std::uint32_t parts) {
  constexpr std::uint64_t kArrivals = 0xD1B54A32D192ED03ull;
  auto* word = reinterpret_cast<unsigned long long*>(counter);
  std::uint64_t seen = atomicAdd(word, 0ull);
  while (true) {
    const std::uint64_t arrived = seen - kArrivals < parts ? seen - kArrivals : 0;
    const bool last = arrived + 1 == parts;
    const std::uint64_t before = atomicCAS(word, seen, last ? 0 : kArrivals + arrived + 1);
    if (before == seen) return last;
    seen = before;
  }
}

template <Policy P>
struct Finish {
  using S = Shared<P>;
  static constexpr float kUnscale = P.has_scales() ? 1.0f / 64 : 1.0f;  // the gather's 2^6
  static constexpr int kRowValues = P.value_groups * 64;                // of a partial result

  const Args& args;
  std::uint32_t base;
  int thread;  // of the MMA threads
  PartRecord part;
  int head_group;

  __device__ int first_head() const { return head_group * P.heads; }
  // Row of a partial result in the workspace.
  __device__ std::int64_t partial_row(int of_part, int head) const {
    return (static_cast<std::int64_t>(partial_of(part, of_part)) * args.head_groups + head_group) * P.heads + head;
  }
  __device__ std::int64_t result_row(int head) const {
    return static_cast<std::int64_t>(part.token) * args.h + first_head() + head;
  }
  __device__ void sync() const { ptx::bar_sync(kMma<P>.id, kMma<P>.threads); }

  // 1 / denominator for `sum` in frame `frame`, and the lse. An empty sum gives 0 and +inf.
  __device__ float close_head(int head, float sum, float frame) const {
    float total = sum;
    if (args.attn_sink != nullptr) total += ptx::ex2(fmaf(__ldg(args.attn_sink + first_head() + head), kLog2E, -frame));
    const bool empty = sum == 0.0f;
    if (args.lse != nullptr) args.lse[result_row(head)] = empty ? INFINITY : (log2f(sum) + frame) * kLn2;
    return empty ? 0.0f : kUnscale / total;
  }

  // Called by all MMA threads; threads 0 .. heads - 1 are of a scoring warpgroup and know the frames' generation.
  __device__ void close_sums(std::uint32_t frames) const {
    sync();
    if (thread < P.heads) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < 8; ++w) sum += ptx::ld_shared_f32(base + S::sums + (w * P.heads + thread) * 4);
      const float frame = ptx::ld_shared_f32(frames + 4 * thread);
      if (part.parts > 1) {
        args.partial_stats[partial_row(part.part, thread)] = {frame, sum};
      } else if (first_head() + thread < args.h) {
        ptx::st_shared_f32(base + S::factors + 4 * thread, close_head(thread, sum, frame));
      }
    }
    sync();
  }

  __device__ std::uint32_t pack(float low, float high) const {
    return args.q_is_f16 != 0 ? ptx::cvt_f16x2_f32(low, high) : ptx::cvt_bf16x2_f32(low, high);
  }
  // Called by the weighing warps.
  __device__ void store(const Weigh<P>& weigh) const {
    if (part.parts > 1) {
      store_partial(weigh);
    } else {
      store_out(weigh);
    }
  }

  // Two neighbouring dims of one head, as a lane holds them after `neighbours`.
  struct Pair {
    int head;  // 0 or 1, of the lane's two
    int dim;   // of the warp's sixteen
    float low, high;
  };
  // A lane's four values of column block i and one tile, as pairs. 16-bit pools: M rows are dims g and g + 8, so lanes
  // g and g ^ 1 swap; each ends up with neighbouring dims of one head.
  __device__ static void neighbours(const float* o, int lane, Pair (&pairs)[2]) {
    const int g = lane >> 2;
    if constexpr (P.has_scales()) {
      pairs[0] = {0, 2 * g, o[0], o[2]};
      pairs[1] = {1, 2 * g, o[1], o[3]};
    } else {
      const bool odd = (g & 1) != 0;
      const float near = __shfl_xor_sync(0xFFFFFFFFu, odd ? o[0] : o[1], 4);
      const float far = __shfl_xor_sync(0xFFFFFFFFu, odd ? o[2] : o[3], 4);
      pairs[0] = {odd, g & 6, odd ? near : o[0], odd ? o[1] : near};
      pairs[1] = {odd, (g & 6) + 8, odd ? far : o[2], odd ? o[3] : far};
    }
  }

  __device__ void store_partial(const Weigh<P>& weigh) const {
    const int first_dim = 64 * weigh.half * Weigh<P>::kTiles + 16 * weigh.warp;
    float* const rows = args.partial_out + partial_row(part.part, 2 * (weigh.lane & 3)) * kRowValues + first_dim;
#pragma unroll
    for (int i = 0; i < P.heads / 8; ++i) {
#pragma unroll
      for (int tile = 0; tile < Weigh<P>::kTiles; ++tile) {
        Pair pairs[2];
        neighbours(&weigh.out[tile][4 * i], weigh.lane, pairs);
        if (weigh.half * Weigh<P>::kTiles + tile >= P.value_groups) continue;
#pragma unroll
        for (const Pair& pair : pairs) {
          float* const to = rows + (8 * i + pair.head) * kRowValues + 64 * tile + pair.dim;
          *reinterpret_cast<float2*>(to) = {pair.low, pair.high};
        }
      }
    }
  }
  __device__ void store_out(const Weigh<P>& weigh) const {
    const int first_dim = 64 * weigh.half * Weigh<P>::kTiles + 16 * weigh.warp;
    const int heads = args.h - first_head() - 2 * (weigh.lane & 3);  // from the lane's first head on
    std::uint16_t* row = args.out + result_row(2 * (weigh.lane & 3)) * args.d_v + first_dim;
    const std::uint32_t factors = base + S::factors + 8 * (weigh.lane & 3);
#pragma unroll
    for (int i = 0; i < P.heads / 8; ++i) {
      const uint2 two = ptx::ld_shared_v2(factors + 32 * i);
      const float factor[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
      for (int tile = 0; tile < Weigh<P>::kTiles; ++tile) {
        Pair pairs[2];
        neighbours(&weigh.out[tile][4 * i], weigh.lane, pairs);
#pragma unroll
        for (const Pair& pair : pairs) {
          const float f = pair.head != 0 ? factor[1] : factor[0];
          const std::uint32_t packed = pack(pair.low * f, pair.high * f);
          if (8 * i + pair.head < heads && first_dim + 64 * tile + pair.dim < args.d_v) {
            *reinterpret_cast<std::uint32_t*>(row + pair.head * args.d_v + 64 * tile + pair.dim) = packed;
          }
        }
      }
      row += 8 * args.d_v;
    }
  }

  // Called by all MMA threads after the partial results are written.
  __device__ void merge(bool is_together) const {
    if (is_together) {
      // The parts are the CTAs of this cluster: each merges its share of the items.
      ptx::cluster_arrive();
      ptx::cluster_wait();
      merge_items(part.part, part.parts);
      return;
    }
    ptx::fence_acq_rel_gpu();
    sync();
    const std::uint32_t flag = base + S::scratch + 64;  // behind the words of Query
    if (thread == 0) {
      std::uint64_t* counter = args.counters + static_cast<std::int64_t>(part.partials) * args.head_groups + head_group;
      ptx::st_shared_b32(flag, arrive_last(counter, part.parts) ? 1 : 0);
      ptx::fence_acq_rel_gpu();
    }
    sync();
    if (ptx::ld_shared_b32(flag) != 0) merge_items(0, 1);
  }

  // Share `share` of `shares` of the merge: items are four dims of a head.
  __device__ void merge_items(int share, int shares) const {
    const int heads = min(P.heads, args.h - first_head());
    // Frame and factor of every head over all parts.
    if (thread < heads) {
      float frame = kNoFrame;
      for (int p = 0; p < part.parts; ++p) frame = fmaxf(frame, __ldcg(&args.partial_stats[partial_row(p, thread)]).x);
      float sum = 0.0f;
      for (int p = 0; p < part.parts; ++p) {
        const float2 stats = __ldcg(&args.partial_stats[partial_row(p, thread)]);
        sum = fmaf(stats.y, ptx::ex2(stats.x - frame), sum);
      }
      ptx::st_shared_f32(base + S::sums + 4 * thread, frame);
      ptx::st_shared_f32(base + S::factors + 4 * thread, close_head(thread, sum, frame));
    }
    sync();
    constexpr int kAtOnce = 4;  // items of a thread whose loads are in flight together
    const int items = heads * (kRowValues / 4);
    const int last = items * (share + 1) / shares;
    for (int item = items * share / shares + thread; item < last; item += kAtOnce * P.mma_threads()) {
      float4 totals[kAtOnce] = {};
      for (int p = 0; p < part.parts; ++p) {
        float4 o[kAtOnce];
        float weight[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int at = min(item + k * P.mma_threads(), last - 1);
          const std::int64_t row = partial_row(p, at / (kRowValues / 4));
          o[k] = __ldcg(reinterpret_cast<const float4*>(args.partial_out + row * kRowValues) + at % (kRowValues / 4));
          weight[k] = __ldcg(&args.partial_stats[row]).x;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int at = min(item + k * P.mma_threads(), last - 1);
          const float frame = ptx::ld_shared_f32(base + S::sums + 4 * (at / (kRowValues / 4)));
          const float w = ptx::ex2(weight[k] - frame);
          totals[k].x = fmaf(o[k].x, w, totals[k].x);
          totals[k].y = fmaf(o[k].y, w, totals[k].y);
          totals[k].z = fmaf(o[k].z, w, totals[k].z);
          totals[k].w = fmaf(o[k].w, w, totals[k].w);
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int at = item + k * P.mma_threads();
        if (at < last) store_four(at / (kRowValues / 4), 4 * (at % (kRowValues / 4)), totals[k]);
      }
    }
  }
  __device__ void store_four(int head, int dim, const float4& total) const {
    const float factor = ptx::ld_shared_f32(base + S::factors + 4 * head);
    std::uint16_t* to = args.out + result_row(head) * args.d_v + dim;
    if (dim < args.d_v) *reinterpret_cast<std::uint32_t*>(to) = pack(total.x * factor, total.y * factor);
    if (dim + 2 < args.d_v) *reinterpret_cast<std::uint32_t*>(to + 2) = pack(total.z * factor, total.w * factor);
  }

  // A token without slots.
  __device__ void store_empty() const {
    const int heads = min(P.heads, args.h - first_head());
    std::uint16_t* to = args.out + result_row(0) * args.d_v;
    for (int i = thread; i < heads * args.d_v; i += P.mma_threads()) to[i] = 0;
    if (args.lse != nullptr && thread < heads) args.lse[result_row(thread)] = INFINITY;
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
