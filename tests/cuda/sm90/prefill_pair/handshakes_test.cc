// Proves the protocol of prefill_pair on the CPU, from the same tables that the kernel is written by.
//
// The only thing that blocks a role is a wait for a counted phase, and nobody ever chooses. So the order in which roles
// happen to run cannot change who waits for what, and whatever one run puts in order, every interleaving puts in order.
// One run with vector clocks therefore speaks for all interleavings. Three faults are looked for:
//   - two accesses to the same part of a buffer, one of them a write, that no handshake orders;
//   - an arrival that could be counted into the phase before its own;
//   - a wait that could still be waiting when its barrier is already a whole phase further (a parity would then lie).
// And every wait is taken out once, on purpose: each time a fault must be found.
#include "cuda/sm90/prefill_pair/handshakes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/sm90/prefill_pair/args.h"
#include "cuda/sm90/prefill_pair/steps.h"

namespace sparse_mla::cuda::sm90::prefill_pair {
namespace {

constexpr Policy kPolicy = kPolicyFor<576>;

enum class Worker { rest_loader, own_loader, peer_loader, courier, mma0, mma1 };
constexpr Worker kWorkers[] = {Worker::rest_loader, Worker::own_loader, Worker::peer_loader,
                               Worker::courier,     Worker::mma0,       Worker::mma1};

std::span<const Step> steps_of(Worker worker) {
  switch (worker) {
    case Worker::rest_loader:
      return kRestLoaderSteps;
    case Worker::own_loader:
      return kOwnLoaderSteps;
    case Worker::peer_loader:
      return kPeerLoaderSteps;
    case Worker::courier:
      return kCourierSteps;
    default:
      return kMmaSteps;
  }
}
int group_of(Worker worker) { return worker == Worker::mma1 ? 1 : 0; }
bool is_mma(Worker worker) { return worker == Worker::mma0 || worker == Worker::mma1; }

// One wait that is left out.
struct Hole {
  Worker worker;
  std::size_t step;
};

// What turn t is about, in a CTA whose rows have these numbers of turns.
struct Turns {
  explicit Turns(const std::vector<int>& rows) : rows_(static_cast<int>(rows.size())) {
    for (int row = 0; row < rows_; ++row)
      for (int turn = 0; turn < rows[row]; ++turn) tiles_.push_back({row, turn, turn + 1 == rows[row]});
  }
  int count() const { return tiles() + 2; }
  int tiles() const { return static_cast<int>(tiles_.size()); }
  bool happens(When when, int t) const {
    switch (when) {
      case When::scoring:
        return is_tile(t);
      case When::scored_before:
        return is_tile(t - 1);
      case When::weighing:
        return is_tile(t - 2);
      case When::begins:
        return is_tile(t) && tiles_[t].turn == 0;
      case When::follows:
        return t == tiles() || (happens(When::begins, t) && tiles_[t].row > 0);
      case When::ends:
        return is_tile(t) && tiles_[t].last;
      case When::ends_and_more:
        return happens(When::ends, t) && tiles_[t].row + 1 < rows_;
      case When::agrees:
        return t == tiles() || (is_tile(t) && (kPolicy.agree_turns >> tiles_[t].turn & 1) != 0);
      case When::weighed_ends:
        return is_tile(t - 2) && tiles_[t - 2].last;
    }
    return false;
  }
  // The number of the thing that a step is about: a tile, a row, or an agreement.
  int number(const Step& step, int t, bool by_row, bool by_agreement) const {
    if (by_agreement) {
      int agreements = 0;
      for (int i = 0; i < t; ++i) agreements += happens(When::agrees, i) ? 1 : 0;
      return agreements;
    }
    if (!by_row) return t - step.back;
    if (step.when == When::weighed_ends) return tiles_[t - 2].row;
    return (is_tile(t) ? tiles_[t].row : rows_) - step.back;
  }

