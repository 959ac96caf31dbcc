#include "cli/runner.h"

#include <algorithm>

#include "base/cores.h"
#include "base/problem_name.h"
#include "dispatch/problems.h"

namespace sparse_mla::cli {
namespace {

// Rows [begin, begin + count) of a tensor's first dimension.
Tensor sliced(Tensor tensor, std::int64_t begin, std::int64_t count) {
  tensor.data =
      tensor.as<char>() + begin * tensor.strides[0] * static_cast<std::int64_t>(bytes_per_element(tensor.dtype));
  tensor.shape[0] = count;
  return tensor;
}

Argument sliced(const Argument& argument, std::int64_t begin, std::int64_t count) {
  const Tensor* tensor = argument.tensor();
  return tensor == nullptr ? argument : Argument(sliced(*tensor, begin, count));
}

PrefillCall rows(PrefillCall call, std::int64_t begin, std::int64_t count) {
  call.q = sliced(call.q, begin, count);
  call.indices = sliced(call.indices, begin, count);
  call.topk_length = sliced(call.topk_length, begin, count);
  call.out = sliced(call.out, begin, count);
  call.max_logits = sliced(call.max_logits, begin, count);
  call.lse = sliced(call.lse, begin, count);
  return call;
}

DecodeCall rows(DecodeCall call, std::int64_t begin, std::int64_t count) {
  call.q = sliced(call.q, begin, count);
  call.pool.kv_indptr = sliced(call.pool.kv_indptr, begin, count + 1);
  if (call.second_pool) call.second_pool->kv_indptr = sliced(call.second_pool->kv_indptr, begin, count + 1);
  call.out = sliced(call.out, begin, count);
  call.lse = sliced(call.lse, begin, count);
  return call;
}

void run(const PrefillCall& call, const RunOptions& options) { prefill(call, options); }
void run(const DecodeCall& call, const RunOptions& options) { decode(call, options); }

void run_any(const files::AnyCall& call, Backend backend) {
  std::visit([backend](const auto& one) { run(one, {.backend = backend}); }, call);
}

std::size_t product(std::int64_t a, std::int64_t b, std::int64_t c = 1) { return static_cast<std::size_t>(a * b * c); }

}  // namespace

files::AnyCall rows_of(const files::AnyCall& call, std::int64_t begin, std::int64_t count) {
  return std::visit([begin, count](const auto& one) -> files::AnyCall { return rows(one, begin, count); }, call);
}

std::int64_t row_count(const files::AnyCall& call) {
  return std::visit([](const auto& one) { return one.q.shape[0]; }, call);
}

std::string shape_text(const files::AnyCall& call) {
  if (const auto* prefill = std::get_if<PrefillCall>(&call))
    return to_string(name_of(dispatch::prefill_problem(*prefill)));
  return to_string(name_of(dispatch::decode_problem(std::get<DecodeCall>(call))));
}

CallWithOutputs::CallWithOutputs(const files::AnyCall& call, bool decode_lse) : call_(call) {
  if (auto* prefill = std::get_if<PrefillCall>(&call_)) {
    add_outputs(*prefill);
  } else {
    add_outputs(std::get<DecodeCall>(call_), decode_lse);
  }
}

std::int64_t CallWithOutputs::rows() const { return row_count(call_); }

void CallWithOutputs::add_outputs(PrefillCall& call) {
  const std::int64_t s_q = call.q.shape[0], h_q = call.q.shape[1];
  out_.resize(product(s_q, h_q, call.d_v));
  max_logits_.resize(product(s_q, h_q));
  lse_.resize(product(s_q, h_q));
  call.out = Tensor(out_.data(), DType::kBFloat16, {s_q, h_q, call.d_v});
  call.max_logits = Tensor(max_logits_.data(), DType::kFloat32, {s_q, h_q});
  call.lse = Tensor(lse_.data(), DType::kFloat32, {s_q, h_q});
}

void CallWithOutputs::add_outputs(DecodeCall& call, bool with_lse) {
  const std::int64_t n = call.q.shape[0], h = call.q.shape[1];
  const std::int64_t d_v = call.d_v == 0 ? call.q.shape[2] : call.d_v;
  out_.resize(product(n, h, d_v));
  call.out = Tensor(out_.data(), call.q.dtype, {n, h, d_v});
  call.lse = std::nullopt;
  if (with_lse) {
    lse_.resize(product(n, h));
    call.lse = Tensor(lse_.data(), DType::kFloat32, {n, h});
  }
}

void run_call(const files::AnyCall& call, Backend backend, Progress* progress) {
  const std::int64_t rows = row_count(call);
  if (progress == nullptr || !progress->visible() || backend != Backend::kCpu) {
    run_any(call, backend);
    return;
  }
  // Enough rows for every thread, and some fifty steps where there are that many.
  const std::int64_t threads = usable_cores();
  const std::int64_t step = std::max(4 * threads, rows / 50);
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    run_any(rows_of(call, begin, std::min(step, rows - begin)), backend);
    progress->set(std::min(begin + step, rows));
  }
  if (rows == 0) run_any(call, backend);
}

}  // namespace sparse_mla::cli
