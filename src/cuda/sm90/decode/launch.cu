#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/instance.h"
#include "cuda/sm90/decode/launch.h"
#include "cuda/sm90/decode/plan.cuh"
#include "cuda/sm90/decode/policy.h"

namespace sparse_mla::cuda::sm90::decode {
namespace {

constexpr int kMostValues = 576;
constexpr std::int64_t kMostRows = 0x7FFFFFFE;  // rows of a pool: an index and the pool's number share 32 bits

struct Instance {
  Policy policy;
  int (*enqueue)(const Args&, void*);
};

template <KvFormat kFormat, int kHeads, int kKeyGroups, int kValueGroups>
constexpr Instance instance() {
  constexpr int kSlots = slots_of(kFormat, kHeads, kKeyGroups);
  return {{kFormat, kHeads, kKeyGroups, kValueGroups, kSlots},
          enqueue<kFormat, kHeads, kKeyGroups, kValueGroups, kSlots>};
}
template <KvFormat kFormat>
constexpr std::array<Instance, 6> narrow_instances() {
  return {instance<kFormat, 8, 8, 8>(), instance<kFormat, 16, 8, 8>(), instance<kFormat, 32, 8, 8>(),
          instance<kFormat, 8, 9, 9>(), instance<kFormat, 16, 9, 9>(), instance<kFormat, 32, 9, 9>()};
}
constexpr auto kE4M3 = narrow_instances<KvFormat::kE4M3>();
constexpr auto kBF16 = narrow_instances<KvFormat::kBF16>();
constexpr auto kF16 = narrow_instances<KvFormat::kF16>();
// 64 heads: e4m3 rows of up to 512 values, and of 576 of which 512 are weighed.
constexpr Instance kWide = instance<KvFormat::kE4M3, 64, 8, 8>();
constexpr Instance kWideMLA = instance<KvFormat::kE4M3, 64, 9, 8>();

// The largest head tile there is for the problem. 576 weighed values of 64 heads don't fit the accumulators, and two
// blocks of 16-bit rows beside Q of 64 heads leave the products waiting.
int largest_tile(const DecodeProblem& p) {
  return p.pool.kv_dtype == DType::kFloat8E4M3FN && (p.d <= 512 || p.d_v <= 512) ? 64 : 32;
}

int head_tile_of(const DecodeProblem& p, const LaunchContext& context);

const Instance& choose(const DecodeProblem& p, const LaunchContext& context) {
  const int tile = head_tile_of(p, context);
  const bool long_rows = p.d > 512;
  if (tile == 64) return long_rows ? kWideMLA : kWide;
  const auto& narrow = p.pool.kv_dtype == DType::kFloat8E4M3FN ? kE4M3
                       : p.pool.kv_dtype == DType::kBFloat16   ? kBF16
                                                               : kF16;
  return narrow[(tile == 8 ? 0 : tile == 16 ? 1 : 2) + (long_rows ? 3 : 0)];
}

// Finds the start of every window. One CTA; used where n is too large for every CTA to find its own.
constexpr int kPlanThreads = 1024;

// The sum over the CTA's threads, and what the threads before this one add up to. `sums` is shared memory of 32 values.
struct Scan {
  std::int64_t before;
  std::int64_t total;
};
__device__ Scan scan_over_cta(std::int64_t own, std::int64_t* sums) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  std::int64_t up_to = own;
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t below = __shfl_up_sync(kAllLanes, up_to, step);
    if (lane >= step) up_to += below;
  }
  __syncthreads();  // the last scan's sums are read
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  Scan scan{up_to - own, 0};
  for (int w = 0; w < kPlanThreads / 32; ++w) {
    if (w < warp) scan.before += sums[w];
    scan.total += sums[w];
  }
  return scan;
}

__global__ void __launch_bounds__(kPlanThreads) plan_windows(const __grid_constant__ Args args, Start* starts) {
  __shared__ std::int64_t sums[32];
  __shared__ BlockStatistics of_warp[32];
  const int warp = threadIdx.x / 32;
  BlockStatistics statistics;
  for (auto token = static_cast<std::int32_t>(threadIdx.x); token < args.n; token += kPlanThreads) {
    count(statistics, blocks_of_token(args, token));
  }
  reduce_over_warp(statistics);
  if (threadIdx.x % 32 == 0) of_warp[warp] = statistics;
  __syncthreads();
  statistics = of_warp[threadIdx.x % 32];
  reduce_over_warp(statistics);
  const Balance balance = balance_of(statistics, args.n, args.windows, args.cluster, args.is_batch_invariant != 0);

  std::int64_t start = 0;
  std::int64_t partial = 0;
  for (std::int32_t first = 0; first < args.n; first += kPlanThreads) {
    const std::int32_t token = first + static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t blocks = token < args.n ? blocks_of_token(args, token) : 0;
    const std::int64_t length = token < args.n ? line_length(balance, blocks) : 0;
    const std::int64_t parts = token < args.n && balance.mode == kFixed ? fixed_parts(blocks) : 0;
    const Scan line = scan_over_cta(length, sums);
    const Scan partials = scan_over_cta(parts > 1 ? parts : 0, sums);
    const Place place{token, static_cast<std::int32_t>(min(partial + partials.before, std::int64_t{args.partials})),
                      start + line.before};
    // Every window whose begin lies over this token.
    if (token < args.n) {
      for (std::int64_t w = divide_up(place.start, balance.window);
           w < args.windows && w * balance.window < place.start + length; ++w) {
        starts[w] = {balance, place};
      }
    }
    start += line.total;
    partial += partials.total;
  }
  for (std::int64_t w = divide_up(start, balance.window) + threadIdx.x; w < args.windows; w += kPlanThreads) {
    starts[w] = {balance, {args.n, 0, start}};
  }
}

