// Tuning numbers of one instance of the kernel.
#pragma once

namespace sparse_mla::cuda::sm90::prefill_tile {

struct Policy {
  int heads;             // head columns of P and O^T: 8, 16, 32 or 64
  int d_qk;              // 512 or 576
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
// The largest probability of a row is 2^kTopExponent in e4m3 (whose largest value is 448).
inline constexpr float kTopExponent = 8.0f;
// The frame of a row before its first token: below every logit, and finite so that differences of frames are numbers.
inline constexpr float kNoFrame = -1e30f;

constexpr Policy policy(int heads, int d_qk) {
  return {.heads = heads, .d_qk = d_qk, .slots = 4, .mma_registers = 232, .loader_registers = 40};
}
template <int kHeads, int kDqk>
inline constexpr Policy kPolicyOf = policy(kHeads, kDqk);

}  // namespace sparse_mla::cuda::sm90::prefill_tile
