// The kernels: transfer (one template for append, dequantise, convert and gather), and the passes that may go before it.
#pragma once

#include <cstdint>

#include "base/kv_transfer.h"
#include "cuda/sm90/kv/load.cuh"
#include "cuda/sm90/kv/rows.cuh"
#include "cuda/sm90/kv/scales.cuh"
#include "cuda/sm90/kv/store.cuh"

namespace sparse_mla::cuda::sm90::kv {

__device__ inline std::int64_t row_of_lane() {
  return static_cast<std::int64_t>(blockIdx.x) * kRowsPerCta + threadIdx.x / kLanesPerRow;
}

// kBlocks: 8 or 9, the blocks of rows of 512 and 576 values, all of which are loaded before the first is used; 0: any
// number, one after the other.
template <class Source, class Target, int kBlocks>
__global__ void __launch_bounds__(kThreads, Source::kMinCtasPerSm)
    transfer(const __grid_constant__ KvTransferProblem p, Repeats repeats, const std::int32_t* __restrict__ last_row) {
  const std::int64_t i = row_of_lane();
  if (i >= p.count) return;
  const Lane lane;
  const std::int64_t from = source_of(p, i);
  const std::int64_t to = target_of(p, i);
  const bool is_moved = from != kNoSlot && to != kNoSlot;
  if (p.remapped != nullptr && lane.sub == 0) p.remapped[i] = static_cast<std::int32_t>(is_moved ? to : kNoSlot);
  if (!is_moved) return;
  const Source source(p, from);
  if constexpr (kBlocks == 0) {
    if (is_overtaken(p, repeats, last_row, i, to, lane)) return;
    const Target target(p, i, to);
    for (int block = 0; block < p.width / kBlockValues; ++block) {
      target.store_block(block, source.values(source.load(block, lane.sub)), lane);
    }
  } else {
    typename Source::Raw raw[kBlocks - 1];
#pragma unroll
    for (int k = 0; k < kBlocks - 1; ++k) raw[k] = source.load(k, lane.sub);
    const typename Source::Last last = source.load_last(kBlocks - 1, lane.sub);
    // Asked while the row is on its way.
    if (is_overtaken(p, repeats, last_row, i, to, lane)) return;
    const Target target(p, i, to);
    target.store_row(source, raw, last, lane);
  }
}

// Codes and scales as they are, between places of one layout.
__global__ void __launch_bounds__(kThreads) copy_codes(const __grid_constant__ KvTransferProblem p, Repeats repeats,
                                                       const std::int32_t* __restrict__ last_row);

// last_row[slot]: the last row of the transfer that goes there; -1 before.
__global__ void __launch_bounds__(kThreads) note_last_rows(const __grid_constant__ KvTransferProblem p,
                                                           std::int32_t* last_row);

// The bits of the largest finite magnitude, into the target's one scale, which is 0 before: as integers, floats of 0 and
// above have the same order.
template <class Source>
__global__ void __launch_bounds__(kThreads) find_amax(const __grid_constant__ KvTransferProblem p) {
  const std::int64_t i = row_of_lane();
  const Lane lane;
  float a = 0.0f;
  const std::int64_t from = i < p.count ? source_of(p, i) : kNoSlot;
  if (from != kNoSlot && target_of(p, i) != kNoSlot) {
    const Source source(p, from);
    for (int block = 0; block < p.width / kBlockValues; ++block) {
      a = fmaxf(a, source.amax(source.load_last(block, lane.sub)));
    }
  }
  const int largest = __reduce_max_sync(0xFFFFFFFFu, __float_as_int(a));
  if (threadIdx.x % 32 == 0 && largest > 0) atomicMax(reinterpret_cast<int*>(p.target.scales), largest);
}

// From that magnitude to the scale.
__global__ void finish_one_scale(float* scale, KvScaling scaling);

struct Translation {
  std::uint8_t codes[256];
};
__global__ void __launch_bounds__(kThreads) translate(const __grid_constant__ Translation translation,
                                                      const std::uint8_t* from, std::uint8_t* to, std::int64_t count);

}  // namespace sparse_mla::cuda::sm90::kv
