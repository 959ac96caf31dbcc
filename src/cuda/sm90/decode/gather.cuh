// The gather warps: slot lists to KV rows in shared memory, scales to f16 factors and exponents.
//
// Warp w owns rows 16 w .. 16 w + 15 of every block. A slot that names no token is replaced by a valid one of the same
// sixteen and masked (its exponent is -inf), so nothing that no index names is ever read; sixteen such slots are
// zero-filled.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/decode/args.h"
#include "cuda/sm90/decode/handshakes.h"
#include "cuda/sm90/decode/plan.cuh"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
struct Gather {
  using S = Shared<P>;
  static constexpr int kRows = kBlock / 4;                         // of one warp
  static constexpr std::uint32_t kNoToken = 0xFFFFFFFFu;           // never a row: pools hold less than 2^31 - 1 rows
  static constexpr int kLaneGroups = (P.key_groups + 1) / 2;       // scale groups of one lane: two lanes per row

  const Args& args;
  std::uint32_t base;  // shared address of the CTA's buffers
  int warp;            // 0..3
  int lane;

  PartRecord part{};
  Segment segments[2]{};
  int slot = 0;
  std::uint32_t phase = 1;  // a fresh barrier lets the first wait pass

  struct Scales {
    float value[kLaneGroups];
  };

  // Row `code` names: bit 31 is the pool, the rest the row. Slot `position` counts through the first pool's segment and
  // then the second's.
  __device__ std::uint32_t load_code(std::int64_t position) const {
    const bool second = position >= segments[0].length;
    const std::int64_t in_segment = second ? position - segments[0].length : position;
    if (in_segment >= (second ? segments[1].length : segments[0].length)) return kNoToken;
    const std::int32_t* indices =
        second ? args.pool[1].indices + segments[1].begin : args.pool[0].indices + segments[0].begin;
    const std::int32_t index = __ldg(indices + in_segment);
    if (index < 0 || index >= (second ? args.pool[1].total_pages : args.pool[0].total_pages)) return kNoToken;
    return static_cast<std::uint32_t>(index) | (second ? 0x80000000u : 0u);
  }
  // Slots of two blocks at once: lanes 0-15 of `block`, lanes 16-31 of the next one.
  __device__ std::uint32_t load_two_blocks(int block) const {
    const std::int64_t in_token = static_cast<std::int64_t>(part.first_block + block + (lane >> 4)) * kBlock;
    return block + (lane >> 4) < part.blocks ? load_code(in_token + kRows * warp + (lane & 15)) : kNoToken;
  }

  __device__ std::uint64_t row_of(std::uint32_t code) const {
    const bool second = (code >> 31) != 0;
    return reinterpret_cast<std::uint64_t>(second ? args.pool[1].kv : args.pool[0].kv) +
           static_cast<std::uint64_t>(code & 0x7FFFFFFFu) * (second ? args.pool[1].row_bytes : args.pool[0].row_bytes);
  }

  __device__ void copy_rows(std::uint32_t codes, std::uint32_t slot_address, std::uint32_t barrier) const {
    const std::uint32_t bytes = ptx::opaque(static_cast<std::uint32_t>(args.d) * P.element_bytes());
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(barrier, kRows * bytes);
    __syncwarp();
    const std::uint64_t own = row_of(codes);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(__shfl_sync(0xFFFFFFFFu, own, row));
      const std::uint32_t to = slot_address + (kRows * warp + row) * P.row_bytes();
      if (ptx::elect_sync()) ptx::cp_async_bulk_to_shared(to, from, bytes, barrier);
    }
  }
  __device__ void zero_rows(std::uint32_t slot_address, std::uint32_t barrier) const {
    const std::uint32_t first = slot_address + kRows * warp * P.row_bytes();
    for (int at = lane * 16; at < kRows * P.row_bytes(); at += 32 * 16) ptx::st_shared_v4(first + at, {0, 0, 0, 0});
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }

  // Lane 2 r + s loads scales of row r: groups kLaneGroups s and following.
  __device__ Scales load_scales(std::uint32_t codes) const {
    Scales scales;
    const std::uint32_t code = __shfl_sync(0xFFFFFFFFu, codes, lane >> 1);
    const bool second = (code >> 31) != 0;
    const float* table = second ? args.pool[1].scales : args.pool[0].scales;
    const std::int64_t stride = second ? args.pool[1].scales_stride : args.pool[0].scales_stride;
    const int first = kLaneGroups * (lane & 1);
    const int groups = args.d / kGroup;
    if (table == nullptr || code == kNoToken) {
#pragma unroll
      for (float& value : scales.value) value = 1.0f;
      return scales;
    }
    const float* from = table + static_cast<std::int64_t>(code & 0x7FFFFFFFu) * stride + first;
    if (kLaneGroups == 4 && args.scales_are_aligned != 0) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from));
      scales.value[0] = four.x;
      scales.value[1] = four.y;
      scales.value[2] = four.z;
      scales.value[3] = four.w;
      return scales;
    }
