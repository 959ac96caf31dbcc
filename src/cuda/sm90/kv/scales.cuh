// base/kv_scales.h on the device: the same numbers, bit for bit.
#pragma once

#include <cstdint>

#include "cuda/sm90/kv/load.cuh"
#include "cuda/sm90/kv/policy.h"
#include "sparse_mla/kv_formats.h"

namespace sparse_mla::cuda::sm90::kv {

// The largest finite magnitude of a lane's values.
__device__ inline float finite_amax(const Values& values) {
  float largest = 0.0f;
#pragma unroll
  for (float x : values.x) {
    const float magnitude = fabsf(x);
    largest = fmaxf(largest, magnitude <= 3.402823466e38f ? magnitude : 0.0f);
  }
  return largest;
}

// Of the 8 lanes of a row.
__device__ inline float row_max(float value, unsigned mask) {
#pragma unroll
  for (int step = 1; step < kLanesPerRow; step *= 2) value = fmaxf(value, __shfl_xor_sync(mask, value, step));
  return value;
}

__device__ inline float amax_scale(float a) { return a == 0.0f ? 1.0f : fmaxf(__fdiv_rn(a, 448.0f), 0x1p-126f); }

__device__ inline float power_of_two_scale(float a) {
  if (a == 0.0f) return 1.0f;
  const std::uint32_t bits = __float_as_uint(a);
  const int exponent = static_cast<int>(bits >> 23) - 8 + ((bits & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  return __uint_as_float(static_cast<std::uint32_t>(max(exponent, 1)) << 23);
}

__device__ inline float rounded_up_to_power_of_two(float scale) {
  const std::uint32_t bits = __float_as_uint(scale);
  const std::uint32_t exponent = ((bits >> 23) & 0xFFu) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  return __uint_as_float(min(max(exponent, 1u), 254u) << 23);
}

__device__ inline float make_scale(KvScaling scaling, float a, const float* given, bool power_of_two) {
  if (scaling == KvScaling::kGiven) return power_of_two ? rounded_up_to_power_of_two(*given) : *given;
  return scaling == KvScaling::kAmax && !power_of_two ? amax_scale(a) : power_of_two_scale(a);
}

// Division by one scale.
struct Divisor {
  float scale;
  float reciprocal;
  bool is_exact;  // the reciprocal is: the scale is a power of two
  bool is_fast;
};
__device__ inline Divisor divisor_of(float scale, bool power_of_two) {
  return {scale, __frcp_rn(scale), power_of_two, scale >= kLeastFastScale && scale <= kLargestFastScale};
}

// x / scale, correctly rounded wherever the e4m3 code depends on it. Two corrections by the remainder: the first makes
// the quotient faithful, the second, from there with a correctly rounded reciprocal, correctly rounded (Markstein).
// Below 2^-11 the code is 0 and from 512 up it is 448, whatever the last bits; in between, with scales of 2^-80 to 2^80,
// no remainder leaves float32's range.
__device__ inline float corrected_quotient(float x, const Divisor& d) {
  const float q = __fmul_rn(x, d.reciprocal);
  const float once = __fmaf_rn(__fmaf_rn(-q, d.scale, x), d.reciprocal, q);
  const float twice = __fmaf_rn(__fmaf_rn(-once, d.scale, x), d.reciprocal, once);
  return fabsf(q) < 512.0f ? twice : q;
}

// Values divided by the scale, so that their e4m3 codes are those of x / scale rounded to float32.
__device__ inline Values divided(const Values& values, const Divisor& d) {
  Values quotients;
  if (d.is_exact) {
#pragma unroll
    for (int k = 0; k < kValuesPerLane; ++k) quotients.x[k] = __fmul_rn(values.x[k], d.reciprocal);
  } else if (d.is_fast) {
#pragma unroll
    for (int k = 0; k < kValuesPerLane; ++k) quotients.x[k] = corrected_quotient(values.x[k], d);
  } else {
#pragma unroll
    for (int k = 0; k < kValuesPerLane; ++k) quotients.x[k] = __fdiv_rn(values.x[k], d.scale);
  }
  return quotients;
}

}  // namespace sparse_mla::cuda::sm90::kv