 private:
  struct Tile {
    int row, turn;
    bool last;
  };
  bool is_tile(int t) const { return t >= 0 && t < tiles(); }
  int rows_;
  std::vector<Tile> tiles_;
};

using Clock = std::map<int, int>;  // process -> how many of its events come before
void join(Clock& into, const Clock& other) {
  for (const auto& [process, time] : other) into[process] = std::max(into[process], time);
}

struct Event {
  int process;
  int time;
  Clock clock;
  // This event comes before `other` in every interleaving.
  bool before(const Event& other) const {
    const auto found = other.clock.find(process);
    return found != other.clock.end() && found->second >= time;
  }
};

using BarrierKey = std::tuple<int, Edge, int>;      // CTA, edge, slot
using PartKey = std::tuple<int, Buffer, int, int>;  // CTA, buffer, slot, group
using Arriver = std::tuple<int, Worker, bool>;      // CTA, worker, by an asynchronous copy

struct Barrier {
  std::map<Arriver, std::vector<Event>> arrivals;
  std::vector<std::pair<int, Event>> waits;  // phase
};
struct Access {
  Event event;
  bool writes;
};

class Model {
 public:
  Model(const std::vector<int>& rows, std::optional<Hole> hole) : turns_(rows), hole_(hole) {
    for (int cta = 0; cta < 2; ++cta)
      for (Worker worker : kWorkers) begin(cta, worker);
  }

