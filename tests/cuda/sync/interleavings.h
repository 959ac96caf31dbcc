// All interleavings of a scaled-down block of roles, each a list of waits, arrivals, writes and reads: a fault is a
// deadlock, a wait that could pass early or never, or a buffer read before it is written or after it is written again.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace sparse_mla::cuda::sync {

struct Step {
  enum Kind { kWait, kArrive, kWrite, kRead } kind;
  int object;  // number of a barrier, or of a buffer
  int value;   // kWait: completed phases that must have happened; kWrite, kRead: what the buffer holds
};
using Program = std::vector<Step>;

struct Model {
  std::vector<Program> roles;
  std::vector<int> arrivals;  // per barrier: those of one phase
  int buffers = 0;
};

struct InterleavingState {
  std::vector<int> at;       // next step of every role
  std::vector<int> arrived;  // per barrier, in all
  std::vector<int> holds;    // per buffer: what was written last
  auto operator<=>(const InterleavingState&) const = default;
};

// The first fault in any interleaving.
inline std::optional<std::string> fault_of(const Model& m) {
  const InterleavingState start{std::vector<int>(m.roles.size()), std::vector<int>(m.arrivals.size()),
                    std::vector<int>(m.buffers, -1)};
  std::set<InterleavingState> seen{start};
  std::vector<InterleavingState> open{start};
  while (!open.empty()) {
    const InterleavingState state = open.back();
    open.pop_back();
    bool done = true, moved = false;
    for (std::size_t role = 0; role < m.roles.size(); ++role) {
      if (state.at[role] == std::ssize(m.roles[role])) continue;
      done = false;
      const Step& step = m.roles[role][state.at[role]];
      InterleavingState next = state;
      ++next.at[role];
      if (step.kind == Step::kWait) {
        const int completed = state.arrived[step.object] / m.arrivals[step.object];
        // A parity wait passes while the phase before the one it wants is complete or the wanted one is; two phases
        // behind it would pass too early, one ahead it would block for good.
        if (step.value > 1 && completed <= step.value - 2) {
          return "role " + std::to_string(role) + " could pass a wait two phases early";
        }
        if (completed < step.value) continue;
        if (step.value > 0 && completed > step.value) return "role " + std::to_string(role) + " missed its phase";
      }
      if (step.kind == Step::kArrive) ++next.arrived[step.object];
      if (step.kind == Step::kWrite) next.holds[step.object] = step.value;
      if (step.kind == Step::kRead && state.holds[step.object] != step.value) {
        return "role " + std::to_string(role) + " reads " + std::to_string(state.holds[step.object]) + " for " +
               std::to_string(step.value);
      }
      moved = true;
      if (seen.insert(next).second) open.push_back(next);
    }
    if (!done && !moved) return "deadlock";
  }
  return std::nullopt;
}

}  // namespace sparse_mla::cuda::sync
