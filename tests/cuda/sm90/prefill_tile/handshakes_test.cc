// All interleavings of a scaled-down CTA: no deadlock, and nobody reads a buffer before it is written or after it is
// written again. The edges are those of src/cuda/sm90/prefill_tile/handshakes.h; a warpgroup is one thread here.
#include "cuda/sm90/prefill_tile/handshakes.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/sm90/prefill_tile/policy.h"
#include "cuda/sync/interleavings.h"

namespace sparse_mla::cuda::sm90::prefill_tile {
namespace {

using sync::fault_of;
using sync::Model;
using sync::Program;
using sync::Step;

enum Barrier { kFull, kEmpty, kPFull, kPEmpty, kChain, kQFull, kQEmpty, kSums, kBarriers };
enum Buffer { kKv, kP, kFrame, kQ, kRowSums, kBuffers };
constexpr int kPlaces = 8;

struct Sizes {
  int slots = 4;
  int p_slots = kProbabilitySlots;
  int sum_sets = 2;
};

// One role's steps. Blocks and rows are numbered over the CTA's whole life, as in the kernel.
class Writer {
 public:
  explicit Writer(Sizes sizes) : sizes_(sizes) {}
  void wait(Barrier barrier, int place, int phases) { steps.push_back({Step::kWait, barrier * kPlaces + place, phases}); }
  void arrive(Barrier barrier, int place) { steps.push_back({Step::kArrive, barrier * kPlaces + place, 0}); }
  void write(Buffer buffer, int place, int value) { steps.push_back({Step::kWrite, buffer * kPlaces + place, value}); }
  void read(Buffer buffer, int place, int value) { steps.push_back({Step::kRead, buffer * kPlaces + place, value}); }

  // loader.cuh
  void load_block(int b) {
    wait(kEmpty, b % sizes_.slots, b / sizes_.slots);
    write(kKv, b % sizes_.slots, b);
    arrive(kFull, b % sizes_.slots);
  }
  void load_q(int row) {
    wait(kQEmpty, 0, row);
    write(kQ, 0, row);
    arrive(kQFull, 0);
  }
  // scores.cuh, softmax.cuh, values.cuh
  void score(int b, int row) {
    wait(kFull, b % sizes_.slots, b / sizes_.slots + 1);
    read(kQ, 0, row);
    read(kKv, b % sizes_.slots, b);
  }
  void soften(int b, int begin, int end) {
    if (b > begin) {
      wait(kChain, (b - 1) % 2, (b - 1) / 2 + 1);
      read(kFrame, (b - 1) % 2, b - 1);
    }
    if (b + 2 >= end) arrive(kQEmpty, 0);
    write(kFrame, b % 2, b);
    arrive(kChain, b % 2);
    wait(kPEmpty, b % sizes_.p_slots, b / sizes_.p_slots);
    write(kP, b % sizes_.p_slots, b);
    arrive(kPFull, b % sizes_.p_slots);
  }
  void weigh(int b) {
    wait(kPFull, b % sizes_.p_slots, b / sizes_.p_slots + 1);
    read(kP, b % sizes_.p_slots, b);
    read(kKv, b % sizes_.slots, b);
    arrive(kEmpty, b % sizes_.slots);
  }
  void release_p(int b) { arrive(kPEmpty, b % sizes_.p_slots); }

  Program steps;

