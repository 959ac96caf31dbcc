// CUDA events and graphs around work that is enqueued on a stream.
#pragma once

#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

namespace sparse_mla::bench {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
  int samples = 0;
};
Spread spread_of(std::vector<double> values);

using Enqueue = std::function<void(int repetition, cudaStream_t stream)>;

// Microseconds of one enqueue, each timed by its own pair of events, after `warmups` untimed ones. `repetition` counts
// from 0, so that the work can rotate over input sets.
Spread time_events(const Enqueue& enqueue, int samples, int warmups);
// Microseconds per launch: `launches` enqueues are captured into one graph, and whole replays are timed.
Spread time_graph(const Enqueue& enqueue, int launches, int samples, int warmups);

}  // namespace sparse_mla::bench
