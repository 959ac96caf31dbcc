// The decode kernel: one CTA is one window (plan.h) for one tile of heads. README.md has the picture.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/finish.cuh"
#include "cuda/sm90/decode/gather.cuh"
#include "cuda/sm90/decode/handshakes.h"
#include "cuda/sm90/decode/narrow.cuh"
#include "cuda/sm90/decode/plan.cuh"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/decode/shared.h"
#include "cuda/sm90/decode/wide.cuh"

namespace sparse_mla::cuda::sm90::decode {

// Warp `warp` sets up the edge's barriers, a lane each.
__device__ __forceinline__ void initialise(std::uint32_t base, Edge edge, int warp) {
  const auto lane = static_cast<std::uint32_t>(threadIdx.x % 32);
  if (static_cast<int>(threadIdx.x / 32) != warp || lane >= edge.objects) return;
  ptx::mbarrier_init(base + edge.address + 8 * lane, edge.arrivals);
  ptx::fence_mbarrier_init();
}

// Barriers, and zeros behind rows shorter than their place.
template <Policy P>
__device__ __forceinline__ void prepare(const Args& args, std::uint32_t base) {
  using S = Shared<P>;
  using H = Handshakes<P>;
  const int thread = threadIdx.x;
  initialise(base, H::kv_full, 0);
  initialise(base, H::kv_free, 1);
  initialise(base, H::p_full, 2);
  initialise(base, H::p_free, 3);
  initialise(base, H::frame_right, 4);
  initialise(base, H::part_full, 5);
  initialise(base, H::part_free, 6);
  const int used = args.d * P.element_bytes();
  if (used < 64 * P.key_groups * P.element_bytes()) {
    const int pieces = (64 * P.key_groups * P.element_bytes() - used) / 16;
    for (int i = thread; i < P.slots * kBlock * pieces; i += P.threads()) {
      ptx::st_shared_v4(base + S::kv + (i / pieces) * P.row_bytes() + used + 16 * (i % pieces), {0, 0, 0, 0});
    }
  }
}

// Where this CTA starts, into shared memory; the block counts are stored by now. Ends with a barrier of the CTA.
template <Policy P>
__device__ __forceinline__ void find_start_of(const Args& args, std::uint32_t base, std::int32_t window) {
  using S = Shared<P>;
  const bool plans = threadIdx.x / 32 == P.threads() / 32 - 1;
  Start start;
  if (args.starts != nullptr) {
    if (plans) start = args.starts[window];
  } else {
    __syncthreads();
    if (plans) start = find_start(args, base + S::q, window, threadIdx.x % 32);
  }
  if (plans && threadIdx.x % 32 == 0) {
    static_assert(sizeof(Start) == 32);
    *reinterpret_cast<Start*>(ptx::shared_pointer(base + S::start)) = start;
  }
  __syncthreads();
}

template <Policy P>
__device__ __forceinline__ void run_gather(const Args& args, std::uint32_t base, int head_group, std::int32_t window) {
  const Start start = *reinterpret_cast<const Start*>(ptx::shared_pointer(base + Shared<P>::start));
  const auto thread = static_cast<int>(threadIdx.x) - P.mma_threads();
  Gather<P> gather{args, base, thread / 128, thread / 32 % 4, thread % 32, head_group * P.heads};
  gather.run(Window{start.balance, window, args.n, args.cluster, args.partials, start.place});
}

template <Policy P>
__device__ __forceinline__ std::int32_t mode_of(std::uint32_t base) {
  return reinterpret_cast<const Start*>(ptx::shared_pointer(base + Shared<P>::start))->balance.mode;
}

// The thread's number, read anew: what is computed from it stays inside one part instead of being kept, and spilled,
// for all parts.
__device__ __forceinline__ int thread_index() { return static_cast<int>(ptx::opaque(threadIdx.x)); }

// The parts of a window as the MMA warps see them.
template <Policy P>
struct Parts {
  using S = Shared<P>;
  const Args& args;
  std::uint32_t base;
  int head_group;
  int count = 0;   // parts done
  int block = 0;   // blocks done
  int blocks = 0;  // of the part at hand; -1: there is none

  __device__ __forceinline__ std::uint32_t record() const { return base + S::part + 32 * (count & 1); }
  // The first part is most likely of the token over the window's begin: its Q sets out before the part is known.
  __device__ __forceinline__ void first() {
    const std::int32_t token = reinterpret_cast<const Start*>(ptx::shared_pointer(base + S::start))->place.token;
    if (token < args.n) prefetch_query<P>(args, token, head_group * P.heads, threadIdx.x, P.mma_threads());
    wait();
  }
  __device__ __forceinline__ void next() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(base + S::part_free + 8 * (count & 1));
    ++count;
    block += blocks;
    wait();
  }
  __device__ __forceinline__ float store_query() const {
    // Before the barrier inside store(): nobody reads the frames until then.
    const int thread = thread_index();
    if (thread < P.heads) ptx::st_shared_f32(base + S::frame + 4 * thread, kNoFrame);
    const auto token = static_cast<std::int32_t>(ptx::ld_shared_b32(record()));
    return Query<P>{args, base, thread, token, head_group * P.heads}.store();
  }
  __device__ __forceinline__ void wait() {
    ptx::mbarrier_wait(base + S::part_full + 8 * (count & 1), (count >> 1) & 1);
    const auto token = static_cast<std::int32_t>(ptx::ld_shared_b32(record()));
    blocks = token < 0 ? -1 : static_cast<std::int32_t>(ptx::ld_shared_b32(record() + 8));
  }
};

