// Tile sizes, ring depths, registers: every tuning number of the kernel, as one template argument.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::sm90::prefill_pair {

inline constexpr int kHeads = 128;       // heads of a row of work
inline constexpr int kOwnTokens = 64;    // tokens that one CTA of the pair scores in a turn
inline constexpr int kTurnTokens = 128;  // tokens of a turn, both CTAs
inline constexpr int kHalfDims = 256;    // value dims that one CTA of the pair accumulates
inline constexpr int kValueDims = 512;
inline constexpr int kRopeDims = 64;
inline constexpr int kQueryTailDims =
    96;  // of the other value half: what a score takes from shared memory and not from
         // registers. With 32 fewer ptxas runs out of them and serialises (C7512)
inline constexpr int kMmaGroups = 2;
inline constexpr int kMmaWarps = 8;
inline constexpr int kThreads = 384;  // two MMA warpgroups and one of three loader warps and a courier warp

// A head's maximum so far lands on 2^kFirstOctave when its frame is agreed. Between agreements a CTA moves a frame, by
// whole octaves, only where a probability would pass 2^kLimitOctave (e4m3 ends at 448 = 2^8.807).
inline constexpr float kFirstOctave = 5.0f;
inline constexpr float kLimitOctave = 8.8f;

struct Policy {
  int d_qk = 576;
  int rest_stages = 2;        // ring of the score-only part of own tokens
  int own_stages = 3;         // ring of the own value half of own tokens
  int peer_stages = 2;        // ring of the own value half of the peer's tokens
  int probs_own_stages = 3;   // P of own tokens: written a turn before the last reader of two turns ago is done
  int probs_peer_stages = 2;  // P of the peer's tokens; as many as peer_stages, which share a handshake
  int mma_registers = 240;
  int loader_registers = 24;
  bool take_turns = true;  // the two MMA warpgroups issue their scores alternately
  // Turns of a row on which the CTAs agree on a head's frame: its maximum so far is then exactly 2^first_octave.
  // Rounding to e4m3 costs such a token nothing; docs/decisions/ has what each turn buys.
  std::uint32_t agree_turns = 0x12F;  // 0, 1, 2, 3, 5, 8
  friend constexpr bool operator==(const Policy&, const Policy&) = default;
  constexpr bool rope() const { return d_qk == kValueDims + kRopeDims; }
};

template <Policy P>
inline constexpr bool kRope = P.rope();

template <int kDqk>
inline constexpr Policy kPolicyFor = {.d_qk = kDqk};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
