#include "base/cores.h"

#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace sparse_mla {

int usable_cores() noexcept {
#if defined(__linux__)
  cpu_set_t cores;  // holds 1024; the call fails where the machine has more
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace sparse_mla
