// The two MMA warpgroups. In turn t each of them scores tile t and weighs the values of tile t - 2:
//
//   values of the peer's tokens (t - 2) | scores (t) | values of own tokens (t - 2) | softmax (t), under the values
//
// Probabilities lag two turns behind, so neither the other warpgroup nor the peer CTA is ever waited for in step.
// Rows follow each other without a break: the last two tiles of a row are weighed while the next row is being scored.
#pragma once

#include <cstdint>

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/prefill_pair/barriers.cuh"
#include "cuda/sm90/prefill_pair/row_end.cuh"
#include "cuda/sm90/prefill_pair/rows.cuh"
#include "cuda/sm90/prefill_pair/scores.cuh"
#include "cuda/sm90/prefill_pair/shared.h"
#include "cuda/sm90/prefill_pair/softmax.cuh"
#include "cuda/sm90/prefill_pair/values.cuh"
#include "cuda/sync/ring.h"

#ifdef SPARSE_MLA_STAMPS
namespace sparse_mla::cuda::sm90::prefill_pair { static __device__ unsigned g_stamps[2][2][64][16]; }
#define STAMP(i) if (blockIdx.x < 2 && tile >= 256 && tile < 320 && tid() == 0) g_stamps[blockIdx.x][group][tile - 256][i] = clock()
#else
#define STAMP(i)
#endif

namespace sparse_mla::cuda::sm90::prefill_pair {

template <Policy P>
struct Mma {
  const Args& args;
  Shared<P>& shared;
  Barriers<P> barriers;
  std::uint32_t rank;
  std::uint32_t group;   // uniform
  std::uint32_t thread;  // of the group
  float scale;           // from a score to octaves

  // Registers that live through the whole kernel.
  Accumulator out;
  QueryFragments query;
  Softmax soft;
  Frames frames;  // of `out`

  static constexpr std::uint32_t kLag = 2;  // turns from a tile's scores to its values

  // Made anew where it is used: what is derived from it would otherwise be kept across the turn, in spills.
  __device__ std::uint32_t tid() const { return ptx::opaque(thread); }
  __device__ bool leads_warp() const { return (tid() & 31) == 0; }

  // What a warpgroup knows of where it is; the same in every thread, so that it lives in uniform registers.
  struct Where {
    std::uint32_t tile = 0;        // scored in this turn
    std::uint32_t row;             // of that tile
    std::uint32_t turn = 0;        // of that row
    std::uint32_t rows_begun = 0;  // rows before that row
    std::uint32_t agreements = 0;
    std::uint32_t row_done;        // the row that is written next
    std::uint32_t rows_done = 0;
    std::uint32_t ends = 0;        // bit n: tile - 1 - n was the last of its row

    __device__ std::uint32_t weighed() const { return tile - kLag; }
    __device__ bool weighing() const { return tile >= kLag; }
    __device__ bool weighed_begins() const { return tile == kLag || (ends & 4) != 0; }
    __device__ bool weighed_ends() const { return (ends & 2) != 0; }
    __device__ bool begins() const { return turn == 0; }
    __device__ bool agrees() const { return turn < 32 && (P.agree_turns >> turn & 1) != 0; }
  };

  __device__ __forceinline__ void run(std::uint32_t cluster, std::uint32_t clusters) {
    Where at;
    at.row = at.row_done = cluster;
    soft = {};
    for (float& frame : frames) frame = 0.0f;
    load_query_fragments(query, args, cluster, rank, group, thread);
    if (P.take_turns && group == 1) ptx::bar_arrive(kScoresTurnBarrier, kScoresTurnThreads);
    while (at.row_done < args.rows) {
      const bool ended = turn(at, clusters);
      if (at.weighed_ends()) {
        write_row(at.row_done, at.rows_done++);
        at.row_done += clusters;
      }
      if (at.begins()) ++at.rows_begun;
      at.ends = at.ends << 1 | (ended ? 1 : 0);
      ++at.tile;
      ++at.turn;
      if (ended) {
        at.turn = 0;
        at.row += clusters;
      }
    }
  }

