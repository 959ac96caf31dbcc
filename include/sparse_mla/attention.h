// The entry points. Shapes, dtypes and messages: docs/contract.md; formulas: docs/math.md.
#pragma once

#include <cstddef>
#include <string_view>

#include "sparse_mla/calls.h"

namespace sparse_mla {

enum class Backend : std::uint8_t { kAuto, kCpu, kCuda };
std::string_view backend_name(Backend backend) noexcept;  // "auto", "cpu", "cuda"
// The inverse of backend_name. Throws std::invalid_argument.
Backend backend_from_name(std::string_view name);

// kCuda where there is a device that the CUDA backend runs on, else kCpu: what the command line means by "auto".
Backend best_backend();

struct RunOptions {
  // auto: the backend of the tensors' device. kCuda with tensors on cpu copies them to the current device and back,
  // which allocates and waits: for tools and tests.
  Backend backend = Backend::kAuto;
  // A row's result does not depend on which other rows are in the call.
  bool batch_invariant = false;
  // Look at values (lengths, indices, indptr, scales) as well; always done for CPU tensors. A device pass and a
  // host synchronisation on CUDA tensors, so never inside a captured graph. SPARSE_MLA_CHECK=1 turns it on everywhere.
  bool check_values = false;
  int threads = 0;  // CPU backend: 0 is one per core that this process may use
  void* stream = nullptr;     // CUDA backend: a cudaStream_t
  // CUDA backend: at least *_workspace_bytes(call, options) of device memory, 256-byte aligned; its content is
  // irrelevant before and after the call.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  // Where workspace is null and the call needs one: asked once, after the checks, for device memory that stays until
  // the stream is past the call. May throw; never asked by calls that need none.
  void* (*allocate)(std::size_t bytes, void* context) = nullptr;
  void* allocate_context = nullptr;
};

// Contract part A. Needs out, max_logits and lse. Throws InvalidCall (std::invalid_argument) on a broken rule, and
// std::runtime_error where the device can't run it or CUDA reports an error.
void sparse_mla_q8kv8_prefill_fwd(const PrefillCall& call, const RunOptions& options = {});
// Contract part B. Needs out. Throws RefusedCall (std::runtime_error) on a broken rule, std::runtime_error as above.
void sparse_attn_v4_paged_decode(const DecodeCall& call, const RunOptions& options = {});

// The same math with fewer conditions (contract part D), for CPU and CUDA tensors alike.
void prefill(const PrefillCall& call, const RunOptions& options = {});
void decode(const DecodeCall& call, const RunOptions& options = {});

// Device memory that a CUDA call of these shapes needs; 0 where none is. Depends on shapes and options only.
std::size_t prefill_workspace_bytes(const PrefillCall& call, const RunOptions& options = {});
std::size_t decode_workspace_bytes(const DecodeCall& call, const RunOptions& options = {});

}  // namespace sparse_mla