struct Workspace {
  std::size_t starts, counters, stats, out, bytes;
};

constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

struct Shape {
  std::int32_t head_groups;
  std::int32_t windows;
  std::int32_t cluster;
  std::int32_t partials;
};

// The largest cluster that leaves every token of every head group one, and how many fit the device at once.
struct ClusterChoice {
  int size;
  int count;
};
ClusterChoice cluster_of(std::int64_t items, std::int64_t average_blocks, int multiprocessors) {
  // CTAs that fill a multiprocessor, on 132: cudaOccupancyMaxActiveClusters. Elsewhere only pairs are counted on.
  constexpr ClusterChoice kOn132[] = {{5, 22}, {3, 39}, {2, 66}};
  if (multiprocessors == 132) {
    for (const ClusterChoice& choice : kOn132) {
      if (items <= choice.count && average_blocks >= choice.size) return choice;
    }
  } else if (items <= multiprocessors / 2 && average_blocks >= 2) {
    return {2, multiprocessors / 2};
  }
  return {1, multiprocessors};
}
std::int64_t average_slots_of(const DecodeProblem& p) {
  const std::int64_t slots = p.pool.total_indices + (p.second_pool.indptr != nullptr ? p.second_pool.total_indices : 0);
  return slots / p.n;
}

Shape shape_of(const DecodeProblem& p, const LaunchContext& context, const Policy& policy) {
  const int groups = (p.h + policy.heads - 1) / policy.heads;
  const int multiprocessors = context.multiprocessors > 0 ? context.multiprocessors : 132;
  Shape shape{groups, 1, 1, 0};
  const ClusterChoice clusters =
      context.batch_invariant ? ClusterChoice{1, multiprocessors}
                              : cluster_of(p.n * groups, (average_slots_of(p) + kBlock - 1) / kBlock, multiprocessors);
  shape.cluster = clusters.size;
  shape.windows = std::max(1, clusters.count / groups) * clusters.size;
  shape.partials = 2 * shape.windows;
  if (context.batch_invariant) {
    // Tokens of more than kFixedBlocks blocks, in parts of kFixedBlocks: less than twice the blocks over kFixedBlocks.
    const std::int64_t slots =
        p.pool.total_indices + (p.second_pool.indptr != nullptr ? p.second_pool.total_indices : 0);
    shape.partials =
        static_cast<std::int32_t>(std::min<std::int64_t>(2 * (slots / (kBlock * kFixedBlocks) + 1), 1 << 20));
  }
  return shape;
}
Workspace workspace_of(const Policy& policy, std::int64_t n, const Shape& shape) {
  const std::size_t partials = static_cast<std::size_t>(shape.partials) * shape.head_groups;
  const std::size_t rows = partials * policy.heads;
  Workspace w{};
  w.starts = 0;
  w.counters = n > kMostTokensPlannedByCta ? round_up(shape.windows * sizeof(Start)) : 0;
  w.stats = w.counters + round_up(partials * sizeof(std::uint64_t));
  w.out = w.stats + round_up(rows * sizeof(float2));
  w.bytes = w.out + rows * policy.value_groups * kGroup * sizeof(float);
  return w;
}

// The head tile that should be fastest: a larger one reads the rows of a token fewer times, smaller ones spread few
// tokens over more multiprocessors. Microseconds on an H200, from the timings in docs/kernels/decode.md.
struct TileCost {
  int heads;
  double part;  // start and end of a part
  double block;
};
constexpr TileCost kTileCosts[] = {{8, 7.9, 1.1}, {16, 8.3, 1.15}, {32, 9.5, 1.4}, {64, 12.0, 2.2}};
double merge_cost(int heads, int cluster) { return cluster > 1 ? 0.6 + 0.2 * heads / cluster : 0.0; }