 private:
  // One turn. Says whether the scored tile was the last of its row.
  __device__ __forceinline__ bool turn(Where& at, std::uint32_t clusters) {
    const bool scoring = at.row < args.rows;
    [[maybe_unused]] const std::uint32_t tile = at.tile;
    float scores[32];
    ValueFragments values;
    STAMP(0);
    const bool move_again = begin_peer_values(at, values);
    STAMP(1);
    const bool ended = scoring && wait_for_keys(at);
    STAMP(2);
    if constexpr (P.take_turns) ptx::bar_sync(kScoresTurnBarrier + group, kScoresTurnThreads);

    STAMP(3);
    ptx::wgmma_fence();
    // Asked again: a flag kept from above would be spilled.
    const bool begins = at.tile == kLag || (ptx::opaque(at.ends) & 4) != 0;
    issue_values(out, values, probs_peer(at.weighed()), !begins);
    ptx::wgmma_commit_group();
    STAMP(4);
    issue(scores, at.tile);
    ptx::wgmma_commit_group();
    if constexpr (P.take_turns) ptx::bar_arrive(kScoresTurnBarrier + (group ^ 1), kScoresTurnThreads);

    STAMP(5);
    ptx::wgmma_wait_group<1>();
    if (at.weighing()) end_peer_values(at.weighed());
    load_values(values, own_panel(at.weighed()), tid());
    STAMP(6);
    if (move_again) {
      ptx::wgmma_wait_group<0>();
      Frames own_frames;
      load_frames(own_frames, frame_own(at.weighed()), tid() & 31);
      change_frames(out, frames, own_frames, tid() & 31);
    }
    ptx::wgmma_fence();
    issue_values(out, values, probs_own(at.weighed()), true);
    ptx::wgmma_commit_group();

    STAMP(7);
    ptx::wgmma_wait_group<1>();
    ptx::wgmma_touch(scores);
    STAMP(8);
    if (scoring) end_scores(at, ended, clusters);
    if (at.begins()) begin_row(scores, at, scoring, at.row - clusters);
    STAMP(9);
    if (scoring) publish(scores, at);
    if (at.agrees()) ++at.agreements;
    STAMP(12);

    ptx::wgmma_wait_group<0>();
    ptx::wgmma_touch(out[0]);
    ptx::wgmma_touch(out[1]);
    if (at.weighing() && leads_warp()) {
      barriers.template arrive<Edge::own_free>(RingPosition<P.own_stages>(at.weighed()).slot);
      barriers.template arrive<Edge::probs_free>(RingPosition<P.probs_own_stages>(at.weighed()).slot);
    }
    STAMP(13);
    return ended;
  }

  template <class T>
  __device__ static std::uint32_t address(const T& in_shared) {
    return ptx::shared_address(&in_shared);
  }
  __device__ std::uint32_t probs_own(std::uint32_t tile) const {
    return address(shared.probs_own) + RingPosition<P.probs_own_stages>(tile).slot * sizeof(shared.probs_own[0]);
  }
  __device__ std::uint32_t probs_peer(std::uint32_t tile) const {
    return address(shared.probs_peer) + RingPosition<P.probs_peer_stages>(tile).slot * sizeof(shared.probs_peer[0]);
  }
  __device__ std::uint32_t frame_own(std::uint32_t tile) const {
    return address(shared.frame_own) + RingPosition<P.probs_own_stages>(tile).slot * sizeof(shared.frame_own[0]);
  }
  __device__ std::uint32_t frame_peer(std::uint32_t tile) const {
    return address(shared.frame_peer) + RingPosition<P.probs_peer_stages>(tile).slot * sizeof(shared.frame_peer[0]);
  }
  // This group's panel (128 value dims) of a half tile.
  __device__ std::uint32_t own_panel(std::uint32_t tile) const {
    return address(shared.own) + RingPosition<P.own_stages>(tile).slot * sizeof(shared.own[0]) + group * (kOwnTokens * 128);
  }
  __device__ std::uint32_t peer_panel(std::uint32_t tile) const {
    return address(shared.peer) + RingPosition<P.peer_stages>(tile).slot * sizeof(shared.peer[0]) + group * (kOwnTokens * 128);
  }