template <Policy P>
__device__ __forceinline__ Finish<P> finish_of(const Args& args, std::uint32_t base, std::uint32_t record,
                                               int head_group) {
  return {args, base, thread_index(), load_record(record), head_group};
}

template <Policy P>
__device__ __forceinline__ void run_wide(const Args& args, std::uint32_t base, Parts<P>& parts) {
  const bool is_together = mode_of<P>(base) == kTogether;
  for (; parts.blocks >= 0; parts.next()) {
    if (parts.blocks == 0) {
      finish_of<P>(args, base, parts.record(), parts.head_group).store_empty();
      continue;
    }
    const float factor = parts.store_query();
    const int thread = thread_index();
    const int group = thread / 128;
    const int warp = thread / 32 % 4;
    const int lane = thread % 32;
    Wide<P> wide{base, group, warp, lane, {base, group, warp, lane, factor}, {base, group, warp, lane}};
    wide.run(parts.block, parts.block + parts.blocks);
    const Finish<P> finish = finish_of<P>(args, base, parts.record(), parts.head_group);
    finish.sync();  // both have read the last P: the sums go over it
    wide.softmax.store_sums();
    finish.close_sums(wide.softmax.frames(wide.softmax.generation));
    finish.store(wide.weigh);
    if (finish.part.parts > 1) finish.merge(is_together);
  }
}

template <Policy P>
__device__ __forceinline__ void run_narrow_score(const Args& args, std::uint32_t base, Parts<P>& parts) {
  const bool is_together = mode_of<P>(base) == kTogether;
  for (; parts.blocks >= 0; parts.next()) {
    if (parts.blocks == 0) {
      finish_of<P>(args, base, parts.record(), parts.head_group).store_empty();
      continue;
    }
    const float factor = parts.store_query();
    const int thread = thread_index();
    const int group = thread / 128;
    const int warp = thread / 32 % 4;
    const int lane = thread % 32;
    NarrowScore<P> score{base, group, warp, lane, {base, group, warp, lane, factor}};
    score.run(parts.block, parts.block + parts.blocks);
    const Finish<P> finish = finish_of<P>(args, base, parts.record(), parts.head_group);
    finish.sync();
    score.softmax.store_sums();
    finish.close_sums(score.softmax.frames(score.softmax.generation));
    if (finish.part.parts > 1) finish.merge(is_together);
  }
}

template <Policy P>
__device__ __forceinline__ void run_narrow_weigh(const Args& args, std::uint32_t base, Parts<P>& parts) {
  const bool is_together = mode_of<P>(base) == kTogether;
  for (; parts.blocks >= 0; parts.next()) {
    if (parts.blocks == 0) {
      finish_of<P>(args, base, parts.record(), parts.head_group).store_empty();
      continue;
    }
    parts.store_query();
    const int thread = thread_index();
    const int lane = thread % 32;
    NarrowWeigh<P> weigh{base, lane, {base, thread / 128 - 2, thread / 32 % 4, lane}};
    weigh.run(parts.block, parts.block + parts.blocks);
    const Finish<P> finish = finish_of<P>(args, base, parts.record(), parts.head_group);
    finish.sync();
    finish.close_sums(0);
    finish.store(weigh.weigh);
    if (finish.part.parts > 1) finish.merge(is_together);
  }
}

// nvcc's host stubs of kernels can't name a template argument of class type, so the policy comes in pieces.
template <KvFormat kFormat, int kHeads, int kKeyGroups, int kValueGroups, int kSlots>
__global__ void __launch_bounds__(Policy{kFormat, kHeads, kKeyGroups, kValueGroups, kSlots}.threads(), 1)
    decode_kernel(const __grid_constant__ Args args) {
  constexpr Policy P{kFormat, kHeads, kKeyGroups, kValueGroups, kSlots};
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const std::uint32_t base = ptx::shared_address(shared);
  const auto window = static_cast<std::int32_t>(blockIdx.x);
  const auto head_group = static_cast<int>(blockIdx.y);
  if (args.starts == nullptr) load_block_counts(args, base + Shared<P>::q);  // where Q comes later
  prepare<P>(args, base);
  find_start_of<P>(args, base, window);
  Parts<P> parts{args, base, head_group};
  const int warpgroup = threadIdx.x / 128;
  if constexpr (P.is_wide()) {
    if (warpgroup == 2) {
      ptx::setmaxnreg_dec<40>();
      run_gather<P>(args, base, head_group, window);
    } else {
      ptx::setmaxnreg_inc<232>();
      parts.first();
      run_wide<P>(args, base, parts);
    }
  } else {
    // Weighing 32 heads, and 16 of the unconverted formats, takes more registers than 640 threads get alike.
    constexpr bool kHandsOver = P.heads == 32 || (P.heads == 16 && !P.has_scales());
    if (warpgroup >= 4) {
      if constexpr (kHandsOver) ptx::setmaxnreg_dec<40>();
      run_gather<P>(args, base, head_group, window);
    } else if (warpgroup >= 2) {
      if constexpr (kHandsOver) ptx::setmaxnreg_inc<P.has_scales() ? 120 : 136>();
      parts.first();
      run_narrow_weigh<P>(args, base, parts);
    } else {
      if constexpr (kHandsOver) ptx::setmaxnreg_dec<P.has_scales() ? 88 : 80>();
      parts.first();
      run_narrow_score<P>(args, base, parts);
    }
  }
}

}  // namespace sparse_mla::cuda::sm90::decode
