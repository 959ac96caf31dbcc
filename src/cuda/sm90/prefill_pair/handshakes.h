// Every handshake of the kernel as data. No other file numbers a barrier or counts its arrivals.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/sm90/prefill_pair/policy.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

enum class Role : std::uint8_t { rest_loader, own_loader, peer_loader, courier, mma, peer_courier, peer_mma };

enum class Edge : std::uint8_t {
  keys_ready,
  rest_free,
  own_free,
  values_ready,
  peer_free,
  probs_written,
  probs_free,
  peer_probs_free,
  q_ready,
  q_free,
  message_ready,
  scales_ready,
};
inline constexpr int kEdges = 12;

struct Handshake {
  Edge edge;
  Role from, to;
  int slots;     // mbarriers: turn (or row) number modulo slots picks one
  int arrivals;  // arrivals that complete a phase
  const char* protects;
};

template <Policy P>
inline constexpr std::array<Handshake, kEdges> kHandshakes = {{
    {Edge::keys_ready, Role::rest_loader, Role::mma, P.own_stages, 2,
     "rest[], own[slot], info[slot] have landed and are fenced; one arrival of each of the two loaders"},
    {Edge::rest_free, Role::mma, Role::rest_loader, P.rest_stages, kMmaWarps, "rest[slot]: its scores are complete"},
    {Edge::own_free, Role::mma, Role::own_loader, P.own_stages, kMmaWarps,
     "own[slot]: scored, and its values are taken"},
    {Edge::values_ready, Role::courier, Role::mma, P.peer_stages, 2,
     "peer[slot] (arrival of its loader), probs_own[], frame_own[] fenced (arrival of the courier), probs_peer[slot], "
     "frame_peer[slot] (bytes from the peer's courier)"},
    {Edge::peer_free, Role::mma, Role::peer_loader, P.peer_stages, kMmaWarps, "peer[slot]: its values are taken"},
    {Edge::probs_written, Role::mma, Role::courier, P.probs_own_stages, kMmaWarps, "probs_own[slot], frame_own[slot]"},
    {Edge::probs_free, Role::mma, Role::mma, P.probs_own_stages, kMmaWarps + 1,
     "probs_own[slot]: its products are done, and (the courier's arrival) the peer has its copy"},
    {Edge::peer_probs_free, Role::peer_mma, Role::courier, P.probs_peer_stages, kMmaWarps,
     "the peer's probs_peer[slot]: its products are done"},
    {Edge::q_ready, Role::courier, Role::mma, kMmaGroups, 1, "q_own, q_tail, q_rope: the WG's 64 heads, by bytes"},
    {Edge::q_free, Role::mma, Role::courier, kMmaGroups, kMmaWarps / kMmaGroups,
     "the same: the row's last scores are complete"},
    {Edge::message_ready, Role::peer_mma, Role::mma, 2 * kMmaGroups, 1,
     "message[turn of agreement % 2], one WG's heads"},
    {Edge::scales_ready, Role::mma, Role::mma, 4, kMmaWarps * 32, "scale_out[row % 4], frame_out[row % 4]"},
}};

template <Policy P>
constexpr int first_barrier(Edge edge) {
  int first = 0;
  for (int e = 0; e < static_cast<int>(edge); ++e) first += kHandshakes<P>[e].slots;
  return first;
}
template <Policy P>
inline constexpr int kBarriers = first_barrier<P>(static_cast<Edge>(kEdges - 1)) + kHandshakes<P>[kEdges - 1].slots;

template <Policy P, Edge kEdge>
inline constexpr Handshake kHandshake = kHandshakes<P>[static_cast<int>(kEdge)];
template <Policy P, Edge kEdge>
inline constexpr int kFirstBarrier = first_barrier<P>(kEdge);

// Hardware barriers: which WG may issue its scores.
inline constexpr int kScoresTurnBarrier = 1;  // of WG 0; that of WG 1 is the next
inline constexpr int kScoresTurnThreads = 256;

}  // namespace sparse_mla::cuda::sm90::prefill_pair
