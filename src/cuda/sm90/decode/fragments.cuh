// From KV rows in shared memory, as they lie in the pool, to A fragments of wgmma in registers. A unit is 8 registers:
// two k16 steps.
//
// Keys, S^T = K Q^T: M is the token, k the value. Values, O^T = V^T P^T: M is the value dim, k the token.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_16bit.cuh"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"

namespace sparse_mla::cuda::sm90::decode {

// d += A B with A in registers, in the format of the products.
template <Policy P, int kCount>
__device__ __forceinline__ void multiply(float (&d)[kCount], const std::uint32_t (&a)[4], std::uint64_t b,
                                         bool accumulate) {
  if constexpr (P.format == KvFormat::kBF16) {
    ptx::wgmma_bf16_rs(d, a, b, accumulate);
  } else {
    ptx::wgmma_f16_rs(d, a, b, accumulate);
  }
}

struct Unit {
  std::uint32_t step[2][4];  // two k16 steps
};

// Four e4m3 bytes of each of two rows (M and M + 8) to one k16 step of a key fragment.
__device__ __forceinline__ void scaled_pair(std::uint32_t four, std::uint32_t factor, std::uint32_t& low,
                                            std::uint32_t& high) {
  low = ptx::mul_f16x2(ptx::cvt_f16x2_e4m3x2_low(four), factor);
  high = ptx::mul_f16x2(ptx::cvt_f16x2_e4m3x2_high(four), factor);
}

// The key rows of one warp: tokens 16 w .. 16 w + 15 of a block.
template <Policy P>
struct Keys {
  using S = Shared<P>;
  static constexpr int kUnits = 2 * P.key_groups;
  static constexpr int kRaw = P.has_scales() ? 4 : 8;
  static constexpr int kFactorWords = P.has_scales() ? (P.key_groups + 1) / 2 : 1;

  std::uint32_t row;                       // this lane's address for ldmatrix
  std::uint32_t factors[2][kFactorWords];  // f16 pairs: groups 2 i, 2 i + 1 of rows lane / 4 and lane / 4 + 8

  // Lanes 0-15 address rows 0-15 of one 16-byte chunk, lanes 16-31 those of the next.
  __device__ void open(std::uint32_t base, int slot, int warp, int lane) {
    row = base + S::kv + slot * S::kSlot + (16 * warp + (lane & 15)) * P.row_bytes() + (lane >> 4) * 16;
    if constexpr (P.has_scales()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t from =
            base + S::key_scale + slot * S::kKeyScaleSlot + (16 * warp + 8 * half + (lane >> 2)) * S::kKeyScaleRow;
        const uint4 eight = ptx::ld_shared_v4(from);
        factors[half][0] = eight.x;
        factors[half][1] = eight.y;
        factors[half][2] = eight.z;
        factors[half][3] = eight.w;
        if constexpr (P.key_groups > 8) factors[half][4] = ptx::ld_shared_b32(from + 16);
      }
    }
  }
  __device__ void load(int unit, std::uint32_t (&raw)[kRaw]) const {
    if constexpr (P.has_scales()) {
      ptx::ldmatrix_x4(raw, row + 32 * unit);
    } else {
      ptx::ldmatrix_x4(reinterpret_cast<std::uint32_t(&)[4]>(raw[0]), row + 64 * unit);
      ptx::ldmatrix_x4(reinterpret_cast<std::uint32_t(&)[4]>(raw[4]), row + 64 * unit + 32);
    }
  }
  __device__ void convert(int unit, const std::uint32_t (&raw)[kRaw], Unit& to) const {
    if constexpr (P.has_scales()) {
      const int group = unit / 2;
      const std::uint32_t pick = (group & 1) != 0 ? 0x3232 : 0x1010;
      const std::uint32_t upper = ptx::prmt(factors[0][group / 2], 0, pick);
      const std::uint32_t lower = ptx::prmt(factors[1][group / 2], 0, pick);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        scaled_pair(raw[2 * step], upper, to.step[step][0], to.step[step][2]);
        scaled_pair(raw[2 * step + 1], lower, to.step[step][1], to.step[step][3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) to.step[i / 4][i % 4] = raw[i];
    }
  }
};

// The value rows of one weighing warp: dims 64 group + 16 w .. + 15 of all 64 tokens. Unit (group, half) holds tokens
// 32 half .. 32 half + 31.
//
// e4m3: row g of M is dim 2 g, row g + 8 is dim 2 g + 1, tokens in order. 16 bit: row m is dim m.
template <Policy P>
struct Values {
  using S = Shared<P>;
  static constexpr int kRaw = P.has_scales() ? 4 : 8;

  std::uint32_t row;      // this lane's address for ldmatrix.trans
  std::uint32_t factors;  // of this lane's tokens, group 0

  __device__ void open(std::uint32_t base, int slot, int warp, int lane) {
    const std::uint32_t rows = base + S::kv + slot * S::kSlot;
    if constexpr (P.has_scales()) {
      row = rows + lane * P.row_bytes() + 16 * warp;
      factors = base + S::value_scale + slot * S::kValueScaleSlot + (lane & 3) * 16;
    } else {
      row = rows + ((lane & 7) + ((lane >> 4) << 3)) * P.row_bytes() + 32 * warp + ((lane >> 3) & 1) * 16;
      factors = 0;
    }
  }
  __device__ void load(int group, int half, std::uint32_t (&raw)[kRaw]) const {
    const std::uint32_t at = row + half * 32 * P.row_bytes() + group * 64 * P.element_bytes();
    if constexpr (P.has_scales()) {
      ptx::ldmatrix_x4_trans(raw, at);
    } else {
      ptx::ldmatrix_x4_trans(reinterpret_cast<std::uint32_t(&)[4]>(raw[0]), at);
      ptx::ldmatrix_x4_trans(reinterpret_cast<std::uint32_t(&)[4]>(raw[4]), at + 16 * P.row_bytes());
    }
  }
  __device__ uint4 load_factors(int group, int half) const {
    if constexpr (P.has_scales()) return ptx::ld_shared_v4(factors + group * kBlock * 2 + half * 64);
    return {};
  }
  __device__ static void convert(const std::uint32_t (&raw)[kRaw], const uint4& factors_of_unit, Unit& to) {
    if constexpr (P.has_scales()) {
      const std::uint32_t factor[4] = {factors_of_unit.x, factors_of_unit.y, factors_of_unit.z, factors_of_unit.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Bytes: dims 2g, 2g + 1 of one token, then of the next. Dims to the outside, tokens inside.
        const std::uint32_t four = ptx::prmt(raw[i], 0, 0x3120);
        scaled_pair(four, factor[i], to.step[i / 2][2 * (i % 2)], to.step[i / 2][2 * (i % 2) + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) to.step[i / 4][i % 4] = raw[i];
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
