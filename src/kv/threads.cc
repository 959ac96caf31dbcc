#include "kv/threads.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cores.h"

namespace sparse_mla::kv {
namespace {

using Work = std::function<void(std::int64_t begin, std::int64_t end)>;

void serve(std::atomic<std::int64_t>& next_chunk, std::int64_t count, std::int64_t chunk, const Work& work) {
  for (std::int64_t begin = next_chunk++ * chunk; begin < count; begin = next_chunk++ * chunk) {
    work(begin, std::min(count, begin + chunk));
  }
}

}  // namespace

void for_each_chunk(std::int64_t count, std::int64_t chunk, int threads,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& work) {
  if (count <= 0) return;
  if (threads <= 0) threads = usable_cores();
  const std::int64_t chunks = (count + chunk - 1) / chunk;
  threads = static_cast<int>(std::min<std::int64_t>(threads, chunks));
  std::atomic<std::int64_t> next_chunk = 0;
  std::vector<std::jthread> helpers;
  helpers.reserve(static_cast<std::size_t>(threads));
  try {
    for (int t = 1; t < threads; ++t) helpers.emplace_back([&] { serve(next_chunk, count, chunk, work); });
  } catch (const std::system_error&) {
    // The threads that there are do the work.
  }
  serve(next_chunk, count, chunk, work);
}

}  // namespace sparse_mla::kv
