#include "base/cores.h"

#include <gtest/gtest.h>

#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace sparse_mla {
namespace {

TEST(UsableCores, AreAtLeastOne) { EXPECT_GE(usable_cores(), 1); }

#if defined(__linux__)
// In a thread of its own, since a thread's mask is its own too.
void narrow_to_one_core() {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(usable_cores(), CPU_COUNT(&all));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1);
}

TEST(UsableCores, AreThoseOfTheAffinityMask) { std::thread(narrow_to_one_core).join(); }
#endif

}  // namespace
}  // namespace sparse_mla
