#include "cuda/sm90/decode/launch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include <cuda_runtime.h>

#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/instance.h"
#include "cuda/sm90/decode/plan.cuh"
#include "cuda/sm90/decode/policy.h"

namespace sparse_mla::cuda::sm90::decode {
namespace {

constexpr int kMostValues = 576;
constexpr std::int64_t kMostRows = 0x7FFFFFFE;  // rows of a pool: an index and the pool's number share 32 bits

struct Instance {
  Policy policy;
  int (*enqueue)(const Args&, unsigned, void*);
};

template <KvFormat kFormat, int kHeads, int kKeyGroups, int kValueGroups>
constexpr Instance instance() {
  constexpr int kSlots = slots_of(kFormat, kHeads, kKeyGroups);
  return {{kFormat, kHeads, kKeyGroups, kValueGroups, kSlots}, enqueue<kFormat, kHeads, kKeyGroups, kValueGroups, kSlots>};
}
template <KvFormat kFormat>
constexpr std::array<Instance, 7> instances_of() {
  return {instance<kFormat, 8, 8, 8>(),  instance<kFormat, 16, 8, 8>(), instance<kFormat, 32, 8, 8>(),
          instance<kFormat, 64, 8, 8>(), instance<kFormat, 8, 9, 9>(),  instance<kFormat, 16, 9, 9>(),
          instance<kFormat, 32, 9, 9>()};
}
constexpr auto kE4M3 = instances_of<KvFormat::kE4M3>();
constexpr auto kBF16 = instances_of<KvFormat::kBF16>();
constexpr auto kF16 = instances_of<KvFormat::kF16>();
constexpr Instance kE4M3MLA = instance<KvFormat::kE4M3, 64, 9, 8>();  // 576 values of which 512 are weighed

int forced_heads() {
  const char* s = std::getenv("DECODE_HEADS");
  return s ? std::atoi(s) : 0;
}

int head_tile_of(const DecodeProblem& p, const LaunchContext&) {
  const int forced = forced_heads();
  if (forced) return forced;
  int tile = 8;
  while (tile < 64 && tile < p.h) tile *= 2;
  return tile;
}

const Instance& choose(const DecodeProblem& p, const LaunchContext& context) {
  const auto& all = p.pool.kv_dtype == DType::kFloat8E4M3FN ? kE4M3 : p.pool.kv_dtype == DType::kBFloat16 ? kBF16 : kF16;
  const int tile = head_tile_of(p, context);
  const bool long_rows = p.d > 512;
  if (long_rows && tile == 64) {
    if (p.pool.kv_dtype == DType::kFloat8E4M3FN && p.d_v <= 512) return kE4M3MLA;
    return all[6];
  }
  for (const Instance& candidate : all) {
    if (candidate.policy.heads == tile && (candidate.policy.key_groups > 8) == long_rows) return candidate;
  }
  return all[6];
}

// Writes one record per part of the grid. One CTA; used where n is too large for every CTA to plan for itself.
constexpr int kPlanThreads = 1024;
__global__ void __launch_bounds__(kPlanThreads) plan_parts(const __grid_constant__ Args args, PartRecord* records) {
  __shared__ std::int64_t warp_sums[32];
  __shared__ std::int64_t total_blocks;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  std::int64_t total = 0;
  for (std::int32_t token = threadIdx.x; token < args.n; token += kPlanThreads) total += blocks_of_token(args, token);
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  if (lane == 0) warp_sums[warp] = total;
  __syncthreads();
  if (warp == 0) {
    total = warp_sums[lane];
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
    if (lane == 0) total_blocks = total;
  }
  __syncthreads();
  const std::int64_t per_part = blocks_per_part(args, total_blocks);
  // Prefix sums of (parts, partials), packed: both stay below 2^31.
  std::int64_t before_tile = 0;
  for (std::int32_t first = 0; first < args.n; first += kPlanThreads) {
    const std::int32_t token = first + static_cast<std::int32_t>(threadIdx.x);
    const std::int64_t blocks = token < args.n ? blocks_of_token(args, token) : 0;
    const std::int64_t parts = token < args.n ? parts_of(blocks, per_part) : 0;
    const std::int64_t own = parts << 32 | (parts > 1 ? parts : 0);
    std::int64_t up_to = own;
    for (int step = 1; step < 32; step *= 2) {
      const std::int64_t below = __shfl_up_sync(kAllLanes, up_to, step);
      if (lane >= step) up_to += below;
    }
    __syncthreads();  // the last round's sums are read
    if (lane == 31) warp_sums[warp] = up_to;
    __syncthreads();
    std::int64_t before = before_tile + up_to - own;
    for (int w = 0; w < 32; ++w) {
      if (w < warp) before += warp_sums[w];
      before_tile += warp_sums[w];
    }
    const auto first_part = static_cast<std::int32_t>(before >> 32);
    for (std::int32_t part = 0; part < parts; ++part) {
      records[first_part + part] = part_record(token, blocks, part, static_cast<std::int32_t>(parts),
                                               static_cast<std::int32_t>(before & 0xFFFFFFFF));
    }
  }
  for (auto i = static_cast<std::int32_t>(before_tile >> 32) + static_cast<std::int32_t>(threadIdx.x);
       i < args.n + args.extra_parts; i += kPlanThreads) {
    records[i] = PartRecord{};
  }
}

struct Workspace {
  std::size_t records, counters, stats, out, bytes;
};

constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

Workspace workspace_of(const Policy& policy, std::int64_t n, std::int64_t head_groups, std::int64_t extra_parts) {
  const std::size_t partials = static_cast<std::size_t>(2 * extra_parts * head_groups);
  const std::size_t rows = partials * policy.heads;
  Workspace w{};
  w.records = 0;
  w.counters = n > kMostTokensPlannedByCta ? round_up((n + extra_parts) * sizeof(PartRecord)) : 0;
  w.stats = w.counters + round_up(partials * sizeof(std::uint64_t));
  w.out = w.stats + round_up(rows * sizeof(float2));
  w.bytes = w.out + rows * policy.value_groups * kGroup * sizeof(float);
  return w;
}

// Blocks of a part in batch-invariant mode: 4096 slots.
constexpr std::int32_t kFixedBlocks = 64;

struct Shape {
  std::int32_t head_groups;
  std::int32_t extra_parts;
};
Shape shape_of(const DecodeProblem& p, const LaunchContext& context, const Policy& policy) {
  const std::int64_t groups = (p.h + policy.heads - 1) / policy.heads;
  if (!context.batch_invariant) {
    const std::int64_t sms = context.multiprocessors > 0 ? context.multiprocessors : 132;
    return {static_cast<std::int32_t>(groups), static_cast<std::int32_t>((sms + groups - 1) / groups)};
  }
  const std::int64_t slots = p.pool.total_indices + (p.second_pool.indptr != nullptr ? p.second_pool.total_indices : 0);
  return {static_cast<std::int32_t>(groups), static_cast<std::int32_t>(slots / (kBlock * kFixedBlocks) + p.n + 1)};
}

PoolArgs pool_args(const PoolProblem& pool) {
  PoolArgs a;
  if (pool.indptr == nullptr) return a;
  a.kv = static_cast<const std::uint8_t*>(pool.kv);
  a.scales = pool.kv_scales;
  a.indices = pool.indices;
  a.indptr = pool.indptr;
  a.row_bytes = pool.kv_row_stride * static_cast<std::int64_t>(bytes_per_element(pool.kv_dtype));
  a.scales_stride = pool.kv_scales_row_stride;
  a.total_pages = pool.total_pages;
  a.total_indices = pool.total_indices;
  return a;
}

bool is_aligned(const void* pointer, std::int64_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride_bytes % 16 == 0;
}
bool scales_are_aligned(const PoolProblem& pool) {
  return pool.indptr == nullptr || is_aligned(pool.kv_scales, pool.kv_scales_row_stride * 4);
}

Args args_of(const DecodeProblem& p, const LaunchContext& context, const Policy& policy) {
  const Shape shape = shape_of(p, context, policy);
  const Workspace w = workspace_of(policy, p.n, shape.head_groups, shape.extra_parts);
  auto* workspace = static_cast<std::uint8_t*>(context.workspace);
  Args a;
  a.q = static_cast<const std::uint16_t*>(p.q);
  a.q_row_stride = p.q_row_stride;
  a.q_head_stride = p.q_head_stride;
  a.pool[0] = pool_args(p.pool);
  a.pool[1] = pool_args(p.second_pool);
  a.attn_sink = p.attn_sink;
  a.out = static_cast<std::uint16_t*>(p.out);
  a.lse = p.lse;
  a.n = static_cast<std::int32_t>(p.n);
  a.h = p.h;
  a.d = p.d;
  a.d_v = p.d_v;
  a.q_is_f16 = p.q_dtype == DType::kFloat16;
  a.q_is_aligned = is_aligned(p.q, p.q_row_stride * 2) && is_aligned(p.q, p.q_head_stride * 2);
  a.scales_are_aligned = scales_are_aligned(p.pool) && scales_are_aligned(p.second_pool);
  a.scale_log2 = p.softmax_scale * 1.4426950408889634f;
  a.head_groups = shape.head_groups;
  a.extra_parts = shape.extra_parts;
  a.fixed_blocks = context.batch_invariant ? kFixedBlocks : 0;
  a.parts = p.n > kMostTokensPlannedByCta ? reinterpret_cast<const PartRecord*>(workspace + w.records) : nullptr;
  a.counters = reinterpret_cast<std::uint64_t*>(workspace + w.counters);
  a.partial_stats = reinterpret_cast<float2*>(workspace + w.stats);
  a.partial_out = reinterpret_cast<float*>(workspace + w.out);
  return a;
}

std::string pool_declines(const PoolProblem& pool, const char* name, const DecodeProblem& p) {
  if (pool.indptr == nullptr) return {};
  if (pool.kv_dtype != DType::kFloat8E4M3FN && pool.kv_dtype != p.q_dtype) return std::string(name) + " is neither e4m3fn nor of q's dtype";
  if (!is_aligned(pool.kv, pool.kv_row_stride * static_cast<std::int64_t>(bytes_per_element(pool.kv_dtype)))) {
    return std::string(name) + " rows do not start at multiples of 16 bytes";
  }
  if (pool.total_pages > kMostRows) return std::string(name) + " has 2^31 - 1 rows or more";
  return {};
}

}  // namespace

std::string declines(const DecodeProblem& p) {
  if (p.h < 1 || p.h > 128) return "h=" + std::to_string(p.h) + " is not within 1..128";
  if (p.d < 64 || p.d % 64 != 0 || p.d > kMostValues) return "d=" + std::to_string(p.d) + " is not a multiple of 64 up to 576";
  if (p.d_v < 1 || p.d_v > p.d) return "d_v=" + std::to_string(p.d_v) + " is not within 1..d";
  if (p.second_pool.indptr != nullptr && p.second_pool.kv_dtype != p.pool.kv_dtype) return "the two pools differ in dtype";
  if (p.n > 0x7FFFFFFF / (16 * 4)) return "n=" + std::to_string(p.n) + " needs more CTAs than a grid has";
  std::string reason = pool_declines(p.pool, "kv", p);
  if (reason.empty()) reason = pool_declines(p.second_pool, "the second pool", p);
  return reason;
}

std::size_t workspace_bytes(const DecodeProblem& p, const LaunchContext& context) {
  const Policy policy = choose(p, context).policy;
  const Shape shape = shape_of(p, context, policy);
  return workspace_of(policy, p.n, shape.head_groups, shape.extra_parts).bytes;
}

int launch(const DecodeProblem& p, const LaunchContext& context) noexcept {
  if (p.n == 0) return cudaSuccess;
  const Instance& chosen = choose(p, context);
  const Args args = args_of(p, context, chosen.policy);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (args.parts != nullptr) {
    plan_parts<<<1, kPlanThreads, 0, stream>>>(args, const_cast<PartRecord*>(args.parts));
    const cudaError_t planned = cudaGetLastError();
    if (planned != cudaSuccess) return planned;
  }
  return chosen.enqueue(args, static_cast<unsigned>((p.n + args.extra_parts) * args.head_groups), context.stream);
}

}  // namespace sparse_mla::cuda::sm90::decode