#pragma unroll
    for (int i = 0; i < kLaneGroups; ++i) scales.value[i] = first + i < groups ? __ldg(from + i) : 0.0f;
    return scales;
  }

  // Stores the factors of one row half and the row's exponent. The row is normalised by a power of two: with
  // 2^e > max |scale|, the factors scale * 2^(6 - e) are f16 numbers below 64, so a dequantised value stays below
  // 448 * 64 = 28672; e goes into the softmax argument and into the weight of the row's P in the sum.
  __device__ void store_scales(const Scales& scales, bool valid, int slot) const {
    float largest = 0.0f;
#pragma unroll
    for (float value : scales.value) largest = fmaxf(largest, fabsf(value));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    // The exponent field; the clamp keeps 2^-e and its sums finite.
    const int e = max(-100, min(100, static_cast<int>((__float_as_uint(largest) >> 23) & 0xFF) - 126));
    const float normalise = __uint_as_float(static_cast<std::uint32_t>(6 - e + 127) << 23);
    const int row = kRows * warp + (lane >> 1);
    const int first = kLaneGroups * (lane & 1);

    const std::uint32_t keys = base + S::key_scale + slot * S::kKeyScaleSlot + row * S::kKeyScaleRow + first * 2;
    const std::uint32_t values = base + S::value_scale + slot * S::kValueScaleSlot + value_scale_offset(row);
#pragma unroll
    for (int i = 0; i < kLaneGroups; ++i) {
      const std::uint32_t factor = ptx::cvt_f16x2_f32(scales.value[i] * normalise, 0.0f);
      if (first + i < P.key_groups) ptx::st_shared_b16(keys + 2 * i, static_cast<std::uint16_t>(factor));
      if (first + i < P.value_groups) {
        ptx::st_shared_b16(values + (first + i) * kBlock * 2, static_cast<std::uint16_t>(factor));
      }
    }
    if ((lane & 1) == 0) store_exponent(slot, row, valid, static_cast<float>(e));
  }
  __device__ void store_exponent(int slot, int row, bool valid, float e) const {
    const uint2 pair = valid ? uint2{__float_as_uint(e), __float_as_uint(ptx::ex2(-e))}
                             : uint2{__float_as_uint(-INFINITY), 0u};
    ptx::st_shared_v2(base + S::exponent + slot * S::kExponentSlot + row * 8, pair);
  }
  // Where the f16 factor of a token lies inside its group's 128 bytes, in the order of the A fragments of O^T = V^T P^T:
  // [half of the block][lane % 4][k16 step, k8 half] pairs of neighbouring tokens.
  __device__ static std::uint32_t value_scale_offset(int token) {
    const int step = token >> 4;
    const int in_step = token & 15;
    return (step >> 1) * 64 + ((in_step & 7) >> 1) * 16 + ((step & 1) * 2 + (in_step >> 3)) * 4 + (in_step & 1) * 2;
  }

  __device__ void publish(const Scales& scales, std::uint32_t valid_rows, int slot) const {
    if constexpr (P.has_scales()) {
      store_scales(scales, (valid_rows >> (lane >> 1)) & 1, slot);
    } else if (lane < kRows) {
      store_exponent(slot, kRows * warp + lane, (valid_rows >> lane) & 1, 0.0f);
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(base + S::kv_full + 8 * slot);
  }

  // Parts of this CTA's window, one after the other; the MMA warps follow a part behind at most.
  __device__ void run(Walk walk) {
    for (int count = 0;; ++count) {
      part = walk.next();
      if (count == 0) STAMP(2);
      announce(count);
      if (count == 0) STAMP(3);
      if (part.token < 0) return;
      if (part.blocks == 0) continue;
      segments[0] = segment_of(args.pool[0], part.token);
      segments[1] = segment_of(args.pool[1], part.token);
      gather_part();
    }
  }

 private:
  __device__ void announce(int count) const {
    if (warp != 0) return;
    const int place = count & 1;
    ptx::mbarrier_wait(base + S::part_free + 8 * place, ((count >> 1) & 1) ^ 1);
    if (lane == 0) {
      store_record(base + S::part + 32 * place, part);
      ptx::mbarrier_arrive(base + S::part_full + 8 * place);
    }
  }

  __device__ void gather_part() {
    std::uint32_t next = load_two_blocks(0);
    std::uint32_t two_blocks = 0;
    for (int block = 0; block < part.blocks; ++block) {
      if ((block & 1) == 0) {
        two_blocks = next;
        next = load_two_blocks(block + 2);
      }
      std::uint32_t codes = __shfl_sync(0xFFFFFFFFu, two_blocks, (lane & 15) + ((block & 1) << 4));
      const std::uint32_t valid = __ballot_sync(0xFFFFFFFFu, codes != kNoToken) & 0xFFFFu;
      const std::uint32_t substitute = __shfl_sync(0xFFFFFFFFu, codes, valid != 0 ? __ffs(valid) - 1 : 0);
      if (codes == kNoToken) codes = substitute;
      // The loads travel while the slot is waited for and the copies are issued.
      Scales scales;
      if constexpr (P.has_scales()) scales = load_scales(codes);
      const std::uint32_t slot_address = base + S::kv + slot * S::kSlot;
      const std::uint32_t full = base + S::kv_full + 8 * slot;
      if (block == 0) STAMP(4);
      ptx::mbarrier_wait(base + S::kv_free + 8 * slot, phase);
      if (valid != 0) {
        copy_rows(codes, slot_address, full);
        if (block == 0) STAMP(5);
      } else {
        zero_rows(slot_address, full);
      }
      publish(scales, valid, slot);
      if (++slot == P.slots) {
        slot = 0;
        phase ^= 1;
      }
    }
    STAMP(6);
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