int head_tile_of(const DecodeProblem& p, const LaunchContext& context) {
  if (context.batch_invariant) {
    // Frames move for all heads of a tile at once, so the tile shows in the bits: it must not depend on the batch.
    int tile = 8;
    while (tile < p.h && tile < largest_tile(p)) tile *= 2;
    return tile;
  }
  const int multiprocessors = context.multiprocessors > 0 ? context.multiprocessors : 132;
  const std::int64_t blocks = std::max<std::int64_t>(1, (average_slots_of(p) + kBlock - 1) / kBlock);
  int best = 8;
  double least = 0;
  for (const TileCost& tile : kTileCosts) {
    if (tile.heads > 8 && (tile.heads >= 2 * p.h || tile.heads > largest_tile(p))) break;
    const std::int64_t items = p.n * ((p.h + tile.heads - 1) / tile.heads);
    const ClusterChoice cluster = cluster_of(items, blocks, multiprocessors);
    const auto waves = static_cast<double>((items + multiprocessors - 1) / multiprocessors);
    const auto own = static_cast<double>((blocks + cluster.size - 1) / cluster.size);
    const double time = waves * (tile.part + own * tile.block) + merge_cost(tile.heads, cluster.size);
    if (tile.heads == 8 || time < least) {
      least = time;
      best = tile.heads;
    }
  }
  return best;
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
  const Workspace w = workspace_of(policy, p.n, shape);
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
  // Four scales at once, two lanes a row: right only where a row has eight.
  a.scales_are_aligned = p.d == 8 * kGroup && scales_are_aligned(p.pool) && scales_are_aligned(p.second_pool);
  a.scale_log2 = p.softmax_scale * 1.4426950408889634f;
  a.head_groups = shape.head_groups;
  a.windows = shape.windows;
  a.cluster = shape.cluster;
  a.partials = shape.partials;
  a.is_batch_invariant = context.batch_invariant;
  a.starts = p.n > kMostTokensPlannedByCta ? reinterpret_cast<const Start*>(workspace + w.starts) : nullptr;
  a.counters = reinterpret_cast<std::uint64_t*>(workspace + w.counters);
  a.partial_stats = reinterpret_cast<float2*>(workspace + w.stats);
  a.partial_out = reinterpret_cast<float*>(workspace + w.out);
  return a;
}

std::string pool_declines(const PoolProblem& pool, const char* name, const DecodeProblem& p) {
  if (pool.indptr == nullptr) return {};
  if (pool.kv_dtype != DType::kFloat8E4M3FN && pool.kv_dtype != p.q_dtype)
    return std::string(name) + " is neither e4m3fn nor of q's dtype";
  if (!is_aligned(pool.kv, pool.kv_row_stride * static_cast<std::int64_t>(bytes_per_element(pool.kv_dtype)))) {
    return std::string(name) + " rows do not start at multiples of 16 bytes";
  }
  if (pool.total_pages > kMostRows) return std::string(name) + " has 2^31 - 1 rows or more";
  return {};
}

}  // namespace

std::string declines(const DecodeProblem& p) {
  if (p.h < 1 || p.h > 128) return "h=" + std::to_string(p.h) + " is not within 1..128";
  if (p.d < 64 || p.d % 64 != 0 || p.d > kMostValues)
    return "d=" + std::to_string(p.d) + " is not a multiple of 64 up to 576";
  if (p.d_v < 2 || p.d_v > p.d || p.d_v % 2 != 0)
    return "d_v=" + std::to_string(p.d_v) + " is not an even number up to d";
  if (p.second_pool.indptr != nullptr && p.second_pool.kv_dtype != p.pool.kv_dtype)
    return "the two pools differ in dtype";
  if (p.n > 0x7FFFFFFF - kPlanThreads) return "n=" + std::to_string(p.n) + " is 2^31 or about";
  std::string reason = pool_declines(p.pool, "kv", p);
  if (reason.empty()) reason = pool_declines(p.second_pool, "the second pool", p);
  return reason;
}

std::size_t workspace_bytes(const DecodeProblem& p, const LaunchContext& context) {
  const Policy policy = choose(p, context).policy;
  return workspace_of(policy, p.n, shape_of(p, context, policy)).bytes;
}

int launch(const DecodeProblem& p, const LaunchContext& context) noexcept {
  if (p.n == 0) return cudaSuccess;
  const Instance& chosen = choose(p, context);
  const Args args = args_of(p, context, chosen.policy);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (args.starts != nullptr) {
    plan_windows<<<1, kPlanThreads, 0, stream>>>(args, const_cast<Start*>(args.starts));
    const cudaError_t planned = cudaGetLastError();
    if (planned != cudaSuccess) return planned;
  }
  return chosen.enqueue(args, context.stream);
}

}  // namespace sparse_mla::cuda::sm90::decode
