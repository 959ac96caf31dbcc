// The plan of plan.h on the device. A CTA needs the balance and the place of the first token in its window; from there
// its gather warps walk from token to token. Where n is small, one warp of every CTA finds both; otherwise the kernel
// plan_windows (launch.cu) leaves them in the workspace.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/plan.h"

namespace sparse_mla::cuda::sm90::decode {

inline constexpr int kMostTokensPlannedByCta = 512;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ Segment segment_of(const PoolArgs& pool, std::int32_t token) {
  if (pool.indptr == nullptr) return {};
  return segment_of(__ldg(pool.indptr + token), __ldg(pool.indptr + token + 1), pool.total_indices);
}
__device__ __forceinline__ std::int32_t blocks_of_token(const Args& args, std::int32_t token) {
  std::int64_t slots = segment_of(args.pool[0], token).length;
  if (args.pool[1].indptr != nullptr) slots += segment_of(args.pool[1], token).length;
  return blocks_of(slots);
}

// Of values below 2^47.
__device__ __forceinline__ std::int64_t sum_over_warp(std::int64_t value) {
  const std::uint32_t low = __reduce_add_sync(kAllLanes, static_cast<std::uint32_t>(value) & 0xFFFFFFu);
  const std::uint32_t high = __reduce_add_sync(kAllLanes, static_cast<std::uint32_t>(value >> 24));
  return (static_cast<std::int64_t>(high) << 24) + low;
}
__device__ __forceinline__ void reduce_over_warp(BlockStatistics& s) {
  s.total = sum_over_warp(s.total);
  s.fixed_parts = sum_over_warp(s.fixed_parts);
  s.least = __reduce_min_sync(kAllLanes, s.least);
  s.most = __reduce_max_sync(kAllLanes, s.most);
}

// Blocks of every token into shared memory, by all threads of the CTA: one round trip to the indptr.
__device__ __forceinline__ void load_block_counts(const Args& args, std::uint32_t counts) {
  for (std::int32_t token = threadIdx.x; token < args.n; token += blockDim.x) {
    ptx::st_shared_b32(counts + 4 * token, static_cast<std::uint32_t>(blocks_of_token(args, token)));
  }
}

// All lanes of one warp call it and get the answer. Lane l counts for k consecutive tokens. A window past the last
// token gets place.token = n.
__device__ __forceinline__ Start find_start(const Args& args, std::uint32_t counts, std::int32_t window, int lane) {
  const int k = (args.n + 31) / 32;
  const std::int32_t first = min(args.n, lane * k);
  const std::int32_t last = min(args.n, first + k);
  BlockStatistics statistics;
  for (std::int32_t token = first; token < last; ++token) {
    count(statistics, static_cast<std::int32_t>(ptx::ld_shared_b32(counts + 4 * token)));
  }
  BlockStatistics own = statistics;
  reduce_over_warp(statistics);
  Start start;
  start.balance = balance_of(statistics, args.n, args.windows, args.cluster, args.is_batch_invariant != 0);
  if (start.balance.mode == kTogether) {
    start.place.token = window / args.cluster;
    return start;
  }
  // Where this lane's first token lies.
  std::int64_t length = own.total + static_cast<std::int64_t>(start.balance.overhead) *
                                        (start.balance.mode == kFixed ? own.fixed_parts : last - first);
  std::int64_t up_to = length;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t below = __shfl_up_sync(kAllLanes, up_to, step);
    if (lane >= step) up_to += below;
  }
  Place place{first, 0, up_to - length};
  if (start.balance.mode == kFixed) {
    std::int32_t partials = 0;
    for (std::int32_t token = first; token < last; ++token) {
      const std::int32_t parts = fixed_parts(static_cast<std::int32_t>(ptx::ld_shared_b32(counts + 4 * token)));
      partials += parts > 1 ? parts : 0;
    }
    std::int32_t partials_up_to = partials;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t below = __shfl_up_sync(kAllLanes, partials_up_to, step);
      if (lane >= step) partials_up_to += below;
    }
    place.partial = partials_up_to - partials;
  }
  const std::int64_t begin = start.balance.window * window;
  const unsigned owner = __ballot_sync(kAllLanes, place.start <= begin && begin < place.start + length);
  if (owner == 0) {
    start.place.token = args.n;
    return start;
  }
  const int from = __ffs(owner) - 1;
  if (lane == from) {
    while (true) {  // to the token that lies over the window's begin
      const auto blocks = static_cast<std::int32_t>(ptx::ld_shared_b32(counts + 4 * place.token));
      const Place next = after(start.balance, place, blocks);
      if (begin < next.start) break;
      place = next;
    }
  }
  start.place.token = __shfl_sync(kAllLanes, place.token, from);
  start.place.partial = __shfl_sync(kAllLanes, place.partial, from);
  start.place.start = __shfl_sync(kAllLanes, place.start, from);
  return start;
}

// Records in shared memory: 32 bytes.
__device__ __forceinline__ void store_record(std::uint32_t to, const PartRecord& r) {
  const auto word = [](std::int32_t value) { return static_cast<std::uint32_t>(value); };
  ptx::st_shared_v4(to, {word(r.token), word(r.first_block), word(r.blocks), word(r.part)});
  ptx::st_shared_v4(to + 16, {word(r.parts), word(r.first_partial), word(r.partials), word(r.partial_step)});
}
__device__ __forceinline__ PartRecord load_record(std::uint32_t from) {
  const auto number = [](std::uint32_t value) { return static_cast<std::int32_t>(value); };
  const uint4 a = ptx::ld_shared_v4(from);
  const uint4 b = ptx::ld_shared_v4(from + 16);
  return {number(a.x), number(a.y), number(a.z), number(a.w), number(b.x), number(b.y), number(b.z), number(b.w)};
}

}  // namespace sparse_mla::cuda::sm90::decode
