// Scores to weights. A scoring warpgroup holds S^T of a block: rows are tokens, columns heads. Lane (g = lane / 4,
// c = lane % 4) of warp w holds tokens 16 w + g and 16 w + g + 8 of heads 8 i + 2 c and 8 i + 2 c + 1 in registers
// 4 i .. 4 i + 3.
//
// With s the score in log2 units and e the exponent of the token's row (0 for 16-bit pools), x = s + e. The gather
// took 2^e out of the values, so their weight is 2^(x - F) with F the frame of the head, while the sum of the softmax
// takes 2^(x - e - F). F is lazy: it moves to the largest x seen only when some x exceeds it by kHeadroom, so P stays
// below 2^8 and most blocks need no maximum.
//
// Frames are a chain over the blocks of a part: the warpgroup that scores block j holds the right to move them from the
// moment that block j - 1 has passed it on. A move opens a new generation of frames (ring of kFrames), leaves the
// factors 2^(old - new) in `move` of block j and sets `moved` of block j. Whoever weighs block j rescales first.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/decode/handshakes.h"
#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"

namespace sparse_mla::cuda::sm90::decode {

template <Policy P>
struct Softmax {
  using S = Shared<P>;
  static constexpr int kColumnBlocks = P.heads / 8;
  static constexpr int kScores = P.heads / 2;  // of one thread

  std::uint32_t base;
  int group;  // which scoring warpgroup
  int warp;   // in it
  int lane;
  float factor;  // products to log2 units, for a row of exponent 0

  float sum[P.heads / 4];  // of this thread's tokens, per head 8 i + 2 c + j at [2 i + j], in the current frame
  float weight[2];         // 2^-e of this thread's two tokens (16-bit pools: unused)
  int generation;          // of the frames

  __device__ void start() {
#pragma unroll
    for (float& s : sum) s = 0.0f;
    generation = 0;
  }

  __device__ std::uint32_t frames(int of_generation) const {
    return base + S::frame + (of_generation % kFrames) * P.heads * 4;
  }
  __device__ float2 load_pair(std::uint32_t row, int column_block) const {
    const uint2 pair = ptx::ld_shared_v2(row + (8 * column_block + 2 * (lane & 3)) * 4);
    return {__uint_as_float(pair.x), __uint_as_float(pair.y)};
  }

  // Products to x, in place.
  __device__ void to_log2(float (&s)[kScores], int slot) {
    const std::uint32_t exponents = base + S::exponent + slot * S::kExponentSlot + (16 * warp + (lane >> 2)) * 8;
    const uint2 upper = ptx::ld_shared_v2(exponents);
    const uint2 lower = ptx::ld_shared_v2(exponents + 64);
    const float e[2] = {__uint_as_float(upper.x), __uint_as_float(lower.x)};
    weight[0] = __uint_as_float(upper.y);
    weight[1] = __uint_as_float(lower.y);
    // A masked row has e = -inf: its products are finite, and 0 * product - inf masks them.
    const float scale[2] = {factor * ptx::ex2(e[0]), factor * ptx::ex2(e[1])};
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = fmaf(s[i], scale[(i >> 1) & 1], e[(i >> 1) & 1]);
  }

  // Waits for the right to use the frames of `block` (the first of a part has it), moves them if need be, passes the
  // right on.
  __device__ void settle_frames(const float (&x)[kScores], int block, bool is_first) {
    if (!is_first) {
      ptx::mbarrier_wait(base + S::frame_right + 8 * ((block - 1) % kFrames), ((block - 1) / kFrames) & 1);
      take_over(block - 1);
    }
    bool exceeds = false;
    const std::uint32_t current = frames(generation);
#pragma unroll
    for (int i = 0; i < kColumnBlocks; ++i) {
      const float2 f = load_pair(current, i);
      exceeds |= fmaxf(x[4 * i], x[4 * i + 2]) > f.x + kHeadroom;
      exceeds |= fmaxf(x[4 * i + 1], x[4 * i + 3]) > f.y + kHeadroom;
    }
    const bool move = ptx::bar_red_or(kScoreGroup[0].id + group, kScoreGroup[0].threads, exceeds);
    if (move) move_frames(x, block);
    if (threadIdx.x % 128 == 0) {
      ptx::st_shared_b32(base + S::moved + 4 * (block % kFrames), move ? 1 : 0);
      ptx::mbarrier_arrive(base + S::frame_right + 8 * (block % kFrames));
    }
  }

