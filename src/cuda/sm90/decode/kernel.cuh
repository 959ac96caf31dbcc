// The decode kernel: one CTA is one part of a token (plan.h) for one tile of heads. README.md has the picture.
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

struct Cta {
  std::uint32_t base;
  PartRecord part;
  int head_group;
};

__device__ __forceinline__ void initialise(std::uint32_t base, Edge edge) {
  for (std::uint32_t i = 0; i < edge.objects; ++i) ptx::mbarrier_init(base + edge.address + 8 * i, edge.arrivals);
}

// Barriers, first frames, and zeros behind rows shorter than their place.
template <Policy P>
__device__ __forceinline__ void prepare(const Args& args, std::uint32_t base) {
  using S = Shared<P>;
  const int thread = threadIdx.x;
  if (thread == 0) {
    using H = Handshakes<P>;
    initialise(base, H::kv_full);
    initialise(base, H::kv_free);
    initialise(base, H::p_full);
    initialise(base, H::p_free);
    initialise(base, H::frame_right);
    ptx::fence_mbarrier_init();
  }
  if (thread < P.heads) ptx::st_shared_f32(base + S::frame + 4 * thread, kNoFrame);
  const int used = args.d * P.element_bytes();
  if (used < 64 * P.key_groups * P.element_bytes()) {
    const int pieces = (64 * P.key_groups * P.element_bytes() - used) / 16;
    for (int i = thread; i < P.slots * kBlock * pieces; i += P.threads()) {
      ptx::st_shared_v4(base + S::kv + (i / pieces) * P.row_bytes() + used + 16 * (i % pieces), {0, 0, 0, 0});
    }
  }
}

template <Policy P>
__device__ __forceinline__ PartRecord find_part(const Args& args, std::uint32_t base, int index) {
  using S = Shared<P>;
  if (args.parts != nullptr) return args.parts[index];
  // The counts go where Q comes later. One warp plans; the others read its answer after the caller's barrier.
  load_block_counts(args, base + S::q);
  __syncthreads();
  if (threadIdx.x / 32 == P.threads() / 32 - 1) {
    const PartRecord record = plan_one_part(args, base + S::q, index, threadIdx.x % 32);
    if (threadIdx.x % 32 == 0) {
      ptx::st_shared_v4(base + S::part, {static_cast<std::uint32_t>(record.token), static_cast<std::uint32_t>(record.first_block),
                                         static_cast<std::uint32_t>(record.blocks), static_cast<std::uint32_t>(record.part)});
      ptx::st_shared_v2(base + S::part + 16, {static_cast<std::uint32_t>(record.parts), static_cast<std::uint32_t>(record.partial)});
    }
  }
  return {};
}
template <Policy P>
__device__ __forceinline__ PartRecord read_part(std::uint32_t base) {
  const uint4 four = ptx::ld_shared_v4(base + Shared<P>::part);
  const uint2 two = ptx::ld_shared_v2(base + Shared<P>::part + 16);
  return {static_cast<std::int32_t>(four.x), static_cast<std::int32_t>(four.y), static_cast<std::int32_t>(four.z),
          static_cast<std::int32_t>(four.w), static_cast<std::int32_t>(two.x), static_cast<std::int32_t>(two.y)};
}

template <Policy P>
__device__ __forceinline__ void run_gather(const Args& args, const Cta& cta) {
  Gather<P> gather{args, cta.base, static_cast<int>(threadIdx.x / 32) - P.mma_threads() / 32,
                   static_cast<int>(threadIdx.x % 32), cta.part,
                   {segment_of(args.pool[0], cta.part.token), segment_of(args.pool[1], cta.part.token)}};
  gather.run();
}

template <Policy P>
__device__ __forceinline__ float load_query(const Args& args, const Cta& cta) {
  return Query<P>{args, cta.base, static_cast<int>(threadIdx.x), cta.part.token, cta.head_group * P.heads}.store();
}

template <Policy P>
__device__ __forceinline__ Finish<P> finish_of(const Args& args, const Cta& cta) {
  return {args, cta.base, static_cast<int>(threadIdx.x), cta.part, cta.head_group};
}

