// The CUDA side of the KV cache as the rest of the library sees it: no CUDA header is needed to include this.
// Without a CUDA compiler src/cuda/absent.cc answers "not compiled in".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/kv_transfer.h"
#include "cuda/cuda.h"

namespace sparse_mla::cuda {

// Device memory, 256-byte aligned, zero, that goes with its last owner. Waits until it is zero. Throws
// std::runtime_error with CUDA's own text.
std::shared_ptr<void> allocate(int device, std::size_t bytes);
// A blocking copy from host memory.
void copy_to_device(int device, void* to, const void* from, std::size_t bytes);

std::size_t kv_transfer_workspace_bytes(const KvTransferProblem& problem) noexcept;
// All pointers in the problem are device memory of `launch.device`. Enqueues on the stream and returns. Throws
// std::runtime_error; std::invalid_argument where the workspace is too small.
void kv_transfer(const KvTransferProblem& problem, const Launch& launch);

// to[i] = table[from[i]], `count` bytes.
void translate_codes(const std::array<std::uint8_t, 256>& table, const std::uint8_t* from, std::uint8_t* to,
                     std::int64_t count, const Launch& launch);

}  // namespace sparse_mla::cuda
