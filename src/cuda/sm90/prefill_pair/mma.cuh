// The two MMA warpgroups. In turn t each of them weighs the values of tile t - 2, scores tile t, and turns the scores
// into probabilities:
//
//   WG 0   values (t - 2), scores (t) | softmax (t)                | values (t - 1), scores (t + 1) | ...
//   WG 1   softmax (t - 1)            | values (t - 2), scores (t) | softmax (t)                    | ...
//
// One warpgroup has the tensor cores while the other one has the rest of the SM. Probabilities lag two turns behind, so
// neither the other warpgroup nor the peer CTA is ever waited for in step. Rows follow each other without a break: the
// last two tiles of a row are weighed while the next row is being scored.
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

namespace sparse_mla::cuda::sm90::prefill_pair {

template <Policy P>
struct Mma {
  const Args& args;
  Shared<P>& shared;
  Barriers<P> barriers;
  std::uint32_t base;       // shared::cta address of `shared`
  std::uint32_t peer_base;  // shared::cluster address of the peer's
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
    std::uint32_t row_done;  // the row that is written next
    std::uint32_t rows_done = 0;
    std::uint32_t ends = 0;   // bit n: tile - 1 - n was the last of its row
    std::uint32_t third = 0;  // tile % 3, and how often that began anew
    std::uint32_t third_lap = 0;

    // That of the weighed tile, tile - 2.
    __device__ std::uint32_t weighed_third() const { return third == 2 ? 0 : third + 1; }
    // That of tile - 1.
    __device__ std::uint32_t before_third() const { return third == 0 ? 2 : third - 1; }
    __device__ bool weighing() const { return tile >= kLag; }
    // 0 where the weighed tile is the first of its row, else 1.
    __device__ std::uint32_t weighed_continues() const { return tile == kLag ? 0 : ~(ends >> 2) & 1; }
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
    ValueFragments own_values = {};
    while (at.row_done < args.rows) {
      const std::uint32_t ended = turn(at, clusters, own_values);
      if (at.weighed_ends()) {
        write_row(at.row_done, at.rows_done++);
        at.row_done += clusters;
      }
      if (at.begins()) ++at.rows_begun;
      if (at.agrees()) ++at.agreements;
      if (++at.third == 3) {
        at.third = 0;
        ++at.third_lap;
      }
      at.ends = at.ends << 1 | ended;
      ++at.tile;
      ++at.turn;
      if (ended != 0) {
        at.turn = 0;
        at.row += clusters;
      }
    }
  }

 private:
  // One turn. 1 where the scored tile was the last of its row, else 0. own_values are those of tile t - 2 on
  // entry and of tile t - 1 on exit: they are taken under the softmax.
  __device__ __forceinline__ std::uint32_t turn(const Where& at, std::uint32_t clusters, ValueFragments& own_values) {
    const bool scoring = at.row < args.rows;
    float scores[32];
    ValueFragments peer_values;
    wait_for_tiles(at, scoring);
    const bool move_between = begin_values(at, peer_values);
    if constexpr (P.take_turns) ptx::bar_sync(kScoresTurnBarrier + group, kScoresTurnThreads);

    settle(own_values);
    settle(peer_values);
    ptx::wgmma_fence();
    issue_values(out, own_values, probs_own(at), at.weighed_continues() != 0);
    ptx::wgmma_commit_group();
    if (move_between) {
      ptx::wgmma_wait_group<0>();
      move_to(frame_peer(at));
    }
    ptx::wgmma_fence();
    issue_values(out, peer_values, probs_peer(at), true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();  // the scores take the registers of own_values
    issue(scores, at);
    ptx::wgmma_commit_group();
    if constexpr (P.take_turns) ptx::bar_arrive(kScoresTurnBarrier + (group ^ 1), kScoresTurnThreads);
    const uint4 facts = ptx::ld_shared_v4(info(at));
    const uint2 used = make_uint2(scoring ? facts.x : 0, scoring ? facts.y : 0);
    const std::uint32_t ended = __reduce_or_sync(0xFFFFFFFFu, facts.z) & (scoring ? 1u : 0u);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_touch(scores);
    ptx::wgmma_touch(out[0]);
    ptx::wgmma_touch(out[1]);
    release(at, scoring, ended != 0);
    if (ended != 0 && at.row + clusters < args.rows)
      load_query_fragments(query, args, at.row + clusters, rank, group, tid());
    if (at.begins()) begin_row(scores, at, used, at.row - clusters);
    if (scoring) {
      publish(scores, at, used, own_values);
    } else if (at.begins()) {
      take_own_values(at, own_values);  // behind the last row there is one more tile to weigh
    }
    return ended;
  }

  // Shared addresses: of a member of Shared, here and in the peer CTA.
  template <class T>
  __device__ std::uint32_t offset(const T& member) const {
    return static_cast<std::uint32_t>(reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&shared));
  }
  template <class T>
  __device__ std::uint32_t address(const T& member) const {
    return base + offset(member);
  }
  template <class T>
  __device__ std::uint32_t peer_address(const T& member) const {
    return peer_base + offset(member);
  }
  // With a lag of two turns and rings of two, tile t - 2 lies where tile t does; own[] and probs_own have three slots.
  static_assert(kLag == 2 && P.peer_stages == 2 && P.probs_peer_stages == 2 && P.own_stages == 3 &&
                P.probs_own_stages == 3);
  __device__ static std::uint32_t two(const Where& at) { return at.tile & 1; }
  __device__ std::uint32_t probs_own(const Where& at) const {
    return address(shared.probs_own) + at.weighed_third() * sizeof(shared.probs_own[0]);
  }
  __device__ std::uint32_t probs_peer(const Where& at) const {
    return address(shared.probs_peer) + two(at) * sizeof(shared.probs_peer[0]);
  }
  __device__ std::uint32_t frame_own(const Where& at) const {
    return address(shared.frame_own) + at.weighed_third() * sizeof(shared.frame_own[0]);
  }
  __device__ std::uint32_t frame_peer(const Where& at) const {
    return address(shared.frame_peer) + two(at) * sizeof(shared.frame_peer[0]);
  }

