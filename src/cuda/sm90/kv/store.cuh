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

// `store` writes kCount blocks of a row, the first of which is `block`; kCount is 2 or 1.
struct HalfTarget {
  std::byte* row;
  bool is_f16;

  __device__ HalfTarget(const KvTransferProblem& p, std::int64_t, std::int64_t slot)
      : row(p.target.data + offsets_of(p.target, slot).data), is_f16(p.target.dtype == DType::kFloat16) {}
  template <int kCount>
  __device__ void store(int block, const Values (&values)[kCount], const Lane& lane) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const uint4 bytes = is_f16 ? narrow_f16(values[k]) : narrow_bf16(values[k]);
      reinterpret_cast<uint4*>(row)[(block + k) * kLanesPerRow + lane.sub] = bytes;
    }
  }
};

struct Float32Target {
  std::byte* row;

  __device__ Float32Target(const KvTransferProblem& p, std::int64_t, std::int64_t slot)
      : row(p.target.data + offsets_of(p.target, slot).data) {}
  template <int kCount>
  __device__ void store(int block, const Values (&values)[kCount], const Lane& lane) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float* x = values[k].x;
      float4* to = reinterpret_cast<float4*>(row) + ((block + k) * kLanesPerRow + lane.sub) * 2;
      to[0] = {x[0], x[1], x[2], x[3]};
      to[1] = {x[4], x[5], x[6], x[7]};
    }
  }
};

// e4m3 rows of every format.
struct Fp8Target {
  std::byte* row;
  std::byte* scales;
  const float* given;  // the row's, with kGiven
  int group;
  int tail_offset;
  int tail_block;  // -1: none
  int pad_scale;   // the index of the pad byte behind the scales; -1: none
  KvScaling scaling;
  bool scales_are_exponents;

  __device__ Fp8Target(const KvTransferProblem& p, std::int64_t i, std::int64_t slot)
      : given(p.given_scales + i * p.given_row_stride),
        group(p.target.group),
        tail_offset(p.target.tail_offset),
        tail_block(p.target.tail > 0 ? p.width / kBlockValues - 1 : -1),
        pad_scale(p.target.scales_have_pad ? (p.width - p.target.tail) / p.target.group : -1),
        scaling(p.scaling),
        scales_are_exponents(p.target.scales_are_exponents) {
    const Offsets offsets = offsets_of(p.target, slot);
    row = p.target.data + offsets.data;
    scales = p.target.scales + offsets.scales;
  }

  __device__ void store_codes(int block, const Values& values, const Divisor& divisor, int sub) const {
    const Values q = divided(values, divisor);
    std::uint32_t pairs[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) pairs[k] = ptx::cvt_e4m3x2_f32(q.x[2 * k], q.x[2 * k + 1]);
    reinterpret_cast<uint2*>(row)[block * kLanesPerRow + sub] = {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
  }
  __device__ void store_scale(int k, float scale) const {
    if (scales_are_exponents) {
      scales[k] = static_cast<std::byte>(__float_as_uint(scale) >> 23);
    } else {
      reinterpret_cast<float*>(scales)[k] = scale;
    }
  }
  __device__ bool makes_powers_of_two() const {
    return scales_are_exponents || scaling == KvScaling::kAmaxPowerOfTwo;
  }
  // Blocks under one scale of their own.
  template <int kCount>
  __device__ void store_group(int block, const Values* values, const Lane& lane) const {
    float a = 0.0f;
    if (scaling != KvScaling::kGiven) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) a = fmaxf(a, finite_amax(values[k]));
      a = row_max(a, lane.mask());
    }
    const int which = block * kBlockValues / group;
    const float scale = make_scale(scaling, a, given + which, scales_are_exponents);
    const Divisor divisor = divisor_of(scale, makes_powers_of_two());
#pragma unroll
    for (int k = 0; k < kCount; ++k) store_codes(block + k, values[k], divisor, lane.sub);
    if (lane.sub == 0) store_scale(which, scale);
  }
  __device__ void store_block(int block, const Values& values, const Lane& lane) const {
    if (block == tail_block) {
      reinterpret_cast<uint4*>(row + tail_offset)[lane.sub] = narrow_bf16(values);
      if (pad_scale >= 0 && lane.sub == 0) scales[pad_scale] = std::byte{0};
    } else if (group == 0) {
      store_codes(block, values, divisor_of(*reinterpret_cast<const float*>(scales), false), lane.sub);
    } else {
      store_group<1>(block, &values, lane);
    }
  }
  template <int kCount>
  __device__ void store(int block, const Values (&values)[kCount], const Lane& lane) const {
    if (kCount == 2 && group == 2 * kBlockValues) {
      store_group<2>(block, values, lane);
      return;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) store_block(block + k, values[k], lane);
  }
};

}  // namespace sparse_mla::cuda::sm90::kv
