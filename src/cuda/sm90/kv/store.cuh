// The targets: 8 values of a lane, rounded, in their place.
#pragma once

#include <cstdint>

#include "base/kv_transfer.h"
#include "cuda/ptx/convert.cuh"
#include "cuda/sm90/kv/load.cuh"
#include "cuda/sm90/kv/policy.h"
#include "cuda/sm90/kv/rows.cuh"
#include "cuda/sm90/kv/scales.cuh"

namespace sparse_mla::cuda::sm90::kv {

__device__ inline uint4 narrow_bf16(const Values& v) {
  return {ptx::cvt_bf16x2_f32(v.x[0], v.x[1]), ptx::cvt_bf16x2_f32(v.x[2], v.x[3]),
          ptx::cvt_bf16x2_f32(v.x[4], v.x[5]), ptx::cvt_bf16x2_f32(v.x[6], v.x[7])};
}
__device__ inline uint4 narrow_f16(const Values& v) {
  return {ptx::cvt_f16x2_f32(v.x[0], v.x[1]), ptx::cvt_f16x2_f32(v.x[2], v.x[3]),
          ptx::cvt_f16x2_f32(v.x[4], v.x[5]), ptx::cvt_f16x2_f32(v.x[6], v.x[7])};
}
__device__ inline uint2 e4m3_codes(const Values& v, const Divisor& divisor) {
  const Values q = divided(v, divisor);
  std::uint32_t pairs[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) pairs[k] = ptx::cvt_e4m3x2_f32(q.x[2 * k], q.x[2 * k + 1]);
  return {ptx::prmt(pairs[0], pairs[1], 0x5410), ptx::prmt(pairs[2], pairs[3], 0x5410)};
}

// A target takes a row in two ways: `store_front` the kFront blocks before the last together, and the last; `store_block`
// any one block, for rows of other widths.

// Targets whose blocks have nothing to do with each other.
template <class Target>
struct BlockByBlock {
  template <class Source, int kFront>
  __device__ void store_row(const Source& source, const typename Source::Raw (&raw)[kFront],
                            const typename Source::Last& last, const Lane& lane) const {
    const auto& target = static_cast<const Target&>(*this);
#pragma unroll
    for (int k = 0; k < kFront; ++k) target.store_block(k, source.values(raw[k]), lane);
    target.store_block(kFront, source.values(last), lane);
  }
};

struct HalfTarget : BlockByBlock<HalfTarget> {
  std::byte* row;
  bool is_f16;

  __device__ HalfTarget(const KvTransferProblem& p, std::int64_t, std::int64_t slot)
      : row(p.target.data + offsets_of(p.target, slot).data), is_f16(p.target.dtype == DType::kFloat16) {}
  __device__ void store_block(int block, const Values& values, const Lane& lane) const {
    const uint4 bytes = is_f16 ? narrow_f16(values) : narrow_bf16(values);
    reinterpret_cast<uint4*>(row)[block * kLanesPerRow + lane.sub] = bytes;
  }
};

struct Float32Target : BlockByBlock<Float32Target> {
  std::byte* row;

  __device__ Float32Target(const KvTransferProblem& p, std::int64_t, std::int64_t slot)
      : row(p.target.data + offsets_of(p.target, slot).data) {}
  __device__ void store_block(int block, const Values& values, const Lane& lane) const {
    const float* x = values.x;
    float4* to = reinterpret_cast<float4*>(row) + (block * kLanesPerRow + lane.sub) * 2;
    to[0] = {x[0], x[1], x[2], x[3]};
    to[1] = {x[4], x[5], x[6], x[7]};
  }
};

// e4m3 rows under one scale for all.
struct OneScaleTarget : BlockByBlock<OneScaleTarget> {
  std::byte* row;
  Divisor divisor;

  __device__ OneScaleTarget(const KvTransferProblem& p, std::int64_t, std::int64_t slot)
      : row(p.target.data + offsets_of(p.target, slot).data),
        divisor(divisor_of(*reinterpret_cast<const float*>(p.target.scales))) {}
  __device__ void store_block(int block, const Values& values, const Lane& lane) const {
    reinterpret_cast<uint2*>(row)[block * kLanesPerRow + lane.sub] = e4m3_codes(values, divisor);
  }
};

// e4m3 rows with scales of their own, and a last block of bf16 where the format has one. The scale of block k is made by
// lane k of the row, for all blocks of the front at once, and handed round.
struct GroupTarget {
  std::byte* row;
  std::byte* scales;
  const float* given;  // the row's, with kGiven
  int group_shift;     // blocks under a scale, as a shift
  int tail_offset;
  bool has_tail;
  bool has_pad;
  bool scales_are_exponents;
  KvScaling scaling;

