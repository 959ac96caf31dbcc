// The gather warps: slot lists to KV rows in shared memory, scales to f16 factors and exponents.
//
// Warp w of a warpgroup owns rows 16 w .. 16 w + 15 of the warpgroup's blocks. A slot that names no token is replaced
// by a valid one of the same sixteen and masked (its exponent is -inf), so nothing that no index names is ever read;
// sixteen such slots are zero-filled.
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
#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/decode/shared.h"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
struct Gather {
  using S = Shared<P>;
  static constexpr int kGroups = P.gather_warpgroups();
  static constexpr int kRows = kBlock / 4;                    // of one warp
  static constexpr std::uint32_t kNoToken = 0xFFFFFFFFu;      // never a row: pools hold less than 2^31 - 1 rows
  static constexpr int kLaneGroups = (P.key_groups + 1) / 2;  // scale groups of one lane: two lanes per row

  const Args& args;
  std::uint32_t base;  // shared address of the CTA's buffers
  int group;           // which gather warpgroup: it takes the blocks of this remainder
  int warp;            // 0..3, in it
  int lane;
  int first_head;

  PartRecord part{};
  const std::int32_t* lists[2]{};  // the token's slots in either pool
  std::uint32_t first_length = 0;  // of the first list
  std::uint32_t length = 0;        // of both
  int done = 0;                    // blocks of the parts before

  struct Scales {
    float value[kLaneGroups];
  };

  // The index at `position` of the token's slots, which count through the first pool's list and then the second's; -1
  // behind the last. Not looked at here, so that the load may travel for two blocks.
  __device__ std::int32_t load_index(std::uint32_t position) const {
    const bool second = position >= first_length;
    std::int32_t index = -1;
    if (position < length) {
      index = __ldg((second ? lists[1] : lists[0]) + (second ? position - first_length : position));
    }
    return index;
  }
  __device__ std::uint32_t position_of(int block) const {
    return static_cast<std::uint32_t>(part.first_block + block) * kBlock + kRows * warp + (lane & 15);
  }
  // Two of this warpgroup's blocks at once: lanes 0-15 the given one, lanes 16-31 the next.
  __device__ std::int32_t load_two_blocks(int block) const {
    const int own = block + kGroups * (lane >> 4);
    return own < part.blocks ? load_index(position_of(own)) : -1;
  }
  // What a row is called here: bit 31 is the pool, the rest the row in it.
  __device__ std::uint32_t code_of(std::int32_t index, int block) const {
    const bool second = position_of(block) >= first_length;
    if (index < 0 || index >= (second ? args.pool[1].total_pages : args.pool[0].total_pages)) return kNoToken;
    return static_cast<std::uint32_t>(index) | (second ? 0x80000000u : 0u);
  }

  __device__ std::uint64_t row_of(std::uint32_t code) const {
    const bool second = (code >> 31) != 0;
    return reinterpret_cast<std::uint64_t>(second ? args.pool[1].kv : args.pool[0].kv) +
           static_cast<std::uint64_t>(code & 0x7FFFFFFFu) * (second ? args.pool[1].row_bytes : args.pool[0].row_bytes);
  }

