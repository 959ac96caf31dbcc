// All interleavings of a scaled-down decode CTA: no deadlock, and nobody reads a buffer before it is written or after
// it is written again. The edges are those of src/cuda/sm90/decode/handshakes.h; a warpgroup is one thread here.
#include "cuda/sm90/decode/handshakes.h"


#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/sync/interleavings.h"

namespace sparse_mla::cuda::sm90::decode {
namespace {

using sync::fault_of;
using sync::Model;
using sync::Program;
using sync::Step;

struct Rings {
  int kv, p, frames;
};
constexpr int kMostRing = 5;
Rings rings{};  // of the model at hand

// Barriers and buffers, one per ring place.
enum Names { kKvFull, kKvFree, kPFull, kPFree, kFrameRight, kKv, kP, kMove };
int ring(Names name) {
  if (name == kKvFull || name == kKvFree || name == kKv) return rings.kv;
  return name == kMove || name == kFrameRight ? rings.frames : rings.p;
}
int place(Names name, int block) { return name * kMostRing + block % ring(name); }

// A model without roles: what a phase of each barrier counts, and how many buffers there are.
Model empty_model() {
  Model m{{}, {}, 8 * kMostRing};
  for (const int arrivals : {1, 2, 1, 1, 1}) m.arrivals.insert(m.arrivals.end(), kMostRing, arrivals);
  return m;
}

void wait_full(Program& p, Names name, int block) {
  p.push_back({Step::kWait, place(name, block), block / ring(name) + 1});
}
void wait_free(Program& p, Names name, int block) {
  p.push_back({Step::kWait, place(name, block), block / ring(name)});
}
void arrive(Program& p, Names name, int block) { p.push_back({Step::kArrive, place(name, block), 0}); }
void write(Program& p, Names name, int block) { p.push_back({Step::kWrite, place(name, block), block}); }
void read(Program& p, Names name, int block) { p.push_back({Step::kRead, place(name, block), block}); }

Program gather(int blocks) {
  Program p;
  for (int j = 0; j < blocks; ++j) {
    wait_free(p, kKvFree, j);
    write(p, kKv, j);
    arrive(p, kKvFull, j);
  }
  return p;
}

void score(Program& p, int j) {
  wait_full(p, kKvFull, j);
  read(p, kKv, j);
}
void settle(Program& p, int j) {
  if (j > 0) {
    wait_full(p, kFrameRight, j - 1);
    read(p, kMove, j - 1);
  }
  write(p, kMove, j);
  arrive(p, kFrameRight, j);
}
void publish(Program& p, int j) {
  write(p, kP, j);
  arrive(p, kPFull, j);
}
void weigh(Program& p, int j) {
  wait_full(p, kPFull, j);
  read(p, kMove, j);
  read(p, kP, j);
  read(p, kKv, j);
}

// wide.cuh.
Model wide(int blocks, Rings of) {
  rings = of;
  Model m = empty_model();
  m.roles.push_back(gather(blocks));
  for (int group = 0; group < 2; ++group) {
    Program p;
    const auto weigh_and_release = [&](int j) {
      weigh(p, j);
      arrive(p, kKvFree, j);
      if (j % 2 != group) arrive(p, kPFree, j);
    };
    for (int j = group; j < blocks; j += 2) {
      score(p, j);
      settle(p, j);
      wait_free(p, kPFree, j);
      if (j > 0) {
        wait_full(p, kKvFull, j - 1);
        publish(p, j);  // the softmax runs between the products of block j - 1
        weigh_and_release(j - 1);
      } else {
        publish(p, j);
      }
      weigh_and_release(j);
    }
    if ((blocks - 1) % 2 != group) {
      wait_full(p, kKvFull, blocks - 1);
      weigh_and_release(blocks - 1);
    }
    m.roles.push_back(p);
  }
  return m;
}

// narrow.cuh.
Model narrow(int blocks, Rings of) {
  rings = of;
  Model m = empty_model();
  m.roles.push_back(gather(blocks));
  for (int group = 0; group < 2; ++group) {
    Program p;
    for (int j = group; j < blocks; j += 2) {
      score(p, j);
      arrive(p, kKvFree, j);
      wait_free(p, kPFree, j);
      settle(p, j);
      publish(p, j);
    }
    m.roles.push_back(p);
  }
  Program p;
  for (int j = 0; j < blocks; ++j) {
    wait_full(p, kKvFull, j);
    weigh(p, j);
    arrive(p, kKvFree, j);
    arrive(p, kPFree, j);
  }
  m.roles.push_back(p);
  return m;
}

// The kernels' own rings: slots_of(), Policy::p_buffers(), kFrames.
TEST(DecodeHandshakes, NoInterleavingOfTheNarrowKernelDeadlocksOrReadsAStaleBuffer) {
  for (const int slots : {2, 3, 4, 5}) {
    for (const int blocks : {1, 2, 3, 9})
      EXPECT_EQ(fault_of(narrow(blocks, {slots, 4, kFrames})), std::nullopt)
          << slots << " slots, " << blocks << " blocks";
  }
}
TEST(DecodeHandshakes, NoInterleavingOfTheWideKernelDeadlocksOrReadsAStaleBuffer) {
  for (const int slots : {2, 3, 4}) {
    for (const int blocks : {1, 2, 3, 10})
      EXPECT_EQ(fault_of(wide(blocks, {slots, 2, kFrames})), std::nullopt)
          << slots << " slots, " << blocks << " blocks";
  }
}

// A model that finds nothing proves nothing: each wait is needed, and so are four generations of frames.
TEST(DecodeHandshakes, EveryKindOfWaitIsNeeded) {
  for (const Names removed : {kKvFull, kKvFree, kPFull, kPFree, kFrameRight}) {
    Model m = narrow(7, {4, 2, 2});
    for (Program& program : m.roles) {
      std::erase_if(program, [&](const Step& s) { return s.kind == Step::kWait && s.object / kMostRing == removed; });
    }
    EXPECT_NE(fault_of(m), std::nullopt) << "without edge " << removed;
  }
}
TEST(DecodeHandshakes, TwoGenerationsOfFramesAreTooFewForTheWideKernel) {
  EXPECT_NE(fault_of(wide(6, {3, 2, 2})), std::nullopt);
}

TEST(DecodeHandshakes, ArrivalCountsFollowFromTheRoles) {
  constexpr Policy kWidePolicy{KvFormat::kE4M3, 64, 8, 8, 4}, kNarrowPolicy{KvFormat::kE4M3, 16, 8, 8, 5};
  using W = Handshakes<kWidePolicy>;
  using N = Handshakes<kNarrowPolicy>;
  EXPECT_EQ(W::kv_full.arrivals, 2u * 4);   // rows, then scales, of four gather warps
  EXPECT_EQ(W::kv_free.arrivals, 8u);       // both warpgroups weigh
  EXPECT_EQ(N::kv_free.arrivals, 4u + 8u);  // one scores, two weigh
  EXPECT_EQ(W::p_free.arrivals, 4u);        // the other warpgroup
  EXPECT_EQ(N::p_free.arrivals, 8u);
  EXPECT_EQ(W::part_free.arrivals, 8u);
  EXPECT_EQ(N::part_free.arrivals, 16u);
}

}  // namespace
}  // namespace sparse_mla::cuda::sm90::decode