  __device__ GroupTarget(const KvTransferProblem& p, std::int64_t i, std::int64_t slot)
      : given(p.given_scales + i * p.given_row_stride),
        group_shift(p.target.group == 2 * kBlockValues ? 1 : 0),
        tail_offset(p.target.tail_offset),
        has_tail(p.target.tail > 0),
        has_pad(p.target.scales_have_pad),
        scales_are_exponents(p.target.scales_are_exponents),
        scaling(p.scaling) {
    const Offsets offsets = offsets_of(p.target, slot);
    row = p.target.data + offsets.data;
    scales = p.target.scales + offsets.scales;
  }

  __device__ void store_codes(int block, const Values& values, const Divisor& divisor, int sub) const {
    reinterpret_cast<uint2*>(row)[block * kLanesPerRow + sub] = e4m3_codes(values, divisor);
  }
  __device__ void store_scale(int k, float scale) const {
    if (scales_are_exponents) {
      scales[k] = static_cast<std::byte>(__float_as_uint(scale) >> 23);
    } else {
      reinterpret_cast<float*>(scales)[k] = scale;
    }
  }
  __device__ float scale_for(float a, int k) const { return make_scale(scaling, a, given + k, scales_are_exponents); }

  // A block that has a scale to itself.
  __device__ void store_block(int block, const Values& values, const Lane& lane) const {
    const float a = scaling == KvScaling::kGiven ? 0.0f : row_max(finite_amax(values), lane.mask());
    const float scale = scale_for(a, block);
    if (lane.sub == 0) store_scale(block, scale);
    store_codes(block, values, divisor_of(scale), lane.sub);
  }

  // The largest magnitude under the scale of block `sub`, in lane `sub`.
  template <class Source, int kFront>
  __device__ float scattered_amax(const Source& source, const typename Source::Raw (&raw)[kFront],
                                  const typename Source::Last& last, const Lane& lane) const {
    float a[kLanesPerRow];
#pragma unroll
    for (int k = 0; k < kFront; ++k) a[k] = source.amax(raw[k]);
    if constexpr (kFront < kLanesPerRow) a[kFront] = has_tail ? 0.0f : source.amax(last);
    const float mine = scattered_max(a, lane);
    return group_shift == 0 ? mine : fmaxf(mine, __shfl_xor_sync(lane.mask(), mine, 1));
  }

  template <class Source, int kFront>
  __device__ void store_row(const Source& source, const typename Source::Raw (&raw)[kFront],
                            const typename Source::Last& last, const Lane& lane) const {
    static_assert(kFront == kLanesPerRow || kFront == kLanesPerRow - 1);
    // Whether this lane has a block with a scale: the last of 8 blocks may be the tail.
    const bool has_scale = kFront == kLanesPerRow || !has_tail || lane.sub < kFront;
    const float a = scaling == KvScaling::kGiven ? 0.0f : scattered_amax(source, raw, last, lane);
    const float scale = has_scale ? scale_for(a, lane.sub >> group_shift) : 1.0f;
    if (has_scale && lane.sub % (1 << group_shift) == 0) store_scale(lane.sub >> group_shift, scale);
    if (!has_scale && has_pad) scales[lane.sub] = std::byte{0};
    const Divisor mine = divisor_of(scale);
#pragma unroll
    for (int k = 0; k < kFront; ++k) store_codes(k, source.values(raw[k]), of_lane(mine, k, lane), lane.sub);
    if (has_tail) {
      reinterpret_cast<uint4*>(row + tail_offset)[lane.sub] = narrow_bf16(source.values(last));
    } else if constexpr (kFront < kLanesPerRow) {
      store_codes(kFront, source.values(last), of_lane(mine, kFront, lane), lane.sub);
    } else {
      store_block(kFront, source.values(last), lane);
    }
  }
  __device__ static Divisor of_lane(const Divisor& mine, int k, const Lane& lane) {
    return {__shfl_sync(lane.mask(), mine.scale, k, kLanesPerRow),
            __shfl_sync(lane.mask(), mine.reciprocal, k, kLanesPerRow),
            __shfl_sync(lane.mask(), mine.factor, k, kLanesPerRow)};
  }
};

}  // namespace sparse_mla::cuda::sm90::kv