  // Copies are issued warp-uniformly: all lanes read the row addresses from shared memory, one of them issues. In a
  // branch of one lane a copy takes three times as long.
  template <bool kFullRows>
  __device__ void copy_rows(std::uint32_t codes, std::uint32_t slot_address, std::uint32_t barrier) const {
    constexpr std::uint32_t kFull = 64 * P.key_groups * P.element_bytes();
    const std::uint32_t bytes = kFullRows ? kFull : static_cast<std::uint32_t>(args.d) * P.element_bytes();
    const std::uint32_t addresses = base + S::row_addresses + group * kBlock * 8 + 8 * kRows * warp;
    const std::uint64_t own = row_of(codes);
    __syncwarp();
    if (lane < kRows) {
      ptx::st_shared_v2(addresses + 8 * lane, {static_cast<std::uint32_t>(own), static_cast<std::uint32_t>(own >> 32)});
    }
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(barrier, kRows * bytes);
    __syncwarp();
    const std::uint32_t to = slot_address + kRows * warp * P.row_bytes();
#pragma unroll
    for (int row = 0; row < kRows; row += 2) {
      const uint4 two = ptx::ld_shared_v4(addresses + 8 * row);
      if (ptx::elect_sync()) {
        ptx::cp_async_bulk_to_shared(to + row * P.row_bytes(), pointer_of(two.x, two.y), bytes, barrier);
      }
      if (ptx::elect_sync()) {
        ptx::cp_async_bulk_to_shared(to + (row + 1) * P.row_bytes(), pointer_of(two.z, two.w), bytes, barrier);
      }
    }
  }
  __device__ static const void* pointer_of(std::uint32_t low, std::uint32_t high) {
    return reinterpret_cast<const void*>(static_cast<std::uint64_t>(high) << 32 | low);
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
    std::uint32_t factors[(kLaneGroups + 1) / 2];
#pragma unroll
    for (int i = 0; i < kLaneGroups; i += 2) {
      factors[i / 2] =
          ptx::cvt_f16x2_f32(scales.value[i] * normalise, i + 1 < kLaneGroups ? scales.value[i + 1] * normalise : 0.0f);
    }
    if constexpr (kLaneGroups == 4) ptx::st_shared_v2(keys, {factors[0], factors[1]});
#pragma unroll
    for (int i = 0; i < kLaneGroups; ++i) {
      const auto factor = static_cast<std::uint16_t>(factors[i / 2] >> (i % 2 * 16));
      if (kLaneGroups != 4 && first + i < P.key_groups) ptx::st_shared_b16(keys + 2 * i, factor);
      if (first + i < P.value_groups) ptx::st_shared_b16(values + (first + i) * kBlock * 2, factor);
    }
    if ((lane & 1) == 0) store_exponent(slot, row, valid, static_cast<float>(e));
  }
  __device__ void store_exponent(int slot, int row, bool valid, float e) const {
    const uint2 pair =
        valid ? uint2{__float_as_uint(e), __float_as_uint(ptx::ex2(-e))} : uint2{__float_as_uint(-INFINITY), 0u};
    ptx::st_shared_v2(base + S::exponent + slot * S::kExponentSlot + row * 8, pair);
  }
  // Where the f16 factor of a token lies inside its group's 128 bytes, in the order of the A fragments of
  // O^T = V^T P^T: [half of the block][lane % 4][k16 step, k8 half] pairs of neighbouring tokens.
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
  __device__ void run(Window window) {
    for (int count = 0;; ++count) {
      part = window.next(OpenToken{*this});
      announce(count);
      if (part.token < 0) return;
      if (part.blocks == 0) continue;
      // Ahead of the rows: behind them it would come thousands of cycles later.
      if (count > 0) prefetch_query<P>(args, part.token, first_head, 128 * group + 32 * warp + lane, 128 * kGroups);
      gather_part();
      done += part.blocks;
    }
  }

 private:
  // Finds the lists of a token; gives its blocks.
  struct OpenToken {
    Gather& gather;
    __device__ __forceinline__ std::int32_t operator()(std::int32_t token) const { return gather.open(token); }
  };
  __device__ __forceinline__ std::int32_t open(std::int32_t token) {
    const Segment first = segment_of(args.pool[0], token);
    const Segment second = segment_of(args.pool[1], token);
    lists[0] = args.pool[0].indices + first.begin;
    lists[1] = args.pool[1].indices + second.begin;
    first_length = static_cast<std::uint32_t>(first.length);
    length = static_cast<std::uint32_t>(first.length + second.length);
    return blocks_of(first.length + second.length);
  }

  __device__ void announce(int count) const {
    if (group != 0 || warp != 0) return;
    const int place = count & 1;
    ptx::mbarrier_wait(base + S::part_free + 8 * place, ((count >> 1) & 1) ^ 1);
    if (lane == 0) {
      store_record(base + S::part + 32 * place, part);
      ptx::mbarrier_arrive(base + S::part_full + 8 * place);
    }
  }

  __device__ void gather_part() {
    const int first = kGroups == 1 ? 0 : (done ^ group) & 1;
    std::int32_t next = load_two_blocks(first);
    std::int32_t two_blocks = 0;
    const bool full_rows = args.d == 64 * P.key_groups;
    int odd = 0;  // of this warpgroup's blocks
    for (int block = first; block < part.blocks; block += kGroups, odd ^= 1) {
      if (odd == 0) {
        two_blocks = next;
        next = load_two_blocks(block + 2 * kGroups);
      }
      const int slot = (done + block) % P.slots;
      const std::uint32_t phase = ((done + block) / P.slots & 1) ^ 1;  // a fresh barrier lets the first wait pass
      const std::int32_t index = __shfl_sync(0xFFFFFFFFu, two_blocks, (lane & 15) + 16 * odd);
      std::uint32_t codes = code_of(index, block);
      const std::uint32_t valid = __ballot_sync(0xFFFFFFFFu, codes != kNoToken) & 0xFFFFu;
      const std::uint32_t substitute = __shfl_sync(0xFFFFFFFFu, codes, valid != 0 ? __ffs(valid) - 1 : 0);
      if (codes == kNoToken) codes = substitute;
      // The loads travel while the slot is waited for and the copies are issued.
      Scales scales;
      if constexpr (P.has_scales()) scales = load_scales(codes);
      const std::uint32_t slot_address = base + S::kv + slot * S::kSlot;
      const std::uint32_t full = base + S::kv_full + 8 * slot;
      ptx::mbarrier_wait(base + S::kv_free + 8 * slot, phase);
      if (valid == 0) {
        zero_rows(slot_address, full);
      } else if (full_rows) {
        copy_rows<true>(codes, slot_address, full);
      } else {
        copy_rows<false>(codes, slot_address, full);
      }
      publish(scales, valid, slot);
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