  // Peer values into fragments, and the accumulator into the frames of the peer's probabilities. Says whether it must
  // move again for own probabilities.
  __device__ __forceinline__ bool begin_peer_values(const Where& at, ValueFragments& values) {
    const std::uint32_t tile = at.weighed();
    const RingPosition<P.peer_stages> peer(tile);
    const RingPosition<P.probs_own_stages> own(tile);
    const RingPosition<P.probs_peer_stages> there(tile);
    if (at.weighing()) barriers.template wait<Edge::peer_ready>(peer.slot, peer.full_parity());
    load_values(values, peer_panel(tile), tid());
    if (!at.weighing()) return false;
    barriers.template wait<Edge::probs_ready>(own.slot, own.full_parity());
    barriers.template wait<Edge::peer_probs_ready>(there.slot, there.full_parity());
    const std::uint32_t lane = tid() & 31;
    Frames peer_frames, own_frames;
    load_frames(peer_frames, frame_peer(tile), lane);
    load_frames(own_frames, frame_own(tile), lane);
    if (at.weighed_begins())
#pragma unroll
      for (int i = 0; i < 4; ++i) frames[i] = peer_frames[i];
    if (!__any_sync(0xFFFFFFFFu, differ(peer_frames, frames) || differ(own_frames, frames))) return false;
    change_frames(out, frames, peer_frames, lane);
    const bool move_again = __any_sync(0xFFFFFFFFu, differ(own_frames, frames));
    // At a row's end the softmax is in the next row already.
    if (move_again && !at.weighed_ends()) follow_peer(tile);
    return move_again;
  }

  // Own frames rise to those of the peer's tile, so that the accumulator need not move to and fro.
  __device__ __forceinline__ void follow_peer(std::uint32_t tile) {
    const std::uint32_t lane = tid() & 31;
    const std::uint32_t head = group * 64 + (tid() >> 5) * 16 + (lane >> 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float theirs = ptx::ld_shared_f32(frame_peer(tile) + 4 * (head + r * 8));
      if (theirs <= soft.frame[r]) continue;
      raise_frame(soft, r, theirs - soft.frame[r]);
      soft.frame[r] = theirs;  // bit for bit
    }
  }

  __device__ __forceinline__ void end_peer_values(std::uint32_t tile) const {
    if (leads_warp()) {
      barriers.template arrive<Edge::peer_free>(RingPosition<P.peer_stages>(tile).slot);
      barriers.template arrive_at_peer<Edge::peer_probs_free>(RingPosition<P.probs_peer_stages>(tile).slot, rank ^ 1);
    }
  }

  // Says whether the tile is the last of its row.
  __device__ __forceinline__ bool wait_for_keys(const Where& at) const {
    const RingPosition<P.rest_stages> rest(at.tile);
    const RingPosition<P.own_stages> own(at.tile);
    if (at.begins()) barriers.template wait<Edge::q_ready>(0, RingPosition<1>(at.rows_begun).full_parity());
    barriers.template wait<Edge::own_ready>(own.slot, own.full_parity());
    const std::uint32_t ends = ptx::ld_shared_b32(address(shared.info[own.slot].ends));
    barriers.template wait<Edge::rest_ready>(rest.slot, rest.full_parity());
    return __reduce_or_sync(0xFFFFFFFFu, ends) != 0;
  }

  __device__ __forceinline__ void issue(float (&scores)[32], std::uint32_t tile) const {
    const RingPosition<P.rest_stages> rest(tile);
    const std::uint32_t rest_at = address(shared.rest) + rest.slot * sizeof(shared.rest[0]);
    issue_scores<P>(scores, query, address(shared.q_own) + group * 64 * 128,
                    address(shared.q_rope) + group * 64 * kRopeDims, rest_at,
                    rest_at + static_cast<std::uint32_t>(offsetof(typename Shared<P>::Rest, rope)),
                    address(shared.own) + RingPosition<P.own_stages>(tile).slot * sizeof(shared.own[0]));
  }