  // The fragments of own tokens of tile t - 1, which turn t + 1 weighs. Nothing has to be waited for: they were scored.
  __device__ __forceinline__ void take_own_values(const Where& at, ValueFragments& values) const {
    load_values(values, address(shared.own) + at.before_third() * sizeof(shared.own[0]) + group * (kOwnTokens * 128),
                tid());
    ptx::mbarrier_arrive_if(barriers.template at<Edge::own_free>(at.before_third()), at.tile >= 1 && leads_warp());
  }

  // Both halves of the weighed tile with their probabilities, the keys of the scored one, and its queries.
  __device__ __forceinline__ void wait_for_tiles(const Where& at, bool scoring) const {
    const std::uint32_t values_parity = at.tile >> 1 & 1 ^ 1, keys_parity = at.third_lap & 1;
    if (scoring && at.begins()) barriers.template wait<Edge::q_ready>(group, at.rows_begun & 1);
    if (scoring && at.weighing()) {
      barriers.template wait_two<Edge::values_ready, Edge::keys_ready>(two(at), values_parity, at.third, keys_parity);
    } else if (scoring) {
      barriers.template wait<Edge::keys_ready>(at.third, keys_parity);
    } else {
      barriers.template wait<Edge::values_ready>(two(at), values_parity);
    }
  }

