// Every edge between roles of the decode kernel: who arrives, who waits, what it protects. All are mbarriers, one
// object per slot, P buffer or frame generation. Host and device; tests/cuda/sm90/decode/handshakes_test.cc walks the
// interleavings of a model built from the same table.
//
// | edge        | from -> to             | arrivals        | protects                                               |
// | ----------- | ---------------------- | --------------- | ------------------------------------------------------ |
// | kv_full     | gather -> score, weigh | 8 + bytes       | KV rows (bytes), scales and exponents (second arrival) |
// | kv_free     | score, weigh -> gather | warps that read | the slot                                               |
// | p_full      | score -> weigh         | 4 warps         | P of a block, and the flag and factors of its frame    |
// | p_free      | weigh -> score         | warps that read | the P buffer, the flag and factors of that generation  |
// | frame_right | score -> next score    | 1               | the right to use and to move the frames                |
// | part_full   | gather -> MMA warps    | 1               | the record of a part                                   |
// | part_free   | MMA warps -> gather    | MMA warps       | the same, to be overwritten                            |
//
// Wide: both warpgroups weigh, and P buffer b belongs to warpgroup b, so p_free comes from the other one only.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/policy.h"
#include "cuda/sm90/decode/shared.h"

namespace sparse_mla::cuda::sm90::decode {

struct Edge {
  std::uint32_t address;   // offset of the first object
  std::uint32_t objects;   // ring length
  std::uint32_t arrivals;  // per phase
};

template <Policy P>
struct Handshakes {
  using S = Shared<P>;
  static constexpr std::uint32_t kGatherWarps = 4;
  static constexpr Edge kv_full{S::kv_full, static_cast<std::uint32_t>(P.slots), 2 * kGatherWarps};
  static constexpr Edge kv_free{S::kv_free, static_cast<std::uint32_t>(P.slots), P.is_wide() ? 8u : 4u + 8u};
  static constexpr Edge p_full{S::p_full, static_cast<std::uint32_t>(P.p_buffers()), 4};
  static constexpr Edge p_free{S::p_free, static_cast<std::uint32_t>(P.p_buffers()), P.is_wide() ? 4u : 8u};
  static constexpr Edge frame_right{S::frame_right, kFrames, 1};
  static constexpr Edge part_full{S::part_full, 2, 1};
  static constexpr Edge part_free{S::part_free, 2, static_cast<std::uint32_t>(P.mma_threads() / 32)};
};

// Named barriers, with their thread counts. Id 0 is __syncthreads.
struct NamedBarrier {
  int id;
  int threads;
};
inline constexpr NamedBarrier kScoreGroup[2] = {{1, 128}, {2, 128}};  // inside one scoring warpgroup
template <Policy P>
inline constexpr NamedBarrier kMma{3, P.mma_threads()};  // all MMA threads: Q, sums, merge

}  // namespace sparse_mla::cuda::sm90::decode
