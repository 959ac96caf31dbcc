#include "gpu/timing.h"

#include <algorithm>

#include "cuda/error.h"

namespace sparse_mla::bench {
namespace {

using cuda::throw_on_error;

class Stream {
 public:
  Stream() { throw_on_error(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class EventPair {
 public:
  EventPair() {
    throw_on_error(cudaEventCreate(&begin_), "cudaEventCreate");
    throw_on_error(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~EventPair() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;
  void begin(cudaStream_t stream) { throw_on_error(cudaEventRecord(begin_, stream), "cudaEventRecord"); }
  void end(cudaStream_t stream) { throw_on_error(cudaEventRecord(end_, stream), "cudaEventRecord"); }
  double microseconds() {
    throw_on_error(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    throw_on_error(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1000.0 * milliseconds;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back(), static_cast<int>(values.size())};
}

Spread time_events(const Enqueue& enqueue, int samples, int warmups) {
  throw_on_error(cudaDeviceSynchronize(), "waiting for the inputs");
  const Stream stream;
  EventPair events;
  std::vector<double> values;
  for (int i = 0; i < warmups + samples; ++i) {
    events.begin(stream.get());
    enqueue(i, stream.get());
    events.end(stream.get());
    const double us = events.microseconds();
    if (i >= warmups) values.push_back(us);
  }
  return spread_of(std::move(values));
}

Spread time_graph(const Enqueue& enqueue, int launches, int samples, int warmups) {
  throw_on_error(cudaDeviceSynchronize(), "waiting for the inputs");
  const Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  throw_on_error(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < launches; ++i) enqueue(i, stream.get());
  throw_on_error(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
  throw_on_error(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  EventPair events;
  std::vector<double> values;
  for (int i = 0; i < warmups + samples; ++i) {
    events.begin(stream.get());
    throw_on_error(cudaGraphLaunch(executable, stream.get()), "cudaGraphLaunch");
    events.end(stream.get());
    const double us = events.microseconds() / launches;
    if (i >= warmups) values.push_back(us);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return spread_of(std::move(values));
}

}  // namespace sparse_mla::bench