  // Follows a move that the scores of `block` made: the sums, and the generation.
  __device__ void take_over(int block) {
    if (ptx::ld_shared_b32(base + S::moved + 4 * (block % kFrames)) != 0) rescale_sums(block);
  }
  __device__ void rescale_sums(int block) {
    ++generation;
#pragma unroll
    for (int i = 0; i < kColumnBlocks; ++i) {
      const float2 f = load_pair(moves(base, block), i);
      sum[2 * i] *= f.x;
      sum[2 * i + 1] *= f.y;
    }
  }
  __device__ static std::uint32_t moves(std::uint32_t base, int block) {
    return base + S::move + (block % kFrames) * P.heads * 4;
  }

  // The rare path: the exact maximum of every head over the block's tokens.
  __device__ void move_frames(const float (&x)[kScores], int block) {
    const std::uint32_t own = base + S::column_max + warp * P.heads * 4;
#pragma unroll
    for (int i = 0; i < kColumnBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float largest = fmaxf(x[4 * i + j], x[4 * i + j + 2]);
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 4));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 8));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 16));
        if (lane < 4) ptx::st_shared_f32(own + (8 * i + 2 * lane + j) * 4, largest);
      }
    }
    const NamedBarrier all{kScoreGroup[0].id + group, kScoreGroup[0].threads};
    ptx::bar_sync(all.id, all.threads);
    const int head = threadIdx.x % 128;
    if (head < P.heads) {
      const float old = ptx::ld_shared_f32(frames(generation) + 4 * head);
      float largest = old;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        largest = fmaxf(largest, ptx::ld_shared_f32(base + S::column_max + (w * P.heads + head) * 4));
      }
      ptx::st_shared_f32(frames(generation + 1) + 4 * head, largest);
      ptx::st_shared_f32(moves(base, block) + 4 * head, ptx::ex2(old - largest));
    }
    ptx::bar_sync(all.id, all.threads);
    rescale_sums(block);
  }

  // x of column blocks first .. first + kCount - 1 to weights, into the P buffer: [head][token] rows of 128 bytes,
  // swizzled. Two column blocks are one stmatrix.
  template <int kFirst, int kCount>
  __device__ void weigh_columns(const float (&x)[kScores], std::uint32_t p_buffer) {
    static_assert(kCount == 1 || kCount == 2);
    std::uint32_t packed[4];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int i = kFirst + k;
      const float2 f = load_pair(frames(generation), i);
      float p[4];
      p[0] = ptx::ex2(x[4 * i] - f.x);
      p[1] = ptx::ex2(x[4 * i + 1] - f.y);
      p[2] = ptx::ex2(x[4 * i + 2] - f.x);
      p[3] = ptx::ex2(x[4 * i + 3] - f.y);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (P.has_scales()) {
          sum[2 * i + j] = fmaf(p[j], weight[0], fmaf(p[j + 2], weight[1], sum[2 * i + j]));
        } else {
          sum[2 * i + j] += p[j] + p[j + 2];
        }
      }
      if constexpr (P.format == KvFormat::kBF16) {
        packed[2 * k] = ptx::cvt_bf16x2_f32(p[0], p[1]);
        packed[2 * k + 1] = ptx::cvt_bf16x2_f32(p[2], p[3]);
      } else {
        packed[2 * k] = ptx::cvt_f16x2_f32(p[0], p[1]);
        packed[2 * k + 1] = ptx::cvt_f16x2_f32(p[2], p[3]);
      }
    }
    // Matrix m of the store: column block kFirst + m / 2, tokens 16 w + 8 (m % 2) ..
    const int matrix = lane >> 3;
    const int head = 8 * (kFirst + (kCount == 2 ? matrix >> 1 : 0)) + (lane & 7);
    const std::uint32_t to = p_buffer + head * 128 + (((2 * warp + (matrix & 1)) ^ (lane & 7)) << 4);
    if constexpr (kCount == 2) {
      ptx::stmatrix_x4_trans(to, packed[0], packed[1], packed[2], packed[3]);
    } else {
      ptx::stmatrix_x2_trans(to, packed[0], packed[1]);
    }
  }

  __device__ void publish(int buffer) const {
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(base + S::p_full + 8 * buffer);
  }

  // The sums of all tokens of this warp, per head, into `sums`.
  __device__ void store_sums() const {
    const std::uint32_t row = base + S::sums + (4 * group + warp) * P.heads * 4;
#pragma unroll
    for (int i = 0; i < P.heads / 4; ++i) {
      float total = sum[i];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 4);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 8);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 16);
      if (lane < 4) ptx::st_shared_f32(row + (8 * (i / 2) + 2 * lane + i % 2) * 4, total);
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::decode
