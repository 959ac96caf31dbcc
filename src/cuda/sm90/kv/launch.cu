#include "cuda/sm90/kv/launch.h"

#include <algorithm>

#include <cuda_runtime.h>

#include "cuda/sm90/kv/kernel.cuh"
#include "cuda/sm90/kv/transfer_kernels.h"

namespace sparse_mla::cuda::sm90::kv {

__global__ void __launch_bounds__(kThreads) copy_codes(const __grid_constant__ KvTransferProblem p, Repeats repeats,
                                                       const std::int32_t* __restrict__ last_row) {
  const std::int64_t i = row_of_lane();
  if (i >= p.count) return;
  const Lane lane;
  const std::int64_t source = source_of(p, i);
  const std::int64_t target = target_of(p, i);
  const bool is_moved = source != kNoSlot && target != kNoSlot;
  if (p.remapped != nullptr && lane.sub == 0) p.remapped[i] = static_cast<std::int32_t>(is_moved ? target : kNoSlot);
  if (!is_moved || is_overtaken(p, repeats, last_row, i, target, lane)) return;
  const Offsets from = offsets_of(p.source, source);
  const Offsets to = offsets_of(p.target, target);
  const auto* row = reinterpret_cast<const uint4*>(p.source.data + from.data);
  auto* copy = reinterpret_cast<uint4*>(p.target.data + to.data);
  const int front = p.width - p.source.tail;
  for (int k = lane.sub; k < front / 16; k += kLanesPerRow) copy[k] = __ldg(row + k);
  if (p.source.tail > 0) {
    const auto* tail = reinterpret_cast<const uint4*>(p.source.data + from.data + p.source.tail_offset);
    reinterpret_cast<uint4*>(p.target.data + to.data + p.target.tail_offset)[lane.sub] = __ldg(tail + lane.sub);
  }
  const int groups = front / p.source.group;
  const std::byte* scales = p.source.scales + from.scales;
  std::byte* scale_copy = p.target.scales + to.scales;
  for (int k = lane.sub; k < groups; k += kLanesPerRow) {
    if (p.source.scales_are_exponents) {
      scale_copy[k] = scales[k];
    } else {
      reinterpret_cast<float*>(scale_copy)[k] = reinterpret_cast<const float*>(scales)[k];
    }
  }
  if (p.target.scales_have_pad && lane.sub == 0) scale_copy[groups] = std::byte{0};
}

__global__ void __launch_bounds__(kThreads) note_last_rows(const __grid_constant__ KvTransferProblem p,
                                                           std::int32_t* last_row) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.count || source_of(p, i) == kNoSlot) return;
  const std::int64_t slot = target_of(p, i);
  if (slot != kNoSlot) atomicMax(last_row + slot, static_cast<std::int32_t>(i));
}

__global__ void finish_one_scale(float* scale, KvScaling scaling) {
  *scale = scaling == KvScaling::kAmax ? amax_scale(*scale) : power_of_two_scale(*scale);
}

// Bytes one at a time: the table decides, and a cache is converted once.
__global__ void __launch_bounds__(kThreads) translate(const __grid_constant__ Translation translation,
                                                      const std::uint8_t* from, std::uint8_t* to, std::int64_t count) {
  __shared__ std::uint8_t table[256];
  table[threadIdx.x] = translation.codes[threadIdx.x];
  __syncthreads();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    to[i] = table[from[i]];
  }
}

namespace {

static_assert(kThreads == 256, "translate() fills one table entry a thread");

Repeats repeats_of(const KvTransferProblem& p) {
  if (p.target_slots.data == nullptr || p.unique_target_slots) return Repeats::kNever;
  return p.count <= kScanRows ? Repeats::kScan : Repeats::kTable;
}

unsigned ctas_for(std::int64_t rows, int rows_per_cta) {
  return static_cast<unsigned>((rows + rows_per_cta - 1) / rows_per_cta);
}

cudaError_t find_one_scale(const KvTransferProblem& p, cudaStream_t stream) {
  auto* scale = reinterpret_cast<float*>(p.target.scales);
  cudaError_t status = cudaMemsetAsync(scale, 0, sizeof(float), stream);
  if (status != cudaSuccess) return status;
  const unsigned ctas = ctas_for(p.count, kRowsPerCta);
  if (p.source.is_fp8()) {
    find_amax<Fp8Source><<<ctas, kThreads, 0, stream>>>(p);
  } else if (p.source.dtype == DType::kFloat32) {
    find_amax<Float32Source><<<ctas, kThreads, 0, stream>>>(p);
  } else {
    find_amax<HalfSource><<<ctas, kThreads, 0, stream>>>(p);
  }
  finish_one_scale<<<1, 1, 0, stream>>>(scale, p.scaling);
  return cudaGetLastError();
}

cudaError_t note_repeats(const KvTransferProblem& p, std::int32_t* last_row, cudaStream_t stream) {
  const cudaError_t status =
      cudaMemsetAsync(last_row, 0xFF, static_cast<std::size_t>(p.target.rows) * sizeof(std::int32_t), stream);
  if (status != cudaSuccess) return status;
  note_last_rows<<<ctas_for(p.count, kThreads), kThreads, 0, stream>>>(p, last_row);
  return cudaGetLastError();
}

}  // namespace

std::size_t workspace_bytes(const KvTransferProblem& problem) noexcept {
  if (repeats_of(problem) != Repeats::kTable) return 0;
  return static_cast<std::size_t>(problem.target.rows) * sizeof(std::int32_t);
}

int launch(const KvTransferProblem& problem, const LaunchContext& context) noexcept {
  if (problem.count == 0) return cudaSuccess;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const Repeats repeats = repeats_of(problem);
  auto* last_row = static_cast<std::int32_t*>(context.workspace);
  cudaError_t status = cudaSuccess;
  if (problem.target.makes_one_scale(problem.scaling)) status = find_one_scale(problem, stream);
  if (status == cudaSuccess && repeats == Repeats::kTable) status = note_repeats(problem, last_row, stream);
  if (status != cudaSuccess) return status;
  const unsigned ctas = ctas_for(problem.count, kRowsPerCta);
  if (problem.copies_codes) {
    copy_codes<<<ctas, kThreads, 0, stream>>>(problem, repeats, last_row);
  } else {
    transfer_kernel(problem)<<<ctas, kThreads, 0, stream>>>(problem, repeats, last_row);
  }
  return cudaGetLastError();
}

int launch_translation(const std::array<std::uint8_t, 256>& table, const std::uint8_t* from, std::uint8_t* to,
                       std::int64_t count, void* stream) noexcept {
  constexpr std::int64_t kMostCtas = 4096;
  const auto ctas = static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, kMostCtas));
  if (ctas == 0) return cudaSuccess;
  Translation translation;
  std::copy(table.begin(), table.end(), translation.codes);
  translate<<<ctas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(translation, from, to, count);
  return cudaGetLastError();
}

}  // namespace sparse_mla::cuda::sm90::kv
