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
  Frames frames;   // of `out`
  bool frameless;  // some head of this warp has no frame yet

  static constexpr std::uint32_t kLag = 2;  // turns from a tile's scores to its values

  // Made anew where it is used: what is derived from it would otherwise be kept across the turn, in spills.
  __device__ std::uint32_t tid() const { return ptx::opaque(thread); }
  __device__ bool leads_warp() const { return (tid() & 31) == 0; }

  __device__ __forceinline__ void run(std::uint32_t cluster, std::uint32_t clusters) {
    RowWalk walk(args, cluster, clusters);
    std::uint32_t rows_begun = 0, rows_done = 0, agreements = 0;
    std::uint32_t row_done = cluster;
    std::uint32_t ends = 0;  // bit n: tile - 1 - n ended its row
    soft = {};
    for (float& frame : frames) frame = 0.0f;
    load_query_fragments(query, args, walk.row, rank, group, thread);
    if (P.take_turns && group == 1) ptx::bar_arrive(kScoresTurnBarrier, kScoresTurnThreads);
    for (std::uint32_t tile = 0; row_done < args.rows; ++tile) {
      const bool scoring = walk.inside(args);
      const bool weighing = tile >= kLag;
      const bool begins = walk.turn == 0;
      const bool agrees = walk.turn < 32 && (P.agree_turns >> walk.turn & 1) != 0;
      const bool ended = scoring && walk.last_turn();
      const std::uint32_t weighed = tile - kLag;
      const bool weighed_ends = weighing && (ends & 2) != 0;
      const bool weighed_begins = tile == kLag || (ends & 4) != 0;

      float scores[32];
      ValueFragments values;
      bool move_again = false;
      STAMP(0);
      begin_peer_values(weighed, weighing, weighed_begins, weighed_ends, values, move_again);
      STAMP(1);
      wait_for_keys(tile, scoring, begins, rows_begun);
      STAMP(2);
      if constexpr (P.take_turns) ptx::bar_sync(kScoresTurnBarrier + group, kScoresTurnThreads);

      STAMP(3);
      ptx::wgmma_fence();
      issue_values(out, values, probs_peer(weighed), !weighed_begins);
      ptx::wgmma_commit_group();
      STAMP(4);
      issue(scores, tile);
      ptx::wgmma_commit_group();
      if constexpr (P.take_turns) ptx::bar_arrive(kScoresTurnBarrier + (group ^ 1), kScoresTurnThreads);

      STAMP(5);
      ptx::wgmma_wait_group<1>();
      end_peer_values(weighed, weighing);
      load_values(values, own_panel(weighed), tid());
      STAMP(6);
      if (move_again) {
        ptx::wgmma_wait_group<0>();
        Frames own_frames;
        load_frames(own_frames, frame_own(weighed) + (tid() & 31) * 16);
        change_frames(out, frames, own_frames, tid() & 31);
      }
      ptx::wgmma_fence();
      issue_values(out, values, probs_own(weighed), true);
      ptx::wgmma_commit_group();

      STAMP(7);
      ptx::wgmma_wait_group<1>();
      ptx::wgmma_touch(scores);
      STAMP(8);
      end_scores(tile, scoring, ended, walk);
      if (agrees) agree(scores, tile, scoring, begins, agreements++, rows_begun, walk.row - clusters);
      STAMP(9);
      if (scoring) publish(scores, tile);
      STAMP(12);

      ptx::wgmma_wait_group<0>();
      ptx::wgmma_touch(out[0]);
      ptx::wgmma_touch(out[1]);
      if (weighing && leads_warp()) {
        barriers.template arrive<Edge::own_free>(RingPosition<P.own_stages>(weighed).slot);
        barriers.template arrive<Edge::probs_free>(RingPosition<P.probs_own_stages>(weighed).slot);
      }
      STAMP(13);
      if (weighed_ends) {
        write_row(row_done, rows_done);
        ++rows_done;
        row_done += clusters;
      }
      STAMP(14);
      if (begins) ++rows_begun;
      ends = ends << 1 | (ended ? 1 : 0);
      if (scoring) walk.advance(args);
      else walk.turn = 32;  // past every agreement
    }
  }

 private:
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

  // Peer values into fragments, and the accumulator into the frames of the peer's probabilities.
  __device__ __forceinline__ void begin_peer_values(std::uint32_t tile, bool weighing, bool begins, bool ends,
                                                    ValueFragments& values, bool& move_again) {
    const RingPosition<P.peer_stages> peer(tile);
    const RingPosition<P.probs_own_stages> own(tile);
    const RingPosition<P.probs_peer_stages> there(tile);
    if (weighing) barriers.template wait<Edge::peer_ready>(peer.slot, peer.full_parity());
    load_values(values, peer_panel(tile), tid());
    if (!weighing) return;
    barriers.template wait<Edge::probs_ready>(own.slot, own.full_parity());
    barriers.template wait<Edge::peer_probs_ready>(there.slot, there.full_parity());
    const std::uint32_t lane = tid() & 31;
    Frames peer_frames, own_frames;
    load_frames(peer_frames, frame_peer(tile) + lane * 16);
    load_frames(own_frames, frame_own(tile) + lane * 16);
    if (begins)
#pragma unroll
      for (int i = 0; i < 4; ++i) frames[i] = peer_frames[i];
    if (!__any_sync(0xFFFFFFFFu, differ(peer_frames, frames) || differ(own_frames, frames))) return;
    change_frames(out, frames, peer_frames, lane);
    move_again = true;
    if (!ends) follow_peer(tile);  // otherwise the softmax is in the next row already
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

  __device__ __forceinline__ void end_peer_values(std::uint32_t tile, bool weighing) const {
    if (weighing && leads_warp()) {
      barriers.template arrive<Edge::peer_free>(RingPosition<P.peer_stages>(tile).slot);
      barriers.template arrive_at_peer<Edge::peer_probs_free>(RingPosition<P.probs_peer_stages>(tile).slot, rank ^ 1);
    }
  }

  __device__ __forceinline__ void wait_for_keys(std::uint32_t tile, bool scoring, bool begins,
                                                std::uint32_t rows_begun) const {
    if (!scoring) return;
    const RingPosition<P.rest_stages> rest(tile);
    const RingPosition<P.own_stages> own(tile);
    if (begins) barriers.template wait<Edge::q_ready>(0, RingPosition<1>(rows_begun).full_parity());
    barriers.template wait<Edge::rest_ready>(rest.slot, rest.full_parity());
    barriers.template wait<Edge::own_ready>(own.slot, own.full_parity());
  }

  __device__ __forceinline__ void issue(float (&scores)[32], std::uint32_t tile) const {
    const RingPosition<P.rest_stages> rest(tile);
    const std::uint32_t rest_at = address(shared.rest) + rest.slot * sizeof(shared.rest[0]);
    issue_scores<P>(scores, query, address(shared.q_own) + group * 64 * 128,
                    address(shared.q_rope) + group * 64 * kRopeDims, rest_at,
                    rest_at + static_cast<std::uint32_t>(offsetof(typename Shared<P>::Rest, rope)),
                    address(shared.own) + RingPosition<P.own_stages>(tile).slot * sizeof(shared.own[0]));
  }

  __device__ __forceinline__ void end_scores(std::uint32_t tile, bool scoring, bool ended, const RowWalk& walk) {
    if (!scoring) return;
    if (leads_warp()) {
      barriers.template arrive<Edge::rest_free>(RingPosition<P.rest_stages>(tile).slot);
      if (ended) barriers.template arrive<Edge::q_free>(0);
    }
    if (ended && walk.row + walk.step < args.rows)
      load_query_fragments(query, args, walk.row + walk.step, rank, group, tid());
  }

  // The CTAs bring their frames to the maximum of both so far. On the first turn of a row (and once behind the last row)
  // what they tell each other also completes the row before.
  __device__ __forceinline__ void agree(const float (&scores)[32], std::uint32_t tile, bool scoring, bool begins,
                                        std::uint32_t number, std::uint32_t rows_begun, std::uint32_t row_before) {
    const std::uint32_t lane = tid() & 31;
    const std::uint32_t head = group * 64 + (tid() >> 5) * 16 + (lane >> 2) + (lane & 1) * 8;
    const RingPosition<2> at(number);
    const std::uint32_t slot = at.slot * kMmaGroups + group;
    const uint2 used = scoring ? ptx::ld_shared_v2(address(shared.used[RingPosition<P.own_stages>(tile).slot])) : uint2{};
    float highest[2];
    tile_maxima(highest, scores, scale, used, lane);
    const float sum[2] = {quad_sum(soft.sum[0]), quad_sum(soft.sum[1])};
    const float top[2] = {__int_as_float(max(quad_max(soft.maximum[0]), 0)),
                          __int_as_float(max(quad_max(soft.maximum[1]), 0))};
    const FrameMessage here{pick(sum, lane), pick(soft.frame, lane), pick(top, lane), pick(highest, lane)};
    const FrameMessage there = exchange(here, slot, at.full_parity(), address(shared.message[at.slot][head]), lane);
    if (begins && rows_begun > 0) finish(here, there, row_before, rows_begun - 1, head, lane);

    const float tile_max = fmaxf(here.tile_max, there.tile_max);
    float frame = tile_max == kMinusInfinity ? kNoFrame : tile_max - kFirstOctave;
    if (!begins) frame = fmaxf(frame, fmaxf(here.frame, there.frame));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float agreed = __shfl_sync(0xFFFFFFFFu, frame, (lane & 28) + r);
      if (begins) {
        soft.sum[r] = 0.0f;
        soft.maximum[r] = 0;
      } else {
        raise_frame(soft, r, agreed - soft.frame[r]);
      }
      soft.frame[r] = agreed;
    }
    frameless = __any_sync(0xFFFFFFFFu, soft.frame[0] == kNoFrame || soft.frame[1] == kNoFrame);
  }

  __device__ __forceinline__ FrameMessage exchange(const FrameMessage& here, std::uint32_t slot, std::uint32_t parity,
                                                   std::uint32_t message, std::uint32_t lane) const {
    const std::uint32_t ready = barriers.template at<Edge::message_ready>(slot);
    if (tid() == 0) ptx::mbarrier_arrive_expect_tx(ready, 64 * sizeof(FrameMessage));
    if ((lane & 3) < 2)
      ptx::st_async_v4(ptx::mapa(message, rank ^ 1),
                       make_uint4(__float_as_uint(here.sum), __float_as_uint(here.frame), __float_as_uint(here.maximum),
                                  __float_as_uint(here.tile_max)),
                       ptx::mapa(ready, rank ^ 1));
    barriers.template wait<Edge::message_ready>(slot, parity);
    const uint4 words = ptx::ld_shared_v4(message);
    return {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)};
  }

  __device__ __forceinline__ void finish(const FrameMessage& here, const FrameMessage& there, std::uint32_t row,
                                         std::uint32_t number, std::uint32_t head, std::uint32_t lane) {
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

  __device__ __forceinline__ void publish(float (&scores)[32], std::uint32_t tile) {
    const std::uint32_t lane = tid() & 31;
    const uint2 used = ptx::ld_shared_v2(address(shared.used[RingPosition<P.own_stages>(tile).slot]));
    if (frameless) {
      find_frames<P>(scores, soft, scale, used, lane);
      frameless = __any_sync(0xFFFFFFFFu, soft.frame[0] == kNoFrame || soft.frame[1] == kNoFrame);
    }
    std::uint32_t packed[8];
    make_probabilities<P>(scores, soft, scale, used, lane, packed);
    const RingPosition<P.probs_own_stages> at(tile);
    STAMP(10);
    barriers.template wait<Edge::probs_free>(at.slot, at.empty_parity());
    STAMP(11);
    store_probabilities(packed, soft, probs_own(tile), frame_own(tile), group * 64 + (tid() >> 5) * 16, lane);
    __syncwarp();
    if (leads_warp()) barriers.template arrive<Edge::probs_written>(at.slot);
  }

  // The finished row, number `number` of this CTA: into its last frame, divided, rounded to bf16, stored.
  __device__ __forceinline__ void write_row(std::uint32_t row, std::uint32_t number) {
    const RingPosition<4> at(number);
    barriers.template wait<Edge::scales_ready>(at.slot, at.full_parity());
    const std::uint32_t lane = tid() & 31, warp = tid() >> 5;
    Frames last;
    load_frames(last, address(shared.frame_out[at.slot]) + lane * 16);
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
