// The sources: raw bytes of a block of 64 values, and the 8 float32 values that a lane has of it.
#pragma once

#include <cstdint>

#include "base/kv_transfer.h"
#include "cuda/ptx/convert.cuh"
#include "cuda/sm90/kv/policy.h"
#include "cuda/sm90/kv/rows.cuh"

namespace sparse_mla::cuda::sm90::kv {

struct Values {
  float x[kValuesPerLane];
};

__device__ inline void widen_bf16(const uint4& raw, Values& values) {
  const std::uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    values.x[2 * k] = __uint_as_float(pairs[k] << 16);
    values.x[2 * k + 1] = __uint_as_float(pairs[k] & 0xFFFF0000u);
  }
}

__device__ inline void widen_f16(const uint4& raw, Values& values) {
  const std::uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 two = ptx::float2_from_f16x2(pairs[k]);
    values.x[2 * k] = two.x;
    values.x[2 * k + 1] = two.y;
  }
}

// bf16 and fp16 rows.
struct HalfSource {
  struct Raw {
    uint4 bytes;
  };
  const std::byte* row;
  bool is_f16;

  __device__ HalfSource(const KvPlaces& places, std::int64_t slot)
      : row(places.data + offsets_of(places, slot).data), is_f16(places.dtype == DType::kFloat16) {}
  __device__ Raw load(int block, int sub) const {
    return {__ldg(reinterpret_cast<const uint4*>(row) + block * kLanesPerRow + sub)};
  }
  __device__ Values values(const Raw& raw) const {
    Values values;
    if (is_f16) {
      widen_f16(raw.bytes, values);
    } else {
      widen_bf16(raw.bytes, values);
    }
    return values;
  }
};

struct Float32Source {
  struct Raw {
    float4 low, high;
  };
  const std::byte* row;

  __device__ Float32Source(const KvPlaces& places, std::int64_t slot)
      : row(places.data + offsets_of(places, slot).data) {}
  __device__ Raw load(int block, int sub) const {
    const auto* from = reinterpret_cast<const float4*>(row) + (block * kLanesPerRow + sub) * 2;
    return {__ldg(from), __ldg(from + 1)};
  }
  __device__ Values values(const Raw& raw) const {
    return {{raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w}};
  }
};

// e4m3 rows of every format: code times scale, and a last block of bf16 where the format has one.
struct Fp8Source {
  struct Raw {
    uint4 bytes;  // 8 codes, or 16 bytes of the tail
    float scale;
    bool is_tail;
  };
  const std::byte* row;
  const std::byte* scales;
  int tail_offset;
  int tail_block;   // -1: none
  int group_shift;  // blocks under a scale, as a shift
  bool scales_are_exponents;

  __device__ Fp8Source(const KvPlaces& places, std::int64_t slot, int width)
      : tail_offset(places.tail_offset),
        tail_block(places.tail > 0 ? width / kBlockValues - 1 : -1),
        group_shift(places.group == 0 ? 31 : places.group == 128 ? 1 : 0),
        scales_are_exponents(places.scales_are_exponents) {
    const Offsets offsets = offsets_of(places, slot);
    row = places.data + offsets.data;
    scales = places.scales + offsets.scales;
  }
  __device__ float scale_of(int block) const {
    const int k = block >> group_shift;
    if (!scales_are_exponents) return __ldg(reinterpret_cast<const float*>(scales) + k);
    const unsigned exponent = __ldg(reinterpret_cast<const unsigned char*>(scales) + k);
    if (exponent == 0) return 0x1p-127f;
    return exponent == 255 ? __uint_as_float(0x7FC00000u) : __uint_as_float(exponent << 23);
  }
  __device__ Raw load(int block, int sub) const {
    if (block == tail_block) {
      return {__ldg(reinterpret_cast<const uint4*>(row + tail_offset) + sub), 1.0f, true};
    }
    const uint2 codes = __ldg(reinterpret_cast<const uint2*>(row) + block * kLanesPerRow + sub);
    return {{codes.x, codes.y, 0, 0}, scale_of(block), false};
  }
  __device__ Values values(const Raw& raw) const {
    Values values;
    if (raw.is_tail) {
      widen_bf16(raw.bytes, values);
      return values;
    }
    const std::uint32_t quads[2] = {raw.bytes.x, raw.bytes.y};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float2 low = ptx::float2_from_f16x2(ptx::cvt_f16x2_e4m3x2_low(quads[k]));
      const float2 high = ptx::float2_from_f16x2(ptx::cvt_f16x2_e4m3x2_high(quads[k]));
      values.x[4 * k] = __fmul_rn(low.x, raw.scale);
      values.x[4 * k + 1] = __fmul_rn(low.y, raw.scale);
      values.x[4 * k + 2] = __fmul_rn(high.x, raw.scale);
      values.x[4 * k + 3] = __fmul_rn(high.y, raw.scale);
    }
    return values;
  }
};

// One signature for the three, so that kernels make any of them.
template <class Source>
__device__ Source make_source(const KvTransferProblem& p, std::int64_t slot) {
  if constexpr (requires { Source(p.source, slot, p.width); }) {
    return Source(p.source, slot, p.width);
  } else {
    return Source(p.source, slot);
  }
}

}  // namespace sparse_mla::cuda::sm90::kv