  // The first fault, or empty.
  std::string run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t i = 0; i < processes_.size(); ++i)
        while (!processes_[i].todo.empty() && advance(i)) moved = true;
    }
    for (const Process& process : processes_)
      if (!process.todo.empty()) return "deadlock: " + process.todo.front().text;
    return first_fault();
  }

 private:
  struct Op {
    Act act;
    BarrierKey barrier;
    int phase = 0;
    std::vector<PartKey> read, written;
    std::string text;
    Arriver arriver;
    std::vector<Op> then;  // of an asynchronous copy
  };
  struct Process {
    Clock clock;
    int time = 0;
    std::deque<Op> todo;
  };

  static bool by_row(Edge edge) { return edge == Edge::q_ready || edge == Edge::q_free || edge == Edge::scales_ready; }
  static int slots(Edge edge) {
    const Handshake& handshake = kHandshakes<kPolicy>[static_cast<int>(edge)];
    return edge == Edge::q_ready || edge == Edge::q_free ? 1 : edge == Edge::message_ready ? 2 : handshake.slots;
  }
  // Barriers of q and message exist once for each WG.
  static bool per_group(Edge edge) {
    return edge == Edge::q_ready || edge == Edge::q_free || edge == Edge::message_ready;
  }
  static int slots(Buffer buffer) {
    switch (buffer) {
      case Buffer::rest:
        return kPolicy.rest_stages;
      case Buffer::own:
        return kPolicy.own_stages;
      case Buffer::peer:
        return kPolicy.peer_stages;
      case Buffer::probs_own:
        return kPolicy.probs_own_stages;
      case Buffer::probs_peer:
        return kPolicy.probs_peer_stages;
      case Buffer::q:
        return 1;
      case Buffer::message:
        return 2;
      case Buffer::scale_out:
        return 4;
    }
    return 1;
  }
  static bool waits_for_free(Edge edge) {
    return edge == Edge::rest_free || edge == Edge::own_free || edge == Edge::peer_free || edge == Edge::probs_free ||
           edge == Edge::peer_probs_free || edge == Edge::q_free;
  }

  int number(Edge edge, const Step& step, int t) const {
    return turns_.number(step, t, by_row(edge), edge == Edge::message_ready);
  }
  int number(Buffer buffer, const Step& step, int t) const {
    return turns_.number(step, t, buffer == Buffer::q || buffer == Buffer::scale_out, buffer == Buffer::message);
  }

  BarrierKey barrier(int cta, Edge edge, int number, int group) const {
    return {cta, edge, number % slots(edge) * 2 + (per_group(edge) ? group : 0)};
  }
  std::vector<PartKey> parts(int cta, Buffer buffer, int number, int group, bool all) const {
    std::vector<PartKey> result;
    for (int g = 0; g < 2; ++g)
      if (all || g == group) result.push_back({cta, buffer, number % slots(buffer), g});
    return result;
  }

  void begin(int cta, Worker worker) {
    Process process;
    if (worker == Worker::courier)
      for (int group = 0; group < 2; ++group) process.todo.push_back(fetch(cta, group, 0));
    for (int t = 0; t < turns_.count(); ++t) {
      const std::span<const Step> steps = steps_of(worker);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (!turns_.happens(steps[i].when, t)) continue;
        if (hole_ && hole_->worker == worker && hole_->step == i) continue;
        add(process, cta, worker, steps[i], t);
      }
    }
    processes_.push_back(process);
  }

  Op fetch(int cta, int group, int row) const {
    Op op{Act::fetch, {}, 0, {}, {}, "fetch of q", {}, {}};
    op.then.push_back({Act::write, {}, 0, {}, parts(cta, Buffer::q, row, group, false), "fetch of q", {}, {}});
    op.then.push_back({Act::arrive,
                       barrier(cta, Edge::q_ready, row, group),
                       0,
                       {},
                       {},
                       "q has come",
                       {cta, Worker::courier, true},
                       {}});
    return op;
  }

  void add(Process& process, int cta, Worker worker, const Step& step, int t) const {
    const std::string text = "CTA " + std::to_string(cta) + " worker " + std::to_string(static_cast<int>(worker)) +
                             " turn " + std::to_string(t) + " edge " + std::to_string(static_cast<int>(step.edge)) +
                             " buffer " + std::to_string(static_cast<int>(step.buffer));
    const int group = group_of(worker);
    // The courier's waits for and fetches of q are for each WG.
    const int groups = worker == Worker::courier && per_group(step.edge) ? 2 : 1;
    for (int g = 0; g < groups; ++g) {
      const int of = groups == 2 ? g : group;
      Op op{step.act, {}, 0, {}, {}, text, {cta, worker, false}, {}};
      if (step.act == Act::wait || step.act == Act::arrive || step.act == Act::arrive_at_peer) {
        const int at = number(step.edge, step, t);
        op.barrier = barrier(step.act == Act::arrive_at_peer ? cta ^ 1 : cta, step.edge, at, of);
        op.phase = at / slots(step.edge) - (step.act == Act::wait && waits_for_free(step.edge) ? 1 : 0);
        if (step.act == Act::wait && op.phase < 0) continue;
        if (step.act == Act::arrive_at_peer) op.act = Act::arrive;
      } else if (step.act == Act::read || step.act == Act::write) {
        const bool all =
            step.act == Act::read ? step.buffer != Buffer::q && step.buffer != Buffer::message : !is_mma(worker);
        auto touched = parts(cta, step.buffer, number(step.buffer, step, t), of, all);
        (step.act == Act::read ? op.read : op.written) = touched;
      } else if (step.act == Act::fetch) {
        op = fetch(cta, of, number(step.buffer, step, t));
      } else {
        op.then = copies(cta, worker, step, t, of, text);
      }
      process.todo.push_back(op);
    }
  }

  std::vector<Op> copies(int cta, Worker worker, const Step& step, int t, int group, const std::string& text) const {
    const int at = number(step.buffer, step, t);
    const bool probs = step.act == Act::send_probs;
    Op copy{Act::write, {}, 0, {}, {}, text, {}, {}};
    if (probs) copy.read = parts(cta, Buffer::probs_own, at, group, true);
    copy.written = parts(cta ^ 1, step.buffer, at, group, probs);
    Op arrival{Act::arrive, barrier(cta ^ 1, step.edge, at, group), 0, {}, {}, text, {cta, worker, true}, {}};
    return {copy, arrival};
  }

  // All arrivers of a barrier have arrived `phase` + 1 times.
  std::optional<Event> completion(const BarrierKey& key, int phase) const {
    const auto found = barriers_.find(key);
    if (found == barriers_.end()) return std::nullopt;
    const std::size_t expected = expected_arrivers(std::get<1>(key));
    if (found->second.arrivals.size() < expected) return std::nullopt;
    Event done{-1, 0, {}};
    for (const auto& [arriver, events] : found->second.arrivals) {
      if (static_cast<int>(events.size()) <= phase) return std::nullopt;
      join(done.clock, events[phase].clock);
    }
    return done;
  }
  // Two WGs where the table counts warps or threads; one more for the courier, and one for bytes.
  static std::size_t expected_arrivers(Edge edge) {
    switch (edge) {
      case Edge::keys_ready:
        return 2;
      case Edge::values_ready:
        return 3;
      case Edge::probs_free:
        return 3;
      case Edge::q_ready:
      case Edge::q_free:
      case Edge::message_ready:
        return 1;
      default:
        return 2;
    }
  }

  bool advance(std::size_t index) {
    const Op op = processes_[index].todo.front();
    if (op.act == Act::wait) {
      const auto done = completion(op.barrier, op.phase);
      if (!done) return false;
      join(processes_[index].clock, done->clock);
    }
    Process& process = processes_[index];
    process.clock[static_cast<int>(index)] = ++process.time;
    const Event event{static_cast<int>(index), process.time, process.clock};
    process.todo.pop_front();
    if (op.act == Act::wait) barriers_[op.barrier].waits.push_back({op.phase, event});
    if (op.act == Act::arrive) barriers_[op.barrier].arrivals[op.arriver].push_back(event);
    for (const PartKey& part : op.read) accesses_[part].push_back({event, false});
    for (const PartKey& part : op.written) accesses_[part].push_back({event, true});
    if (!op.then.empty()) {
      Process copy;
      copy.clock = event.clock;
      copy.todo.assign(op.then.begin(), op.then.end());
      processes_.push_back(copy);
    }
    return true;
  }

  std::string first_fault() const {
    for (const auto& [part, accesses] : accesses_)
      for (std::size_t i = 0; i < accesses.size(); ++i)
        for (std::size_t j = i + 1; j < accesses.size(); ++j)
          if ((accesses[i].writes || accesses[j].writes) && !accesses[i].event.before(accesses[j].event) &&
              !accesses[j].event.before(accesses[i].event))
            return "race on buffer " + std::to_string(static_cast<int>(std::get<1>(part)));
    for (const auto& [key, barrier] : barriers_) {
      const std::string name = "edge " + std::to_string(static_cast<int>(std::get<1>(key)));
      for (const auto& [arriver, events] : barrier.arrivals)
        for (std::size_t n = 1; n < events.size(); ++n)
          if (!all_before(barrier, static_cast<int>(n) - 1, events[n])) return "early arrival on " + name;
      for (const auto& [phase, wait] : barrier.waits)
        if (const auto next = completion(key, phase + 1); next && !wait.before(*next))
          return "a wait overtaken on " + name;
    }
    return {};
  }
  // Phase n of the barrier was complete before `event` in every interleaving.
  static bool all_before(const Barrier& barrier, int phase, const Event& event) {
    for (const auto& [arriver, events] : barrier.arrivals)
      if (static_cast<int>(events.size()) <= phase || !events[phase].before(event)) return false;
    return true;
  }

  Turns turns_;
  std::optional<Hole> hole_;
  std::deque<Process> processes_;
  std::map<BarrierKey, Barrier> barriers_;
  std::map<PartKey, std::vector<Access>> accesses_;
};