 private:
  Sizes sizes_;
};

Program loader(const std::vector<int>& rows, Sizes sizes) {
  Writer w(sizes);
  int b = 0;
  for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
    for (int k = 0; k < rows[row]; ++k) {
      w.load_block(b++);
      if (k == 0) w.load_q(row);
    }
  }
  return w.steps;
}

// heads.cuh: start_row, weigh_row, put_sums, finish.
Program group(int g, const std::vector<int>& rows, Sizes sizes) {
  Writer w(sizes);
  int begin = 0, end = 0;
  const auto start_row = [&](int row) {
    begin = end;
    end = begin + rows[row];
    w.wait(kQFull, 0, row + 1);
    const int b = begin + ((begin ^ g) & 1);
    if (b < end) {
      w.score(b, row);
      w.soften(b, begin, end);
    } else {
      w.arrive(kQEmpty, 0);
    }
    return b;
  };
  const auto weigh_row = [&](int b, int row) {
    if (b < end) {
      if (b == begin && b + 2 < end) {
        w.weigh(b);
        w.score(b + 2, row);
        w.soften(b + 2, begin, end);
        w.release_p(b);
        b += 2;
      }
      for (b += 2; b < end; b += 2) {
        w.weigh(b - 3);
        w.weigh(b - 2);
        w.score(b, row);
        w.soften(b, begin, end);
        w.release_p(b - 3);
        w.release_p(b - 2);
      }
      if (b - 2 != begin) {
        w.weigh(b - 3);
        w.release_p(b - 3);
      }
      w.weigh(b - 2);
      w.release_p(b - 2);
    }
    if (b - 1 < end) {
      w.weigh(b - 1);
      w.release_p(b - 1);
    }
  };
  int b = start_row(0);
  for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
    weigh_row(b, row);
    const int set = row % sizes.sum_sets;
    w.write(kRowSums, set * 2 + g, row);
    w.arrive(kSums, 0);
    if (row + 1 < static_cast<int>(rows.size())) b = start_row(row + 1);
    w.wait(kSums, 0, row + 1);
    w.read(kRowSums, set * 2, row);
    w.read(kRowSums, set * 2 + 1, row);
  }
  return w.steps;
}

Model model(const std::vector<int>& rows, Sizes sizes = {}) {
  constexpr int kPerPhase[kBarriers] = {1, 2, 1, 2, 1, 1, 2, 2};
  Model m{{loader(rows, sizes), group(0, rows, sizes), group(1, rows, sizes)}, {}, kBuffers * kPlaces};
  for (const int arrivals : kPerPhase) m.arrivals.insert(m.arrivals.end(), kPlaces, arrivals);
  return m;
}

const std::vector<std::vector<int>> kRows{{1},       {2},       {3},          {7},       {1, 1, 1, 1}, {2, 2, 2},
                                          {5, 1, 4}, {1, 6, 1}, {3, 3, 3, 3}, {4, 1, 1, 5}};

TEST(PrefillTileHandshakes, NoInterleavingDeadlocksOrReadsAStaleBuffer) {
  for (const std::vector<int>& rows : kRows) {
    std::string text;
    for (const int blocks : rows) text += std::to_string(blocks) + " ";
    EXPECT_EQ(fault_of(model(rows)), std::nullopt) << "rows of " << text << "blocks";
  }
}

// A model that finds nothing proves nothing: without one kind of wait it must find a fault.
TEST(PrefillTileHandshakes, EveryKindOfWaitIsNeeded) {
  for (const Barrier removed : {kFull, kEmpty, kPFull, kPEmpty, kChain, kQFull, kQEmpty, kSums}) {
    // Four slots of P never meet their reader when a warpgroup is one thread; two do.
    Model m = model({5, 1, 4, 3}, {.p_slots = 2});
    for (Program& program : m.roles) {
      std::erase_if(program, [&](const Step& s) { return s.kind == Step::kWait && s.object / kPlaces == removed; });
    }
    EXPECT_NE(fault_of(m), std::nullopt) << "without edge " << removed;
  }
}

TEST(PrefillTileHandshakes, OneSetOfRowSumsIsTooFew) {
  EXPECT_NE(fault_of(model({1, 1, 1, 1}, {.sum_sets = 1})), std::nullopt);
}

TEST(PrefillTileHandshakes, OneKvSlotIsTooFew) { EXPECT_NE(fault_of(model({6}, {.slots = 1})), std::nullopt); }

}  // namespace
}  // namespace sparse_mla::cuda::sm90::prefill_tile
