// Chunks of a range on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace sparse_mla::kv {

// Calls work(begin, end) for pieces of [0, count) of at most `chunk`, from `threads` threads (<= 0: one per core) with
// the calling one among them; where the system has no more threads, from fewer. `work` must not throw.
void for_each_chunk(std::int64_t count, std::int64_t chunk, int threads,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& work);

}  // namespace sparse_mla::kv