// Rows of one turn, of many, and mixtures: what is different at a row's end meets itself a turn later in the first.
const std::vector<std::vector<int>> kRowSets = {
    {1}, {2}, {7}, {1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2}, {3, 1, 1, 2, 5, 1}, {6, 6}};

TEST(PrefillPairHandshakes, NoInterleavingRacesOrHangs) {
  for (const auto& rows : kRowSets) EXPECT_EQ(Model(rows, std::nullopt).run(), "") << testing::PrintToString(rows);
}

TEST(PrefillPairHandshakes, EveryWaitIsNeeded) {
  for (Worker worker : kWorkers) {
    const std::span<const Step> steps = steps_of(worker);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].act != Act::wait) continue;
      const bool found = std::any_of(kRowSets.begin(), kRowSets.end(), [&](const auto& rows) {
        return !Model(rows, Hole{worker, i}).run().empty();
      });
      EXPECT_TRUE(found) << "worker " << static_cast<int>(worker) << " does not need its wait for edge "
                         << static_cast<int>(steps[i].edge);
    }
  }
}

TEST(PrefillPairHandshakes, BarriersDoNotOverlap) {
  int next = 0;
  for (int e = 0; e < kEdges; ++e) {
    EXPECT_EQ(static_cast<int>(kHandshakes<kPolicy>[e].edge), e);
    EXPECT_EQ(first_barrier<kPolicy>(static_cast<Edge>(e)), next);
    next += kHandshakes<kPolicy>[e].slots;
  }
  EXPECT_EQ(kBarriers<kPolicy>, next);
}

TEST(PrefillPairRows, EveryRowTakesATurn) {
  EXPECT_EQ(turns_of(0), 1u);
  EXPECT_EQ(turns_of(1), 1u);
  EXPECT_EQ(turns_of(128), 1u);
  EXPECT_EQ(turns_of(129), 2u);
  EXPECT_EQ(turns_of(2048), 16u);
}

}  // namespace
}  // namespace sparse_mla::cuda::sm90::prefill_pair
