#include "dispatch/problems.h"

#include <stdexcept>
#include <string>

namespace sparse_mla::dispatch {
namespace {

template <class T>
T* data_or_null(const Argument& argument) {
  const Tensor* tensor = argument.tensor();
  return tensor == nullptr ? nullptr : tensor->as<T>();
}

PoolProblem pool_problem(const PagedPool& pool) {
  PoolProblem problem;
  problem.total_pages = pool.unified_kv.shape[0];
  problem.kv_dtype = pool.unified_kv.dtype;
  problem.kv = pool.unified_kv.data;
  problem.kv_row_stride = pool.unified_kv.strides[0];
  if (const Tensor* scales = pool.kv_scales.tensor()) {
    problem.kv_scales = scales->as<const float>();
    problem.kv_scales_row_stride = scales->strides[0];
  }
  problem.indices = pool.kv_indices.as<const std::int32_t>();
  problem.total_indices = pool.kv_indices.shape[0];
  problem.indptr = pool.kv_indptr.as<const std::int32_t>();
  return problem;
}

// Makes the pool's scales dense; `copy` becomes their memory where they are not.
void make_dense(PagedPool& pool, std::vector<float>& copy) {
  const Tensor* scales = pool.kv_scales.tensor();
  if (scales == nullptr || scales->strides[1] == 1 || scales->shape[1] <= 1) return;
  if (!scales->device.is_cpu()) {
    throw std::runtime_error("kv_scales on " + to_string(scales->device) +
                             " must be contiguous in its last dimension, got strides " +
                             shape_string({scales->strides.data(), 2}) + ": pass kv_scales.contiguous()");
  }
  const std::int64_t rows = scales->shape[0], groups = scales->shape[1];
  copy.reserve(static_cast<std::size_t>(rows * groups));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t group = 0; group < groups; ++group) {
      copy.push_back(scales->as<const float>()[row * scales->strides[0] + group * scales->strides[1]]);
    }
  }
  pool.kv_scales = Tensor(copy.data(), DType::kFloat32, {rows, groups});
}

}  // namespace

DenseScales::DenseScales(const DecodeCall& call) : call_(call) {
  make_dense(call_.pool, copies_[0]);
  if (call_.second_pool) make_dense(*call_.second_pool, copies_[1]);
}

PrefillProblem prefill_problem(const PrefillCall& call) {
  PrefillProblem problem;
  problem.s_q = call.q.shape[0];
  problem.s_kv = call.kv.shape[0];
  problem.topk = call.indices.shape[2];
  problem.h_q = static_cast<int>(call.q.shape[1]);
  problem.d_qk = static_cast<int>(call.q.shape[2]);
  problem.d_v = static_cast<int>(call.d_v);
  problem.q = call.q.as<const std::uint8_t>();
  problem.q_row_stride = call.q.strides[0];
  problem.q_head_stride = call.q.strides[1];
  problem.kv = call.kv.as<const std::uint8_t>();
  problem.kv_row_stride = call.kv.strides[0];
  problem.indices = call.indices.as<const std::int32_t>();
  problem.indices_row_stride = call.indices.strides[0];
  problem.topk_length = data_or_null<const std::int32_t>(call.topk_length);
  problem.attn_sink = data_or_null<const float>(call.attn_sink);
  problem.q_scale = data_or_null<const float>(call.q_scale);
  problem.kv_scale = data_or_null<const float>(call.kv_scale);
  problem.sm_scale = static_cast<float>(call.sm_scale);
  problem.out = data_or_null<std::uint16_t>(call.out);
  problem.max_logits = data_or_null<float>(call.max_logits);
  problem.lse = data_or_null<float>(call.lse);
  return problem;
}

DecodeProblem decode_problem(const DecodeCall& call) {
  DecodeProblem problem;
  problem.n = call.q.shape[0];
  problem.h = static_cast<int>(call.q.shape[1]);
  problem.d = static_cast<int>(call.q.shape[2]);
  problem.d_v = call.d_v == 0 ? problem.d : static_cast<int>(call.d_v);
  problem.q_dtype = call.q.dtype;
  problem.q = call.q.data;
  problem.q_row_stride = call.q.strides[0];
  problem.q_head_stride = call.q.strides[1];
  problem.pool = pool_problem(call.pool);
  if (call.second_pool) problem.second_pool = pool_problem(*call.second_pool);
  problem.attn_sink = data_or_null<const float>(call.attn_sink);
  problem.softmax_scale = static_cast<float>(call.softmax_scale);
  problem.out = data_or_null<void>(call.out);
  problem.lse = data_or_null<float>(call.lse);
  return problem;
}

}  // namespace sparse_mla::dispatch
