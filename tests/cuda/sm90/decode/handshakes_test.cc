// All interleavings of a scaled-down decode CTA: no deadlock, and nobody reads a buffer before it is written or after
// it is written again. The edges are those of src/cuda/sm90/decode/handshakes.h; a warpgroup is one thread here.
#include "cuda/sm90/decode/handshakes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace sparse_mla::cuda::sm90::decode {
namespace {

struct Rings {
  int kv, p, frames;
};
constexpr int kMostRing = 5;
Rings rings{};  // of the model at hand

struct Step {
  enum Kind { kWait, kArrive, kWrite, kRead } kind;
  int object;  // barrier or buffer
  int value;   // kWait: completions that must have happened; kWrite, kRead: the block
};
using Program = std::vector<Step>;

// Barriers and buffers, one per ring place.
enum Names { kKvFull, kKvFree, kPFull, kPFree, kFrameRight, kKv, kP, kMove };
int ring(Names name) {
  if (name == kKvFull || name == kKvFree || name == kKv) return rings.kv;
  return name == kMove || name == kFrameRight ? rings.frames : rings.p;
}
int place(Names name, int block) { return name * kMostRing + block % ring(name); }

struct Model {
  std::vector<Program> roles;
  std::vector<int> arrivals = std::vector<int>(5 * kMostRing);  // per phase
};

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
  Model m;
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
  const int per_phase[] = {1, 2, 1, 1, 1};
  for (int i = 0; i < 5 * kMostRing; ++i) m.arrivals[i] = per_phase[i / kMostRing];
  return m;
}

// narrow.cuh.
Model narrow(int blocks, Rings of) {
  rings = of;
  Model m;
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
  const int per_phase[] = {1, 2, 1, 1, 1};
  for (int i = 0; i < 5 * kMostRing; ++i) m.arrivals[i] = per_phase[i / kMostRing];
  return m;
}

struct State {
  std::vector<int> at;       // next step of every role
  std::vector<int> arrived;  // per barrier, in all
  std::vector<int> holds;    // per buffer: the block written last
  auto operator<=>(const State&) const = default;
};

// The first fault in any interleaving.
std::optional<std::string> fault_of(const Model& m) {
  State start{std::vector<int>(m.roles.size()), std::vector<int>(5 * kMostRing), std::vector<int>(8 * kMostRing, -1)};
  std::set<State> seen{start};
  std::vector<State> open{start};
  while (!open.empty()) {
    const State state = open.back();
    open.pop_back();
    bool done = true, moved = false;
    for (std::size_t role = 0; role < m.roles.size(); ++role) {
      if (state.at[role] == std::ssize(m.roles[role])) continue;
      done = false;
      const Step& step = m.roles[role][state.at[role]];
      State next = state;
      ++next.at[role];
      if (step.kind == Step::kWait) {
        if (state.arrived[step.object] / m.arrivals[step.object] < step.value) continue;
        // A parity wait that is two phases late would block: it can't tell them apart.
        if (step.value > 0 && state.arrived[step.object] / m.arrivals[step.object] > step.value) {
          return "role " + std::to_string(role) + " waits for a phase that is gone";
        }
      }
      if (step.kind == Step::kArrive) ++next.arrived[step.object];
      if (step.kind == Step::kWrite) next.holds[step.object] = step.value;
      if (step.kind == Step::kRead && state.holds[step.object] != step.value) {
        return "role " + std::to_string(role) + " reads block " + std::to_string(state.holds[step.object]) + " for " +
               std::to_string(step.value);
      }
      moved = true;
      if (seen.insert(next).second) open.push_back(next);
    }
    if (!done && !moved) return "deadlock";
  }
  return std::nullopt;
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
