// The plan of plan.h, made on the device: by one warp of every CTA where n is small, by a kernel of its own otherwise.
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
__device__ __forceinline__ std::int64_t blocks_of_token(const Args& args, std::int32_t token) {
  std::int64_t slots = segment_of(args.pool[0], token).length;
  if (args.pool[1].indptr != nullptr) slots += segment_of(args.pool[1], token).length;
  return blocks_of(slots);
}
__device__ __forceinline__ std::int64_t blocks_per_part(const Args& args, std::int64_t total_blocks) {
  const std::int64_t least = least_blocks_per_part(total_blocks, args.extra_parts);
  return least > args.fixed_blocks ? least : args.fixed_blocks;
}

// Blocks of every token into shared memory, by all threads of the CTA: one round trip to the indptr.
__device__ __forceinline__ void load_block_counts(const Args& args, std::uint32_t counts) {
  for (std::int32_t token = threadIdx.x; token < args.n; token += blockDim.x) {
    ptx::st_shared_b32(counts + 4 * token, static_cast<std::uint32_t>(blocks_of_token(args, token)));
  }
}

// Which part `index` is, from the counts. All lanes of the warp call it; all get the answer. Lane l counts for k
// consecutive tokens.
__device__ __forceinline__ PartRecord plan_one_part(const Args& args, std::uint32_t counts, std::int32_t index, int lane) {
  const int k = (args.n + 31) / 32;
  const std::int32_t first = min(args.n, lane * k);
  const std::int32_t last = min(args.n, first + k);
  std::int64_t total = 0;
  for (std::int32_t token = first; token < last; ++token) total += ptx::ld_shared_b32(counts + 4 * token);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  const std::int64_t per_part = blocks_per_part(args, total);

  // Parts and partials of this lane's tokens, then of all lanes up to it.
  std::int32_t parts = 0;
  std::int32_t partials = 0;
  for (std::int32_t token = first; token < last; ++token) {
    const auto of_token = static_cast<std::int32_t>(parts_of(ptx::ld_shared_b32(counts + 4 * token), per_part));
    parts += of_token;
    if (of_token > 1) partials += of_token;
  }
  std::int32_t parts_before = parts;
  std::int32_t partials_before = partials;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t parts_below = __shfl_up_sync(kAllLanes, parts_before, step);
    const std::int32_t partials_below = __shfl_up_sync(kAllLanes, partials_before, step);
    if (lane >= step) {
      parts_before += parts_below;
      partials_before += partials_below;
    }
  }
  parts_before -= parts;
  partials_before -= partials;

  const bool mine = index >= parts_before && index < parts_before + parts;
  const unsigned owner = __ballot_sync(kAllLanes, mine);
  PartRecord record;
  if (owner == 0) return record;
  if (mine) {
    for (std::int32_t token = first; token < last; ++token) {
      const std::int64_t blocks = ptx::ld_shared_b32(counts + 4 * token);
      const auto of_token = static_cast<std::int32_t>(parts_of(blocks, per_part));
      if (index < parts_before + of_token) {
        record = part_record(token, blocks, index - parts_before, of_token, partials_before);
        break;
      }
      parts_before += of_token;
      if (of_token > 1) partials_before += of_token;
    }
  }
  const int from = __ffs(owner) - 1;
  record.token = __shfl_sync(kAllLanes, record.token, from);
  record.first_block = __shfl_sync(kAllLanes, record.first_block, from);
  record.blocks = __shfl_sync(kAllLanes, record.blocks, from);
  record.part = __shfl_sync(kAllLanes, record.part, from);
  record.parts = __shfl_sync(kAllLanes, record.parts, from);
  record.partial = __shfl_sync(kAllLanes, record.partial, from);
  return record;
}

}  // namespace sparse_mla::cuda::sm90::decode
