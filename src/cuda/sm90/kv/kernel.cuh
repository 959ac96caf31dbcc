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

// kBlocks consecutive blocks of a row from `first` on: all loads, then pairs of blocks, so that a scale group of 128 is
// in one lane's hands.
template <class Source, class Target, int kBlocks>
__device__ void move_blocks(const Source& source, const Target& target, int first, const Lane& lane) {
  typename Source::Raw raw[kBlocks];
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) raw[k] = source.load(first + k, lane.sub);
#pragma unroll
  for (int k = 0; k + 1 < kBlocks; k += 2) {
    const Values two[2] = {source.values(raw[k]), source.values(raw[k + 1])};
    target.store(first + k, two, lane);
  }
  if constexpr (kBlocks % 2 == 1) {
    const Values one[1] = {source.values(raw[kBlocks - 1])};
    target.store(first + kBlocks - 1, one, lane);
  }
}

// kBlocks divides the blocks of a row: all of them for rows of 512 and 576 values, 1 for other widths.
template <class Source, class Target, int kBlocks>
__global__ void __launch_bounds__(kThreads) transfer(const __grid_constant__ KvTransferProblem p, Repeats repeats,
                                                     const std::int32_t* __restrict__ last_row) {
  const std::int64_t i = row_of_lane();
  if (i >= p.count) return;
  const Lane lane;
  const std::int64_t from = source_of(p, i);
  const std::int64_t to = target_of(p, i);
  const bool is_moved = from != kNoSlot && to != kNoSlot;
  if (p.remapped != nullptr && lane.sub == 0) p.remapped[i] = static_cast<std::int32_t>(is_moved ? to : kNoSlot);
  if (!is_moved || is_overtaken(p, repeats, last_row, i, to, lane)) return;
  const Source source = make_source<Source>(p, from);
  const Target target(p, i, to);
  for (int first = 0; first < p.width / kBlockValues; first += kBlocks) {
    move_blocks<Source, Target, kBlocks>(source, target, first, lane);
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
    const Source source = make_source<Source>(p, from);
    for (int block = 0; block < p.width / kBlockValues; ++block) {
      a = fmaxf(a, finite_amax(source.values(source.load(block, lane.sub))));
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
