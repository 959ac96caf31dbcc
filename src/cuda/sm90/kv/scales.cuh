// base/kv_scales.h on the device: the same numbers, bit for bit.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "cuda/sm90/kv/load.cuh"
#include "cuda/sm90/kv/policy.h"
#include "cuda/sm90/kv/rows.cuh"
#include "sparse_mla/kv_formats.h"

namespace sparse_mla::cuda::sm90::kv {

// Of the 8 lanes of a row.
__device__ inline float row_max(float value, unsigned mask) {
#pragma unroll
  for (int step = 1; step < kLanesPerRow; step *= 2) value = fmaxf(value, __shfl_xor_sync(mask, value, step));
  return value;
}

// From 8 numbers in each of the 8 lanes of a row to the maximum of number `sub` in lane `sub`: 7 exchanges, each lane
// giving away the half that is not its own.
__device__ inline float scattered_max(float (&numbers)[kLanesPerRow], const Lane& lane) {
#pragma unroll
  for (int half = kLanesPerRow / 2; half > 0; half /= 2) {
    const bool upper = (lane.sub & half) != 0;
#pragma unroll
    for (int k = 0; k < half; ++k) {
      const float kept = upper ? numbers[k + half] : numbers[k];
      const float given = upper ? numbers[k] : numbers[k + half];
      numbers[k] = fmaxf(kept, __shfl_xor_sync(lane.mask(), given, half));
    }
  }
  return numbers[0];
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

// Division of `factor` x by `scale`; the factor is a power of two that is in the scale already, mostly 1.
struct Divisor {
  float scale;
  float reciprocal;
  float factor;

  __device__ bool has_exact_reciprocal() const { return (__float_as_uint(scale) & 0x7FFFFFu) == 0; }
};
// Moving scale and values by 2^80 or 2^-80 changes no code: what overflows is past 448 scales anyway, what underflows is
// below 2^-11 of one.
__device__ inline Divisor divisor_of(float scale) {
  const float factor = scale < kLeastFastScale ? kScaleShift : scale > kLargestFastScale ? 1.0f / kScaleShift : 1.0f;
  const float moved = __fmul_rn(scale, factor);
  return {moved, __frcp_rn(moved), factor};
}

// From q = x times the reciprocal, the quotient x / scale, correctly rounded. Two corrections by the remainder: the first
// makes the quotient faithful, the second, from there with a correctly rounded reciprocal, correctly rounded
// (Markstein). With scales of 2^-80 to 2^80 no remainder that matters leaves float32's range: below 2^-11 the code is 0,
// whatever the last bits. Remainders are taken with the sign that keeps -0 as it is.
__device__ inline float corrected(float q, float x, const Divisor& d) {
  const float once = __fmaf_rn(-__fmaf_rn(q, d.scale, -x), d.reciprocal, q);
  return __fmaf_rn(-__fmaf_rn(once, d.scale, -x), d.reciprocal, once);
}

// Values divided by the scale, so that their e4m3 codes are those of x / scale rounded to float32. Values are held at 512
// scales, where the code is 448 like that of all beyond, so that an infinity has a remainder.
__device__ inline Values divided(Values values, const Divisor& d) {
  if (d.factor != 1.0f) {
#pragma unroll
    for (float& x : values.x) x = __fmul_rn(x, d.factor);
  }
  const float limit = __fmul_rn(512.0f, d.scale);
  Values q;
#pragma unroll
  for (int k = 0; k < kValuesPerLane; ++k) {
    values.x[k] = ptx::min_nan_xorsign_abs(values.x[k], limit);
    q.x[k] = __fmul_rn(values.x[k], d.reciprocal);
  }
  if (d.has_exact_reciprocal()) return q;
#pragma unroll
  for (int k = 0; k < kValuesPerLane; ++k) q.x[k] = corrected(q.x[k], values.x[k], d);
  return q;
}

}  // namespace sparse_mla::cuda::sm90::kv
