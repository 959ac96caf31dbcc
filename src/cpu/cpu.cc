#include "cpu/cpu.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "base/cores.h"
#include "cpu/amx.h"
#include "cpu/row.h"
#include "cpu/simd.h"

namespace sparse_mla::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::string_view kAmxName = "AMX_BF16";

std::atomic<bool> amx_is_allowed = true;  // false while a test forces another instruction set

const RowKernels& kernels_for(const RowCall& call) {
  return amx_is_allowed && amx_available() && amx_serves(call) ? amx_kernels() : float32_kernels();
}

// ---- one row -----------------------------------------------------------------------------------------------------

// Fills `tokens` with the next listed rows of `list` from `at` on, which it moves. Returns how many.
int next_tokens(const TokenList& list, std::int64_t& at, Token* tokens) {
  const auto* kv = static_cast<const char*>(list.kv);
  const std::int64_t row_bytes = list.row_stride * static_cast<std::int64_t>(bytes_per_element(list.dtype));
  int count = 0;
  for (; at < list.count && count < kBlockTokens; ++at) {
    const std::int64_t row = list.indices[at];
    if (row < 0 || row >= list.rows) continue;
    const float* scales = list.scales != nullptr ? list.scales + row * list.scales_row_stride : nullptr;
    tokens[count++] = {kv + row * row_bytes, scales};
  }
  return count;
}

void write_empty_row(const RowCall& call) {
  std::fill_n(call.out, std::int64_t{call.heads} * call.d_v, std::uint16_t{0});
  if (call.max_logits != nullptr) std::fill_n(call.max_logits, call.heads, -kInfinity);
  if (call.lse != nullptr) std::fill_n(call.lse, call.heads, kInfinity);
}

void start_row(Workspace& w, const RowCall& call, const RowKernels& kernels) {
  const int heads = w.extent.padded_heads();
  std::fill_n(w.max.get(), heads, -kInfinity);
  std::fill_n(w.sum.get(), heads, 0.0f);
  std::fill_n(w.out_t.get(), std::size_t(w.extent.padded_d_v()) * w.extent.stride(), 0.0f);
  kernels.load_queries(w, call);
}

void attend(const RowCall& call, const RowKernels& kernels, Workspace& w) {
  bool started = false;
  for (const TokenList& list : call.lists) {
    std::int64_t at = 0;
    while (const int count = next_tokens(list, at, w.tokens.data())) {
      if (!started) start_row(w, call, kernels);
      started = true;
      const Block block{w.tokens.data(), count, list.dtype, list.scales != nullptr};
      kernels.load_tokens(w, block);
      kernels.score(w, block);
      soften(w, block, call.logit_scale);
      kernels.accumulate(w, block);
    }
  }
  if (!started) return write_empty_row(call);
  kernels.end_row();
  finish_row(w, call);
}

// ---- all rows ----------------------------------------------------------------------------------------------------

// Heads [first, first + count) of a row.
RowCall part_of(RowCall call, int first, int count) {
  const std::int64_t q_bytes = first * call.q_head_stride * static_cast<std::int64_t>(bytes_per_element(call.q_dtype));
  call.heads = count;
  call.q = static_cast<const char*>(call.q) + q_bytes;
  call.out += std::int64_t{first} * call.d_v;
  if (call.sink != nullptr) call.sink += first;
  if (call.max_logits != nullptr) call.max_logits += first;
  if (call.lse != nullptr) call.lse += first;
  return call;
}

// Work is handed out in items of one row and some of its heads: all of them, unless there are fewer rows than threads.
struct Items {
  std::int64_t rows;
  int heads;
  int heads_per_item;
  std::int64_t per_row() const { return (heads + heads_per_item - 1) / heads_per_item; }
  std::int64_t count() const { return rows * per_row(); }
};

Items split(std::int64_t rows, int heads, int threads) {
  const std::int64_t parts = std::clamp<std::int64_t>(threads / rows, 1, round_up(heads, kLaneHeads) / kLaneHeads);
  return {rows, heads, round_up(static_cast<int>((heads + parts - 1) / parts), kLaneHeads)};
}

// All rows of a call, served by any number of threads. `DescribeRow` makes the RowCall of a row.
template <class DescribeRow>
class Rows {
 public:
  Rows(const Items& items, DescribeRow describe) : items_(items), describe_(describe) {}

