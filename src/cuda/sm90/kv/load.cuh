// The sources: raw bytes of a block of 64 values, the 8 float32 values that a lane has of it, and their largest.
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

// The largest finite magnitude.
__device__ inline float finite_amax(const Values& values) {
  float largest = 0.0f;
#pragma unroll
  for (float x : values.x) {
    const float magnitude = fabsf(x);
    largest = fmaxf(largest, magnitude <= 3.402823466e38f ? magnitude : 0.0f);
  }
  return largest;
}

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

// The largest magnitude of 8 bf16 or f16 numbers, as bits: without their signs both are ordered as integers, infinity
// and NaN on top.
__device__ inline std::uint32_t largest_magnitude(const uint4& pairs) {
  constexpr std::uint32_t kMagnitudes = 0x7FFF7FFFu;
  const std::uint32_t two = __vimax3_u16x2(pairs.x & kMagnitudes, pairs.y & kMagnitudes,
                                           __vmaxu2(pairs.z & kMagnitudes, pairs.w & kMagnitudes));
  return max(two & 0xFFFFu, two >> 16);
}

// A source gives a lane its part of a block: `load` of a block in the row's front, `load_last` of any block, and
// `values` and `amax` (the largest finite magnitude) of what they loaded.

// bf16 and fp16 rows.
struct HalfSource {
  static constexpr int kMinCtasPerSm = kCtasPerSm;
  struct Raw {
    uint4 bytes;
  };
  using Last = Raw;
  const std::byte* row;
  bool is_f16;

  __device__ HalfSource(const KvTransferProblem& p, std::int64_t slot)
      : row(p.source.data + offsets_of(p.source, slot).data), is_f16(p.source.dtype == DType::kFloat16) {}
  __device__ Raw load(int block, int sub) const {
    return {__ldg(reinterpret_cast<const uint4*>(row) + block * kLanesPerRow + sub)};
  }
  __device__ Last load_last(int block, int sub) const { return load(block, sub); }
  __device__ Values values(const Raw& raw) const {
    Values values;
    if (is_f16) {
      widen_f16(raw.bytes, values);
    } else {
      widen_bf16(raw.bytes, values);
    }
    return values;
  }
  __device__ float amax(const Raw& raw) const {
    const std::uint32_t bits = largest_magnitude(raw.bytes);
    if (bits >= (is_f16 ? 0x7C00u : 0x7F80u)) return finite_amax(values(raw));
    return is_f16 ? ptx::float2_from_f16x2(bits).x : __uint_as_float(bits << 16);
  }
};

struct Float32Source {
  static constexpr int kMinCtasPerSm = kCtasPerSmFloat32;
  struct Raw {
    float4 low, high;
  };
  using Last = Raw;
  const std::byte* row;

  __device__ Float32Source(const KvTransferProblem& p, std::int64_t slot)
      : row(p.source.data + offsets_of(p.source, slot).data) {}
  __device__ Raw load(int block, int sub) const {
    const auto* from = reinterpret_cast<const float4*>(row) + (block * kLanesPerRow + sub) * 2;
    return {__ldg(from), __ldg(from + 1)};
  }
  __device__ Last load_last(int block, int sub) const { return load(block, sub); }
  __device__ Values values(const Raw& raw) const {
    return {{raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w}};
  }
  __device__ float amax(const Raw& raw) const { return finite_amax(values(raw)); }
};

// e4m3 rows of every format: code times scale, and a last block of bf16 where the format has one.
struct Fp8Source {
  static constexpr int kMinCtasPerSm = kCtasPerSm;
  struct Raw {
    uint2 codes;
    float scale;
  };
  struct Last {
    uint4 bytes;  // of a tail; else its first half is codes
    float scale;
    bool is_tail;
  };
  const std::byte* row;
  const std::byte* scales;
  int tail_offset;
  int tail_block;   // -1: none
  int group_shift;  // blocks under a scale, as a shift
  bool scales_are_exponents;

  __device__ Fp8Source(const KvTransferProblem& p, std::int64_t slot)
      : tail_offset(p.source.tail_offset),
        tail_block(p.source.tail > 0 ? p.width / kBlockValues - 1 : -1),
        group_shift(p.source.group == 0 ? 31 : p.source.group == 128 ? 1 : 0),
        scales_are_exponents(p.source.scales_are_exponents) {
    const Offsets offsets = offsets_of(p.source, slot);
    row = p.source.data + offsets.data;
    scales = p.source.scales + offsets.scales;
  }
  __device__ float scale_of(int block) const {
    const int k = block >> group_shift;
    if (!scales_are_exponents) return __ldg(reinterpret_cast<const float*>(scales) + k);
    const unsigned exponent = __ldg(reinterpret_cast<const unsigned char*>(scales) + k);
    if (exponent == 0) return 0x1p-127f;
    return exponent == 255 ? __uint_as_float(0x7FC00000u) : __uint_as_float(exponent << 23);
  }
  __device__ Raw load(int block, int sub) const {
    return {__ldg(reinterpret_cast<const uint2*>(row) + block * kLanesPerRow + sub), scale_of(block)};
  }
  __device__ Last load_last(int block, int sub) const {
    if (block == tail_block) return {__ldg(reinterpret_cast<const uint4*>(row + tail_offset) + sub), 1.0f, true};
    const Raw raw = load(block, sub);
    return {{raw.codes.x, raw.codes.y, 0, 0}, raw.scale, false};
  }
  __device__ Values values(const Raw& raw) const {
    Values values;
    const std::uint32_t quads[2] = {raw.codes.x, raw.codes.y};
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
  __device__ Values values(const Last& last) const {
    if (!last.is_tail) return values(Raw{{last.bytes.x, last.bytes.y}, last.scale});
    Values values;
    widen_bf16(last.bytes, values);
    return values;
  }
  // The largest of all products is the product of the largest code.
  __device__ float amax(const Raw& raw) const {
    const uint4 halves{ptx::cvt_f16x2_e4m3x2_low(raw.codes.x), ptx::cvt_f16x2_e4m3x2_high(raw.codes.x),
                       ptx::cvt_f16x2_e4m3x2_low(raw.codes.y), ptx::cvt_f16x2_e4m3x2_high(raw.codes.y)};
    const std::uint32_t bits = largest_magnitude(halves);
    const float largest = __fmul_rn(ptx::float2_from_f16x2(bits).x, fabsf(raw.scale));
    if (bits >= 0x7C00u || !(largest <= 3.402823466e38f)) return finite_amax(values(raw));
    return largest;
  }
  __device__ float amax(const Last& last) const { return finite_amax(values(last)); }
};

}  // namespace sparse_mla::cuda::sm90::kv