  // The fragments of the peer's tokens of the weighed tile, and the accumulator into the frames of own probabilities.
  // Says whether it must move again for the peer's. (Before the first weighed tile this is about garbage.)
  __device__ __forceinline__ bool begin_values(const Where& at, ValueFragments& peer) {
    const std::uint32_t lane = tid() & 31;
    Frames own_frames, peer_frames;
    load_frames(own_frames, frame_own(at), lane);
    load_frames(peer_frames, frame_peer(at), lane);
    load_values(peer, address(shared.peer) + two(at) * sizeof(shared.peer[0]) + group * (kOwnTokens * 128), tid());
    ptx::mbarrier_arrive_if(barriers.template at<Edge::peer_free>(two(at)), at.weighing() && leads_warp());
    const bool continues = at.weighed_continues() != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) frames[i] = continues ? frames[i] : own_frames[i];
    if (!__any_sync(0xFFFFFFFFu, differ(own_frames, frames) || differ(peer_frames, frames))) return false;
    change_frames(out, frames, own_frames, lane);
    const bool move_between = __any_sync(0xFFFFFFFFu, differ(peer_frames, frames));
    // At a row's end the softmax is in the next row already.
    if (move_between && at.weighing() && !at.weighed_ends()) follow_peer(frame_peer(at));
    return move_between;
  }

  __device__ __forceinline__ void move_to(std::uint32_t frames_at) {
    Frames to;
    load_frames(to, frames_at, tid() & 31);
    change_frames(out, frames, to, tid() & 31);
  }

  // Own frames rise to those of the peer's tile, so that the accumulator need not move to and fro.
  __device__ __forceinline__ void follow_peer(std::uint32_t frames_at) {
    const std::uint32_t lane = tid() & 31;
    const std::uint32_t head = group * 64 + (tid() >> 5) * 16 + (lane >> 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float theirs = ptx::ld_shared_f32(frames_at + 4 * (head + r * 8));
      if (theirs <= soft.frame[r]) continue;
      raise_frame(soft, r, theirs - soft.frame[r]);
      soft.frame[r] = theirs;  // bit for bit
    }
  }

  __device__ std::uint32_t info(const Where& at) const {
    return address(shared.info) + at.third * sizeof(shared.info[0]);
  }

  __device__ __forceinline__ void issue(float (&scores)[32], const Where& at) const {
    const std::uint32_t rest = address(shared.rest) + two(at) * sizeof(shared.rest[0]);
    issue_scores<P>(scores, query, address(shared.q_own) + group * 64 * 128, address(shared.q_tail) + group * 64 * 128,
                    address(shared.q_rope) + group * 64 * kRopeDims, rest,
                    rest + static_cast<std::uint32_t>(offsetof(typename Shared<P>::Rest, rope)),
                    address(shared.own) + at.third * sizeof(shared.own[0]));
  }

  // What the products of this turn have read. Lanes 0 to 2, so that the arrivals are one instruction.
  __device__ __forceinline__ void release(const Where& at, bool scoring, bool ended) const {
    const std::uint32_t lane = tid() & 31;
    const std::uint32_t here = barriers.template at<Edge::probs_free>(at.weighed_third());
    const std::uint32_t there = barriers.template at<Edge::peer_probs_free>(two(at)) - base + peer_base;
    const std::uint32_t rest = barriers.template at<Edge::rest_free>(two(at));
    const std::uint32_t lanes = (at.weighing() ? 3u : 0u) | (scoring ? 4u : 0u);
    ptx::mbarrier_arrive_cluster_if(lane == 0 ? here : lane == 1 ? there : rest, (lanes >> lane & 1) != 0);
    if (ended) ptx::mbarrier_arrive_if(barriers.template at<Edge::q_free>(group), lane == 0);
  }

  // This lane's head of the two, in the CTA.
  __device__ __forceinline__ std::uint32_t lane_head() const {
    const std::uint32_t lane = tid() & 31;
    return group * 64 + (tid() >> 5) * 16 + (lane >> 2) + (lane & 1) * 8;
  }

  // On the first turn of a row (and once behind the last row) the CTAs agree on the row's first frames, and what they
  // tell each other completes the row before.
  __device__ __forceinline__ void begin_row(const float (&scores)[32], const Where& at, uint2 used,
                                            std::uint32_t row_before) {
    const std::uint32_t lane = tid() & 31;
    float highest[2];
    tile_maxima(highest, scores, scale, used, lane);
    const float sum[2] = {quad_sum(soft.sum[0]), quad_sum(soft.sum[1])};
    const float top[2] = {quad_top(soft.maximum[0]), quad_top(soft.maximum[1])};
    const FrameMessage here{pick(sum, lane), pick(soft.frame, lane), pick(top, lane), pick(highest, lane)};
    send(here, at.agreements);
    const FrameMessage there = receive(at.agreements);
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

  // On some later turns they bring their frames to the maximum of both so far, which `x` (log2 of probabilities in the
  // frames so far) counts in. `x` becomes probabilities, while the peer's message is on its way.
  __device__ __forceinline__ void meet_peer(float (&x)[32], std::uint32_t agreement) {
    const std::uint32_t lane = tid() & 31;
    const float top[2] = {quad_top(soft.maximum[0]), quad_top(soft.maximum[1])};
    const FrameMessage here{0.0f, pick(soft.frame, lane), pick(top, lane), 0.0f};
    send(here, agreement);
    const bool exponents_first = !__any_sync(0xFFFFFFFFu, fmaxf(top[0], top[1]) > kSafeOctave);
    if (exponents_first) exponentiate(x);
    const FrameMessage there = receive(agreement);
    const float highest = fmaxf(here.frame + here.maximum, there.frame + there.maximum);
    const float frame = fmaxf(fmaxf(here.frame, there.frame), highest - kFirstOctave);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float agreed = __shfl_sync(0xFFFFFFFFu, frame, (lane & 28) + r);
      const float rise = agreed - soft.frame[r];
      raise_frame(soft, r, rise);
      soft.frame[r] = agreed;
      if (exponents_first)
        scale_down(x, r, ptx::ex2(-rise));
      else
        lower(x, r, rise);
    }
    if (!exponents_first) exponentiate(x);
  }

  // To the same lane of the peer CTA, about its head, and from it.
  __device__ std::uint32_t message(std::uint32_t agreement) const {
    return offset(shared.message) + ((agreement & 1) * kHeads + lane_head()) * sizeof(FrameMessage);
  }
  __device__ std::uint32_t message_ready(std::uint32_t agreement) const {
    return barriers.template at<Edge::message_ready>((agreement & 1) * kMmaGroups + group);
  }
  __device__ __forceinline__ void send(const FrameMessage& here, std::uint32_t agreement) const {
    const std::uint32_t ready = message_ready(agreement);
    if (tid() == 0) ptx::mbarrier_arrive_expect_tx(ready, 64 * sizeof(FrameMessage));
    if ((tid() & 3) < 2)
      ptx::st_async_v4(peer_base + message(agreement),
                       make_uint4(__float_as_uint(here.sum), __float_as_uint(here.frame), __float_as_uint(here.maximum),
                                  __float_as_uint(here.tile_max)),
                       ready - base + peer_base);
  }
  __device__ __forceinline__ FrameMessage receive(std::uint32_t agreement) const {
    barriers.template wait<Edge::message_ready>((agreement & 1) * kMmaGroups + group, agreement >> 1 & 1);
    const uint4 words = ptx::ld_shared_v4(base + message(agreement));
    return {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)};
  }

  __device__ __forceinline__ void finish(const FrameMessage& here, const FrameMessage& there, std::uint32_t row,
                                         std::uint32_t number) {
    const std::uint32_t lane = tid() & 31, head = lane_head();
    const std::uint32_t head_in_all = args.head_block_of(row) * kHeads + head;
    const FinishedHead done =
        finish_head(here, there, args.attn_sink == nullptr ? nullptr : args.attn_sink + head_in_all);
    if ((lane & 3) < 2) {
      const std::size_t at = static_cast<std::size_t>(row) * kHeads + head;
      if (rank == 0)
        args.lse[at] = done.lse;
      else
        args.max_logits[at] = done.max_logit;
      ptx::st_shared_f32(address(shared.scale_out) + (number % 4 * kHeads + head) * 4, done.scale);
      ptx::st_shared_f32(address(shared.frame_out) + (number % 4 * kHeads + head) * 4, done.frame);
    }
    barriers.template arrive<Edge::scales_ready>(number % 4);
  }

  __device__ __forceinline__ void publish(float (&scores)[32], const Where& at, uint2 used,
                                          ValueFragments& own_values) {
    const std::uint32_t lane = tid() & 31;
    // Valid tokens are the same for all heads, so either all of them lack a frame or none does.
    if (soft.frame[0] == kNoFrame) find_frames(scores, soft, scale, used, lane);
    scale_scores(scores, soft, scale, used, lane);
    take_own_values(at, own_values);
    if (at.agrees() && !at.begins()) {
      meet_peer(scores, at.agreements);
    } else {
      if (passes_limit(soft)) hold_limit(scores, soft);
      exponentiate(scores);
    }
    std::uint32_t packed[8];
    pack_probabilities(scores, soft, packed);
    barriers.template wait<Edge::probs_free>(at.third, at.third_lap & 1 ^ 1);
    store_probabilities(packed, soft, address(shared.probs_own) + at.third * sizeof(shared.probs_own[0]),
                        address(shared.frame_own) + at.third * sizeof(shared.frame_own[0]),
                        group * 64 + (tid() >> 5) * 16, lane);
    __syncwarp();
    ptx::mbarrier_arrive_if(barriers.template at<Edge::probs_written>(at.third), lane == 0);
  }

  // The finished row, number `number` of this CTA: into its last frame, divided, rounded to bf16, stored.
  __device__ __forceinline__ void write_row(std::uint32_t row, std::uint32_t number) {
    const RingPosition<4> at(number);
    barriers.template wait<Edge::scales_ready>(at.slot, at.full_parity());
    const std::uint32_t lane = tid() & 31, warp = tid() >> 5;
    Frames last;
    load_frames(last, address(shared.frame_out) + at.slot * (kHeads * 4), lane);
    if (__any_sync(0xFFFFFFFFu, differ(last, frames))) change_frames(out, frames, last, lane);
    const std::uint32_t odd = lane >> 2 & 1;
    const std::uint32_t dim = rank * kHalfDims + group * 128 + warp * 32 + odd * 16 + (lane >> 3) * 4;
    const std::uint32_t scales = address(shared.scale_out) + at.slot * (kHeads * 4) + (lane & 3) * 8;
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
        *reinterpret_cast<uint2*>(to + (block * 8 + h) * kValueDims) =
            odd != 0 ? make_uint2(got, high) : make_uint2(low, got);
      }
    }
  }
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
