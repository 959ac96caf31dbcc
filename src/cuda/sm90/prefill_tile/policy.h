// Tuning numbers of one instance of the kernel.
#pragma once

#include "cuda/host_device.h"

namespace sparse_mla::cuda::sm90::prefill_tile {

struct Policy {
  int heads;             // head columns of P and O^T: 8, 16, 32 or 64
  int d_qk;              // 512 or 576
  bool split;            // a cluster shares a row's tokens; else a CTA walks over whole rows
  int q_steps;           // k steps (of 32) of Q that the MMA warps keep in registers; the others come from shared memory
  int unit;              // products V^T P^T issued together: 2 or 4
  int slots;             // token blocks in flight from the gather
  int mma_registers;     // per thread of the two MMA warpgroups, by setmaxnreg
  int loader_registers;  // per thread of the gather warpgroup
  bool operator==(const Policy&) const = default;
};

inline constexpr int kBlockTokens = 64;  // tokens of one block
inline constexpr int kScoreHeads = 64;   // M of S = Q K^T: rows past the tile's heads are padding
inline constexpr int kValueDims = 512;
inline constexpr int kDimsPerWarpgroup = 256;
inline constexpr int kProbabilitySlots = 4;
inline constexpr int kThreads = 384;
inline constexpr int kMaxSplits = 8;  // a portable cluster
// A head's frame is a log2: P = 2^(logit log2 e - frame + kTopExponent). Where the frame is adopted, the running maximum
// becomes exactly 2^kTopExponent in e4m3; later scores may exceed it by kHeadroom octaves (e4m3 ends at 448).
inline constexpr float kTopExponent = 5.0f;
inline constexpr float kHeadroom = 3.75f;
// The blocks of a row (bit = block) in which every head adopts its running maximum; both warpgroups do so one after the
// other, hence pairs. P's rounding is 1.66 / 1.84 / 1.96e-2 with this schedule, 1.60 / 1.80 / 1.96e-2 with every block
// (d 576 topk 2048 / 512, 1024 / 512, 512); a power-of-two frame gives 1.75 / 2.02 / 2.29e-2.
inline constexpr unsigned kAdoptions = 0x030C33FFu;
// The frame of a row before its first token: below every logit, and finite so that differences of frames are numbers.
inline constexpr float kNoFrame = -1e30f;

constexpr Policy policy(int heads, int d_qk, bool split) {
  // 64 heads: 128 accumulators leave room for 4 steps of Q; 6 spill and 8 make ptxas serialise the products.
  return {.heads = heads,
          .d_qk = d_qk,
          .split = split,
          .q_steps = heads == 64 ? 4 : heads == 32 ? 12 : 16,
          .unit = heads == 64 ? 2 : 4,
          .slots = 4,
          .mma_registers = 232,
          .loader_registers = 40};
}
// Past 32 blocks every 16th pair.
SPARSE_MLA_HOST_DEVICE constexpr bool adopts(unsigned block_of_row) {
  return block_of_row < 32 ? (kAdoptions >> block_of_row) & 1 : (block_of_row & 30) == 0;
}

template <int kHeads, int kDqk, bool kSplit>
inline constexpr Policy kPolicyOf = policy(kHeads, kDqk, kSplit);

}  // namespace sparse_mla::cuda::sm90::prefill_tile