  // Starts the other threads, works along with them, and throws the first exception that any of them met.
  void serve(int threads) {
    {
      std::vector<std::jthread> helpers;
      try {
        for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, items_.count()); ++i) {
          helpers.emplace_back(&Rows::work, this);
        }
      } catch (const std::system_error&) {
        // The system gives no more threads: those there are, and this one, do the work.
      }
      work();
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work() noexcept {
    try {
      take_items();
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void take_items() {
    std::int64_t item = next_item_++;
    if (item >= items_.count()) return;
    const RowCall any_row = describe_(0);
    const RowKernels& kernels = kernels_for(any_row);
    Workspace workspace({std::min(items_.heads, items_.heads_per_item), any_row.d, any_row.d_v});
    kernels.reserve(workspace);
    for (; item < items_.count(); item = next_item_++) {
      const int first = static_cast<int>(item % items_.per_row()) * items_.heads_per_item;
      const int heads = std::min(items_.heads_per_item, items_.heads - first);
      attend(part_of(describe_(item / items_.per_row()), first, heads), kernels, workspace);
    }
  }

  const Items items_;
  const DescribeRow describe_;
  std::atomic<std::int64_t> next_item_ = 0;
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

template <class DescribeRow>
void serve_on_threads(std::int64_t rows, int heads, int threads, DescribeRow describe) {
  if (rows <= 0 || heads <= 0) return;
  if (threads <= 0) threads = usable_cores();
  Rows<DescribeRow>(split(rows, heads, threads), describe).serve(threads);
}

RowCall prefill_row(const PrefillProblem& p, std::int64_t row) {
  RowCall call;
  call.heads = p.h_q;
  call.d = p.d_qk;
  call.d_v = p.d_v;
  call.q_dtype = DType::kFloat8E4M3FN;
  call.q = p.q + row * p.q_row_stride;
  call.q_head_stride = p.q_head_stride;
  call.value_scale = p.kv_scale != nullptr ? *p.kv_scale : 1.0f;
  const double q_scale = p.q_scale != nullptr ? *p.q_scale : 1.0;
  call.logit_scale = static_cast<float>(double{p.sm_scale} * q_scale * double{call.value_scale});
  TokenList& list = call.lists[0];
  list.indices = p.indices + row * p.indices_row_stride;
  list.count = p.topk_length != nullptr ? std::clamp<std::int64_t>(p.topk_length[row], 0, p.topk) : p.topk;
  list.rows = p.s_kv;
  list.kv = p.kv;
  list.row_stride = p.kv_row_stride;
  call.sink = p.attn_sink;
  const std::int64_t first_head = row * p.h_q;
  call.out = p.out + first_head * p.d_v;
  call.max_logits = p.max_logits != nullptr ? p.max_logits + first_head : nullptr;
  call.lse = p.lse != nullptr ? p.lse + first_head : nullptr;
  return call;
}

TokenList pool_list(const PoolProblem& pool, std::int64_t row) {
  TokenList list;
  list.dtype = pool.kv_dtype;
  if (pool.indptr == nullptr) return list;
  const std::int64_t begin = std::clamp<std::int64_t>(pool.indptr[row], 0, pool.total_indices);
  const std::int64_t end = std::clamp<std::int64_t>(pool.indptr[row + 1], 0, pool.total_indices);
  list.indices = pool.indices + begin;
  list.count = end - begin;  // negative where indptr steps back: no token
  list.rows = pool.total_pages;
  list.kv = pool.kv;
  list.row_stride = pool.kv_row_stride;
  list.scales = pool.kv_scales;
  list.scales_row_stride = pool.kv_scales_row_stride;
  return list;
}

RowCall decode_row(const DecodeProblem& p, std::int64_t row) {
  RowCall call;
  call.heads = p.h;
  call.d = p.d;
  call.d_v = p.d_v;
  call.q_dtype = p.q_dtype;
  const std::int64_t q_row_bytes = p.q_row_stride * static_cast<std::int64_t>(bytes_per_element(p.q_dtype));
  call.q = static_cast<const char*>(p.q) + row * q_row_bytes;
  call.q_head_stride = p.q_head_stride;
  call.logit_scale = p.softmax_scale;
  call.lists = {pool_list(p.pool, row), pool_list(p.second_pool, row)};
  if (p.second_pool.indptr == nullptr) call.lists[1].dtype = call.lists[0].dtype;
  call.sink = p.attn_sink;
  call.out_dtype = p.q_dtype;
  call.out = static_cast<std::uint16_t*>(p.out) + row * p.h * p.d_v;
  call.lse = p.lse != nullptr ? p.lse + row * p.h : nullptr;
  return call;
}

}  // namespace

void prefill(const PrefillProblem& problem, int threads) {
  serve_on_threads(problem.s_q, problem.h_q, threads,
                   [&problem](std::int64_t row) { return prefill_row(problem, row); });
}

void decode(const DecodeProblem& problem, int threads) {
  const bool scaled = problem.pool.kv_scales != nullptr || problem.second_pool.kv_scales != nullptr;
  if (scaled && problem.d % kScaleGroup != 0) {
    throw std::invalid_argument("kv_scales need d to be a multiple of 64, got " + std::to_string(problem.d));
  }
  serve_on_threads(problem.n, problem.h, threads, [&problem](std::int64_t row) { return decode_row(problem, row); });
}

std::string simd_target() {
  return amx_is_allowed && amx_available() ? std::string(kAmxName) : vector_target();
}

std::vector<std::string> simd_targets() {
  std::vector<std::string> names = vector_targets();
  if (amx_available()) names.insert(names.begin(), std::string(kAmxName));
  return names;
}

void force_simd_target(std::string_view name) {
  const bool amx = name == kAmxName && amx_available();
  force_vector_target(amx ? std::string_view() : name);
  amx_is_allowed = amx || name.empty();
}

}  // namespace sparse_mla::cpu