template <Policy P>
__device__ __forceinline__ void run_wide(const Args& args, const Cta& cta) {
  const int group = threadIdx.x / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  const float factor = load_query<P>(args, cta);
  Wide<P> wide{cta.base, group, warp, lane, cta.part.blocks, {cta.base, group, warp, lane, factor}, {cta.base, group, warp, lane}};
  wide.run();
  const Finish<P> finish = finish_of<P>(args, cta);
  finish.sync();  // both have read the last P: the sums go over it
  wide.softmax.store_sums();
  finish.close_sums(wide.softmax.frames(wide.softmax.generation));
  finish.store(wide.weigh);
  if (cta.part.parts > 1) finish.merge_if_last();
}

template <Policy P>
__device__ __forceinline__ void run_narrow_score(const Args& args, const Cta& cta) {
  const int group = threadIdx.x / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  const float factor = load_query<P>(args, cta);
  NarrowScore<P> score{cta.base, group, warp, lane, cta.part.blocks, {cta.base, group, warp, lane, factor}};
  score.run();
  const Finish<P> finish = finish_of<P>(args, cta);
  finish.sync();
  score.softmax.store_sums();
  finish.close_sums(score.softmax.frames(score.softmax.generation));
  if (cta.part.parts > 1) finish.merge_if_last();
}

template <Policy P>
__device__ __forceinline__ void run_narrow_weigh(const Args& args, const Cta& cta) {
  const int lane = threadIdx.x % 32;
  load_query<P>(args, cta);
  NarrowWeigh<P> weigh{cta.base, lane, cta.part.blocks,
                       {cta.base, static_cast<int>(threadIdx.x / 128) - 2, static_cast<int>(threadIdx.x / 32 % 4), lane}};
  weigh.run();
  const Finish<P> finish = finish_of<P>(args, cta);
  finish.sync();
  finish.close_sums(0);
  finish.store(weigh.weigh);
  if (cta.part.parts > 1) finish.merge_if_last();
}

// nvcc's host stubs of kernels can't name a template argument of class type, so the policy comes in pieces.
template <KvFormat kFormat, int kHeads, int kKeyGroups, int kValueGroups, int kSlots>
__global__ void __launch_bounds__(Policy{kFormat, kHeads, kKeyGroups, kValueGroups, kSlots}.threads(), 1)
    decode_kernel(const __grid_constant__ Args args) {
  constexpr Policy P{kFormat, kHeads, kKeyGroups, kValueGroups, kSlots};
  extern __shared__ __align__(1024) std::uint8_t shared[];
  Cta cta;
  cta.base = ptx::shared_address(shared);
  cta.head_group = static_cast<int>(blockIdx.x % args.head_groups);
  prepare<P>(args, cta.base);
  cta.part = find_part<P>(args, cta.base, static_cast<int>(blockIdx.x / args.head_groups));
  __syncthreads();
  if (args.parts == nullptr) cta.part = read_part<P>(cta.base);
  if (cta.part.token < 0) return;
  if (cta.part.blocks == 0) {
    finish_of<P>(args, cta).store_empty(P.threads());
    return;
  }
  const int warpgroup = threadIdx.x / 128;
  if constexpr (P.is_wide()) {
    if (warpgroup == 2) {
      ptx::setmaxnreg_dec<40>();
      run_gather<P>(args, cta);
    } else {
      ptx::setmaxnreg_inc<232>();
      run_wide<P>(args, cta);
    }
  } else {
    if (warpgroup == 4) {
      if constexpr (P.heads == 32) ptx::setmaxnreg_dec<40>();
      run_gather<P>(args, cta);
    } else if (warpgroup >= 2) {
      if constexpr (P.heads == 32) ptx::setmaxnreg_inc<128>();
      run_narrow_weigh<P>(args, cta);
    } else {
      if constexpr (P.heads == 32) ptx::setmaxnreg_dec<80>();
      run_narrow_score<P>(args, cta);
    }
  }
}

}  // namespace sparse_mla::cuda::sm90::decode