  __device__ __forceinline__ void end_scores(const Where& at, bool ended, std::uint32_t clusters) {
    if (leads_warp()) {
      barriers.template arrive<Edge::rest_free>(RingPosition<P.rest_stages>(at.tile).slot);
      if (ended) barriers.template arrive<Edge::q_free>(0);
    }
    if (ended && at.row + clusters < args.rows)
      load_query_fragments(query, args, at.row + clusters, rank, group, tid());
  }

  __device__ __forceinline__ uint2 used_tokens(std::uint32_t tile) const {
    return ptx::ld_shared_v2(address(shared.info[RingPosition<P.own_stages>(tile).slot].used));
  }
  // This lane's head of the two, in the CTA.
  __device__ __forceinline__ std::uint32_t lane_head() const {
    const std::uint32_t lane = tid() & 31;
    return group * 64 + (tid() >> 5) * 16 + (lane >> 2) + (lane & 1) * 8;
  }

  // On the first turn of a row (and once behind the last row) the CTAs agree on the row's first frames, and what they
  // tell each other completes the row before.
  __device__ __forceinline__ void begin_row(const float (&scores)[32], const Where& at, bool scoring,
                                            std::uint32_t row_before) {
    const std::uint32_t lane = tid() & 31;
    float highest[2];
    tile_maxima(highest, scores, scale, scoring ? used_tokens(at.tile) : uint2{}, lane);
    const float sum[2] = {quad_sum(soft.sum[0]), quad_sum(soft.sum[1])};
    const float top[2] = {quad_top(soft.maximum[0]), quad_top(soft.maximum[1])};
    const FrameMessage here{pick(sum, lane), pick(soft.frame, lane), pick(top, lane), pick(highest, lane)};
    const FrameMessage there = exchange(here, at.agreements);
    if (at.rows_begun > 0) finish(here, there, row_before, at.rows_begun - 1);

    const float tile_max = fmaxf(here.tile_max, there.tile_max);
    const float frame = tile_max == kMinusInfinity ? kNoFrame : tile_max - kFirstOctave;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      soft.frame[r] = __shfl_sync(0xFFFFFFFFu, frame, (lane & 28) + r);
      soft.sum[r] = 0.0f;
      soft.maximum[r] = 0;
    }
  }

