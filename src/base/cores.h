// How many threads a call runs on where its caller does not say.
#pragma once

namespace sparse_mla {

// Cores that this process may use: those of its affinity mask, which a container's cpuset and taskset narrow.
int usable_cores() noexcept;

}  // namespace sparse_mla
