// Every handshake of the kernel as data. No other file numbers a barrier or counts its arrivals.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/sm90/prefill_pair/policy.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

enum class Role : std::uint8_t { rest_loader, own_loader, peer_loader, courier, mma, peer_courier, peer_mma };

enum class Edge : std::uint8_t {
  rest_ready,
  rest_free,
  own_ready,
  own_free,
  peer_ready,
  peer_free,
  probs_written,
  probs_ready,
  probs_free,
  peer_probs_ready,
  peer_probs_free,
  q_ready,
  q_free,
  message_ready,
  scales_ready,
};
inline constexpr int kEdges = 15;

struct Handshake {
  Edge edge;
  Role from, to;
  int slots;     // mbarriers: turn (or row) number modulo slots picks one
  int arrivals;  // arrivals that complete a phase
  const char* protects;
};

template <Policy P>
inline constexpr std::array<Handshake, kEdges> kHandshakes = {{
    {Edge::rest_ready, Role::rest_loader, Role::mma, P.rest_stages, 1, "rest[slot] has landed and is fenced"},
    {Edge::rest_free, Role::mma, Role::rest_loader, P.rest_stages, kMmaWarps, "rest[slot]: its scores are complete"},
    {Edge::own_ready, Role::own_loader, Role::mma, P.own_stages, 1, "own[slot], info[slot]"},
    {Edge::own_free, Role::mma, Role::own_loader, P.own_stages, kMmaWarps, "own[slot]: scores and values are done"},
    {Edge::peer_ready, Role::peer_loader, Role::mma, P.peer_stages, 1, "peer[slot]"},
    {Edge::peer_free, Role::mma, Role::peer_loader, P.peer_stages, kMmaWarps, "peer[slot] is in registers"},
    {Edge::probs_written, Role::mma, Role::courier, P.probs_own_stages, kMmaWarps, "probs_own[slot], frame_own[slot]"},
    {Edge::probs_ready, Role::courier, Role::mma, P.probs_own_stages, 1, "the same, fenced for wgmma"},
    {Edge::probs_free, Role::mma, Role::mma, P.probs_own_stages, kMmaWarps + 1,
     "probs_own[slot]: its values are done, and (the courier's arrival) the peer has its copy"},
    {Edge::peer_probs_ready, Role::peer_courier, Role::mma, P.probs_peer_stages, 1, "probs_peer[slot], by bytes"},
    {Edge::peer_probs_free, Role::peer_mma, Role::courier, P.probs_peer_stages, kMmaWarps,
     "the peer's probs_peer[slot]: its values are done"},
    {Edge::q_ready, Role::courier, Role::mma, 1, 1, "q_own, q_rope, by bytes"},
    {Edge::q_free, Role::mma, Role::courier, 1, kMmaWarps, "q_own, q_rope: the row's last scores are complete"},
    {Edge::message_ready, Role::peer_mma, Role::mma, 2 * kMmaGroups, 1, "message[row % 2] of one WG's heads, by bytes"},
    {Edge::scales_ready, Role::mma, Role::mma, 4, kMmaWarps, "scale_out[row % 4], frame_out[row % 4]"},
}};

template <Policy P>
constexpr int first_barrier(Edge edge) {
  int first = 0;
  for (int e = 0; e < static_cast<int>(edge); ++e) first += kHandshakes<P>[e].slots;
  return first;
}
template <Policy P>
inline constexpr int kBarriers =
    first_barrier<P>(static_cast<Edge>(kEdges - 1)) + kHandshakes<P>[kEdges - 1].slots;

template <Policy P, Edge kEdge>
inline constexpr Handshake kHandshake = kHandshakes<P>[static_cast<int>(kEdge)];
template <Policy P, Edge kEdge>
inline constexpr int kFirstBarrier = first_barrier<P>(kEdge);

// Hardware barriers: which WG may issue its scores.
inline constexpr int kScoresTurnBarrier = 1;  // of WG 0; that of WG 1 is the next
inline constexpr int kScoresTurnThreads = 256;

}  // namespace sparse_mla::cuda::sm90::prefill_pair
