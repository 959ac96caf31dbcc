// What every role does in a turn, as data: which handshakes it waits for, what it reads and writes then, and which
// handshakes it gives. The kernel follows these lists; handshakes_test.cc proves that they are free of races and
// deadlocks, and that no wait in them is idle.
#pragma once

#include <cstdint>

#include "cuda/sm90/prefill_pair/handshakes.h"

namespace sparse_mla::cuda::sm90::prefill_pair {

enum class Buffer : std::uint8_t { rest, own, peer, probs_own, probs_peer, q, message, scale_out };

enum class Act : std::uint8_t {
  wait,
  read,
  write,
  arrive,
  arrive_at_peer,
  fetch,         // asynchronous: global memory -> `buffer` here, then its arrival at `edge` here
  send_probs,    // asynchronous: probs_own here -> probs_peer there, then its arrival at `edge` there
  send_message,  // asynchronous: registers -> message there, then its arrival at `edge` there
};

// A turn scores tile t. "back" counts from the thing at hand: tile t - back, the row or the agreement `back` before.
enum class When : std::uint8_t {
  scoring,       // t is a tile
  scored_before, // t - 1 is a tile
  weighing,      // t - 2 is a tile
  begins,        // t is the first tile of a row
  follows,       // t is the first tile of a row but not of the first one, or the turn behind the last row
  ends,          // t is the last tile of a row
  ends_and_more, // the same, and there is a next row
  agrees,        // the CTAs agree on frames, also behind the last row
  weighed_ends,  // t - 2 was the last tile of a row
};

struct Step {
  Act act;
  When when;
  int back = 0;
  Edge edge = {};
  Buffer buffer = {};
};

constexpr Step wait_for(Edge edge, When when, int back = 0) { return {Act::wait, when, back, edge, {}}; }
constexpr Step arrive_on(Edge edge, When when, int back = 0) { return {Act::arrive, when, back, edge, {}}; }
constexpr Step reads(Buffer buffer, When when, int back = 0) { return {Act::read, when, back, {}, buffer}; }
constexpr Step writes(Buffer buffer, When when, int back = 0) { return {Act::write, when, back, {}, buffer}; }

inline constexpr Step kRestLoaderSteps[] = {
    wait_for(Edge::rest_free, When::scoring),
    writes(Buffer::rest, When::scoring),
    arrive_on(Edge::keys_ready, When::scoring),
};
inline constexpr Step kOwnLoaderSteps[] = {
    wait_for(Edge::own_free, When::scoring),
    writes(Buffer::own, When::scoring),
    arrive_on(Edge::keys_ready, When::scoring),
};
inline constexpr Step kPeerLoaderSteps[] = {
    wait_for(Edge::peer_free, When::scoring),
    writes(Buffer::peer, When::scoring),
    arrive_on(Edge::values_ready, When::scoring),
};

// The first row's queries are fetched before the first turn.
inline constexpr Step kCourierSteps[] = {
    wait_for(Edge::q_free, When::ends_and_more, -1),
    {Act::fetch, When::ends_and_more, -1, Edge::q_ready, Buffer::q},
    wait_for(Edge::probs_written, When::scoring),
    arrive_on(Edge::values_ready, When::scoring),
    wait_for(Edge::peer_probs_free, When::scoring),
    arrive_on(Edge::probs_free, When::weighing, 2),
    {Act::send_probs, When::scoring, 0, Edge::values_ready, Buffer::probs_peer},
};

inline constexpr Step kMmaSteps[] = {
    wait_for(Edge::q_ready, When::begins),
    wait_for(Edge::values_ready, When::weighing, 2),
    wait_for(Edge::keys_ready, When::scoring),
    reads(Buffer::peer, When::weighing, 2),
    arrive_on(Edge::peer_free, When::weighing, 2),
    reads(Buffer::probs_own, When::weighing, 2),
    reads(Buffer::probs_peer, When::weighing, 2),
    reads(Buffer::q, When::scoring),
    reads(Buffer::rest, When::scoring),
    reads(Buffer::own, When::scoring),
    arrive_on(Edge::probs_free, When::weighing, 2),
    {Act::arrive_at_peer, When::weighing, 2, Edge::peer_probs_free, {}},
    arrive_on(Edge::rest_free, When::scoring),
    arrive_on(Edge::q_free, When::ends),
    {Act::send_message, When::agrees, 0, Edge::message_ready, Buffer::message},
    wait_for(Edge::message_ready, When::agrees),
    reads(Buffer::message, When::agrees),
    writes(Buffer::scale_out, When::follows, 1),
    arrive_on(Edge::scales_ready, When::follows, 1),
    reads(Buffer::own, When::scored_before, 1),
    arrive_on(Edge::own_free, When::scored_before, 1),
    wait_for(Edge::probs_free, When::scoring),
    writes(Buffer::probs_own, When::scoring),
    arrive_on(Edge::probs_written, When::scoring),
    wait_for(Edge::scales_ready, When::weighed_ends),
    reads(Buffer::scale_out, When::weighed_ends),
};

}  // namespace sparse_mla::cuda::sm90::prefill_pair