  // On some later turns they bring their frames to the maximum of both so far, which `x` (log2 of probabilities) counts in.
  __device__ __forceinline__ void meet_peer(float (&x)[32], std::uint32_t agreement) {
    const std::uint32_t lane = tid() & 31;
    const float top[2] = {quad_top(soft.maximum[0]), quad_top(soft.maximum[1])};
    const FrameMessage here{0.0f, pick(soft.frame, lane), pick(top, lane), 0.0f};
    const FrameMessage there = exchange(here, agreement);
    const float highest = fmaxf(here.frame + here.maximum, there.frame + there.maximum);
    const float frame = fmaxf(fmaxf(here.frame, there.frame), highest - kFirstOctave);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float agreed = __shfl_sync(0xFFFFFFFFu, frame, (lane & 28) + r);
      const float rise = agreed - soft.frame[r];
      raise_frame(soft, r, rise);
      soft.frame[r] = agreed;
      lower(x, r, rise);
    }
  }

  // With the same lane of the peer CTA, about its head.
  __device__ __forceinline__ FrameMessage exchange(const FrameMessage& here, std::uint32_t agreement) const {
    const RingPosition<2> at(agreement);
    const std::uint32_t lane = tid() & 31;
    const std::uint32_t slot = at.slot * kMmaGroups + group;
    const std::uint32_t message = address(shared.message[at.slot][lane_head()]);
    const std::uint32_t ready = barriers.template at<Edge::message_ready>(slot);
    if (tid() == 0) ptx::mbarrier_arrive_expect_tx(ready, 64 * sizeof(FrameMessage));
    if ((lane & 3) < 2)
      ptx::st_async_v4(ptx::mapa(message, rank ^ 1),
                       make_uint4(__float_as_uint(here.sum), __float_as_uint(here.frame), __float_as_uint(here.maximum),
                                  __float_as_uint(here.tile_max)),
                       ptx::mapa(ready, rank ^ 1));
    barriers.template wait<Edge::message_ready>(slot, at.full_parity());
    const uint4 words = ptx::ld_shared_v4(message);
    return {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)};
  }

  __device__ __forceinline__ void finish(const FrameMessage& here, const FrameMessage& there, std::uint32_t row,
                                         std::uint32_t number) {
    const std::uint32_t lane = tid() & 31, head = lane_head();
    const std::uint32_t head_in_all = (row % args.head_blocks) * kHeads + head;
    const FinishedHead done =
        finish_head(here, there, args.attn_sink == nullptr ? nullptr : args.attn_sink + head_in_all);
    if ((lane & 3) < 2) {
      const std::size_t at = static_cast<std::size_t>(row) * kHeads + head;
      if (rank == 0) args.lse[at] = done.lse;
      else args.max_logits[at] = done.max_logit;
      ptx::st_shared_f32(address(shared.scale_out[number % 4][head]), done.scale);
      ptx::st_shared_f32(address(shared.frame_out[number % 4][head]), done.frame);
    }
    __syncwarp();
    if (leads_warp()) barriers.template arrive<Edge::scales_ready>(number % 4);
  }

  __device__ __forceinline__ void publish(float (&scores)[32], const Where& at) {
    const std::uint32_t lane = tid() & 31;
    [[maybe_unused]] const std::uint32_t tile = at.tile;
    const uint2 used = used_tokens(at.tile);
    // Valid tokens are the same for all heads, so either all of them lack a frame or none does.
    if (soft.frame[0] == kNoFrame) find_frames(scores, soft, scale, used, lane);
    scale_scores(scores, soft, scale, used, lane);
    if (at.agrees() && !at.begins()) meet_peer(scores, at.agreements);
    else if (passes_limit(soft)) hold_limit(scores, soft);
    std::uint32_t packed[8];
    make_probabilities(scores, soft, packed);
    const RingPosition<P.probs_own_stages> slot(at.tile);
    STAMP(10);
    barriers.template wait<Edge::probs_free>(slot.slot, slot.empty_parity());
    STAMP(11);
    store_probabilities(packed, soft, probs_own(at.tile), frame_own(at.tile), group * 64 + (tid() >> 5) * 16, lane);
    __syncwarp();
    if (leads_warp()) barriers.template arrive<Edge::probs_written>(slot.slot);
  }

  // The finished row, number `number` of this CTA: into its last frame, divided, rounded to bf16, stored.
  __device__ __forceinline__ void write_row(std::uint32_t row, std::uint32_t number) {
    const RingPosition<4> at(number);
    barriers.template wait<Edge::scales_ready>(at.slot, at.full_parity());
    const std::uint32_t lane = tid() & 31, warp = tid() >> 5;
    Frames last;
    load_frames(last, address(shared.frame_out[at.slot]), lane);
    if (__any_sync(0xFFFFFFFFu, differ(last, frames))) change_frames(out, frames, last, lane);
    const std::uint32_t odd = lane >> 2 & 1;
    const std::uint32_t dim = rank * kHalfDims + group * 128 + warp * 32 + odd * 16 + (lane >> 3) * 4;
    const std::uint32_t scales = address(shared.scale_out[at.slot]) + (lane & 3) * 8;
    std::uint16_t* to = args.out + (static_cast<std::size_t>(row) * kHeads + (lane & 3) * 2) * kValueDims + dim;
#pragma unroll
    for (int block = 0; block < 16; ++block) {
      const uint2 pair = ptx::ld_shared_v2(scales + block * 32);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float f = __uint_as_float(h == 0 ? pair.x : pair.y);
        const std::uint32_t low = ptx::cvt_bf16x2_f32(out[0][block * 4 + h] * f, out[0][block * 4 + 2 + h] * f);
        const std::uint32_t high = ptx::cvt_bf16x2_f32(out[1][block * 4 + h] * f, out[1][block * 4 + 2 + h] * f);
        // Lanes g and g ^ 1 swap, so that each of them has 4 neighbouring dims of one slice.
        const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd != 0 ? low : high, 4);
        *reinterpret_cast<uint2*>(to + (block * 8 + h) * kValueDims) = odd != 0 ? make_uint2(got, high) : make_uint2(low, got);
      }
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
