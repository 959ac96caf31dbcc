// Host side of the KV cache kernels: no CUDA header is needed to include this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/kv_transfer.h"
#include "cuda/launch_context.h"

namespace sparse_mla::cuda::sm90::kv {

// Of a transfer: 4 bytes for each row of the target where many rows go to slots that may repeat, else 0.
std::size_t workspace_bytes(const KvTransferProblem& problem) noexcept;
// A cudaError_t; enqueues, no synchronisation, no allocation.
int launch(const KvTransferProblem& problem, const LaunchContext& context) noexcept;
// to[i] = table[from[i]].
int launch_translation(const std::array<std::uint8_t, 256>& table, const std::uint8_t* from, std::uint8_t* to,
                       std::int64_t count, void* stream) noexcept;

}  // namespace sparse_mla::cuda::sm90::kv
