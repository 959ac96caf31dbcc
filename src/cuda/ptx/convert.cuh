// Conversions and the exponential.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::ptx {

// ex2.approx.ftz.f32: 2^x, 2 ulp; -inf gives +0.
__device__ inline float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// lg2.approx.ftz.f32: log2(x).
__device__ inline float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// min.NaN.xorsign.abs.f32, PTX ISA 7.2: the smaller magnitude, under the product of the signs; NaN where either is.
__device__ inline float min_nan_xorsign_abs(float a, float b) {
  float c;
  asm("min.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// prmt.b32: four bytes of {b, a} picked by the nibbles of the selector.
__device__ inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}

// cvt.rn.satfinite.e4m3x2.f32, PTX ISA 8.1: `low` goes to the low byte.
__device__ inline std::uint16_t cvt_e4m3x2_f32(float low, float high) {
  std::uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
// cvt.rn.satfinite.e4m3x2.f16x2, PTX ISA 8.1.
__device__ inline std::uint16_t cvt_e4m3x2_f16x2(std::uint32_t pair) {
  std::uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(packed) : "r"(pair));
  return packed;
}
// Two of the above into one register: bytes 0-1 from `low`, 2-3 from `high`.
__device__ inline std::uint32_t cvt_e4m3x4_f16x2(std::uint32_t low, std::uint32_t high) {
  std::uint32_t packed;
  asm("{\n"
      ".reg .b16 l, h;\n"
      "cvt.rn.satfinite.e4m3x2.f16x2 l, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f16x2 h, %2;\n"
      "mov.b32 %0, {l, h};\n"
      "}\n"
      : "=r"(packed)
      : "r"(low), "r"(high));
  return packed;
}
// cvt.rn.f16x2.e4m3x2, PTX ISA 8.1: exact. `half` picks the low (0) or high (1) two bytes of a register.
__device__ inline std::uint32_t cvt_f16x2_e4m3x2_low(std::uint32_t four) {
  std::uint32_t pair;
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "}\n"
      : "=r"(pair)
      : "r"(four));
  return pair;
}
__device__ inline std::uint32_t cvt_f16x2_e4m3x2_high(std::uint32_t four) {
  std::uint32_t pair;
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, h;\n"
      "}\n"
      : "=r"(pair)
      : "r"(four));
  return pair;
}

// cvt.rn.f16x2.f32: `low` goes to the low half.
__device__ inline std::uint32_t cvt_f16x2_f32(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// cvt.rn.bf16x2.f32, PTX ISA 7.0.
__device__ inline std::uint32_t cvt_bf16x2_f32(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Packed f16 arithmetic: add, multiply, maximum.
__device__ inline std::uint32_t add_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("add.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ inline std::uint32_t mul_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ inline std::uint32_t max_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ inline std::uint32_t mul_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
// The two halves of an f16x2 in float32.
__device__ inline float2 float2_from_f16x2(std::uint32_t pair) {
  float2 f;
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.f32.f16 %0, l;\n"
      "cvt.f32.f16 %1, h;\n"
      "}\n"
      : "=f"(f.x), "=f"(f.y)
      : "r"(pair));
  return f;
}

}  // namespace sparse_mla::cuda::ptx
