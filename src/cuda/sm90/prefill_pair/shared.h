// The shared memory of one CTA: every buffer, who writes it, who reads it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/sm90/prefill_pair/handshakes.h"
#include "cuda/sm90/prefill_pair/policy.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

// What the MMA warps need to know of a tile.
struct TileInfo {
  std::uint32_t used[2];  // bit t of the 64 is set where own token t is valid
  std::uint32_t ends;     // 1 on the row's last turn
  std::uint32_t pad;
};

// What a WG tells the WG of the same heads in the peer CTA, one head, on the turns on which they agree on frames.
struct FrameMessage {
  float sum;       // of the row's probabilities so far, in `frame`
  float frame;     // log2 of what the probabilities are divided by
  float maximum;   // the largest log2 of a probability so far, in `frame`; 0 where none is positive
  float tile_max;  // the largest score of this turn's tile, in octaves
};

template <Policy P>
struct Shared {
  static constexpr int kPanel = 128;  // bytes of a row of a 128-byte-swizzled tile
  static constexpr int kHalfTile = kOwnTokens * kHalfDims;
  static constexpr int kRopeBytes = kRope<P> ? kRopeDims : 8;
  // "own half" is the value half (256 dims) that this CTA accumulates; "rest" is everything else a score needs.
  alignas(1024) std::uint8_t q_own[2][kHeads * kPanel];  // TMA -> score wgmma; two 128-byte panels, swizzle 128
  alignas(1024) std::uint8_t q_tail[kHeads * kPanel];  // the other half's second panel; TMA -> score wgmma; swizzle 128
  alignas(1024) std::uint8_t q_rope[kHeads * kRopeBytes];  // TMA -> score wgmma; swizzle 64
  struct alignas(1024) Rest {
    std::uint8_t other_half[2][kOwnTokens * kPanel];           // loader -> score wgmma; swizzle 128
    alignas(1024) std::uint8_t rope[kOwnTokens * kRopeBytes];  // swizzle 64
  } rest[P.rest_stages];
  alignas(1024) std::uint8_t own[P.own_stages][kHalfTile];    // loader -> score wgmma, ldmatrix; swizzle 128
  alignas(1024) std::uint8_t peer[P.peer_stages][kHalfTile];  // loader -> ldmatrix; swizzle 128
  alignas(1024) std::uint8_t probs_own[P.probs_own_stages][kHeads * kOwnTokens];    // MMA -> value wgmma; swizzle 64
  alignas(1024) std::uint8_t probs_peer[P.probs_peer_stages][kHeads * kOwnTokens];  // peer's courier -> value wgmma
  alignas(16) float frame_own[P.probs_own_stages][kHeads];    // of each head's probabilities, with probs_own
  alignas(16) float frame_peer[P.probs_peer_stages][kHeads];  // with probs_peer
  alignas(16) FrameMessage message[2][kHeads];                // peer MMA WG -> MMA WG
  alignas(16) float scale_out[4][kHeads];   // MMA WG of those heads -> both: 1 / denominator of a finished row
  alignas(16) float frame_out[4][kHeads];   // the frame that scale_out is for
  alignas(16) TileInfo info[P.own_stages];  // loader -> MMA, with own
  alignas(16) std::uint64_t barriers[kBarriers<P>];
};

inline constexpr std::size_t kMostShared = 232448;  // what a block can have on sm_90

}  // namespace sparse_mla::cuda::sm90::prefill_pair
