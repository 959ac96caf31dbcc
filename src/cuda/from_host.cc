#include "cuda/from_host.h"

#include <vector>

#include "cuda/cuda.h"
#include "cuda/device_buffer.h"

namespace sparse_mla::cuda {
namespace {

int current_device() {
  int device = 0;
  throw_on_error(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

// Owns the device copies of one problem.
class Stage {
 public:
  // A device copy of `bytes` bytes, or null where the host pointer is null.
  template <class T>
  const T* in(const T* host, std::size_t bytes) {
    if (host == nullptr) return nullptr;
    buffers_.emplace_back(host, bytes);
    return static_cast<const T*>(buffers_.back().data());
  }
  // Room for an output; fetch() copies it to `host`.
  template <class T>
  T* out(T* host, std::size_t bytes) {
    if (host == nullptr) return nullptr;
    buffers_.emplace_back(bytes);
    outputs_.push_back({host, buffers_.size() - 1});
    return static_cast<T*>(buffers_.back().data());
  }
  void fetch() const {
    throw_on_error(cudaDeviceSynchronize(), "waiting for the kernel");
    for (const Output& output : outputs_) buffers_[output.buffer].copy_to_host(output.host);
  }

 private:
  struct Output {
    void* host;
    std::size_t buffer;
  };
  std::vector<DeviceBuffer> buffers_;
  std::vector<Output> outputs_;
};

// Bytes from the first to one past the last element of a [rows, columns] array of this row stride.
std::size_t strided_bytes(std::int64_t rows, std::int64_t row_stride, std::int64_t columns, std::size_t element) {
  return rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * row_stride + columns) * element;
}

std::size_t bytes_of(std::int64_t count, std::size_t element) { return static_cast<std::size_t>(count) * element; }

PoolProblem staged_pool(Stage& stage, PoolProblem pool, const DecodeProblem& problem) {
  if (pool.indptr == nullptr) return pool;
  const std::size_t element = bytes_per_element(pool.kv_dtype);
  pool.kv = stage.in(static_cast<const std::byte*>(pool.kv),
                     strided_bytes(pool.total_pages, pool.kv_row_stride, problem.d, element));
  pool.kv_scales = stage.in(pool.kv_scales,
                            strided_bytes(pool.total_pages, pool.kv_scales_row_stride, problem.d / 64, sizeof(float)));
  pool.indices = stage.in(pool.indices, bytes_of(pool.total_indices, sizeof(std::int32_t)));
  pool.indptr = stage.in(pool.indptr, bytes_of(problem.n + 1, sizeof(std::int32_t)));
  return pool;
}

template <class Problem>
void run_staged(Stage& stage, const Problem& staged, bool batch_invariant,
                std::size_t (*workspace_bytes)(const Problem&, const Launch&),
                void (*compute)(const Problem&, const Launch&)) {
  Launch launch{.device = current_device(), .batch_invariant = batch_invariant};
  const DeviceBuffer workspace(workspace_bytes(staged, launch));
  launch.workspace = workspace.data();
  launch.workspace_bytes = workspace.bytes();
  compute(staged, launch);
  stage.fetch();
}

}  // namespace

void prefill_from_host(const PrefillProblem& problem, bool batch_invariant) {
  if (problem.s_q == 0) return;
  Stage stage;
  PrefillProblem staged = problem;
  const std::int64_t q_head_span = (problem.h_q - 1) * problem.q_head_stride + problem.d_qk;
  staged.q = stage.in(problem.q, strided_bytes(problem.s_q, problem.q_row_stride, q_head_span, 1));
  staged.kv = stage.in(problem.kv, strided_bytes(problem.s_kv, problem.kv_row_stride, problem.d_qk, 1));
  staged.indices = stage.in(problem.indices, strided_bytes(problem.s_q, problem.indices_row_stride, problem.topk, 4));
  staged.topk_length = stage.in(problem.topk_length, bytes_of(problem.s_q, 4));
  staged.attn_sink = stage.in(problem.attn_sink, bytes_of(problem.h_q, 4));
  staged.q_scale = stage.in(problem.q_scale, sizeof(float));
  staged.kv_scale = stage.in(problem.kv_scale, sizeof(float));
  const std::int64_t heads = problem.s_q * problem.h_q;
  staged.out = stage.out(problem.out, bytes_of(heads * problem.d_v, sizeof(std::uint16_t)));
  staged.max_logits = stage.out(problem.max_logits, bytes_of(heads, sizeof(float)));
  staged.lse = stage.out(problem.lse, bytes_of(heads, sizeof(float)));
  run_staged(stage, staged, batch_invariant, prefill_workspace_bytes, prefill);
}

void decode_from_host(const DecodeProblem& problem, bool batch_invariant) {
  if (problem.n == 0) return;
  Stage stage;
  DecodeProblem staged = problem;
  const std::size_t element = bytes_per_element(problem.q_dtype);
  const std::int64_t q_head_span = (problem.h - 1) * problem.q_head_stride + problem.d;
  staged.q = stage.in(static_cast<const std::byte*>(problem.q),
                      strided_bytes(problem.n, problem.q_row_stride, q_head_span, element));
  staged.pool = staged_pool(stage, problem.pool, problem);
  staged.second_pool = staged_pool(stage, problem.second_pool, problem);
  staged.attn_sink = stage.in(problem.attn_sink, bytes_of(problem.h, sizeof(float)));
  const std::int64_t heads = problem.n * problem.h;
  staged.out = stage.out(static_cast<std::byte*>(problem.out), bytes_of(heads * problem.d_v, element));
  staged.lse = stage.out(problem.lse, bytes_of(heads, sizeof(float)));
  run_staged(stage, staged, batch_invariant, decode_workspace_bytes, decode);
}

}  // namespace sparse_mla::cuda
