#include <algorithm>
#include <cmath>
#include <vector>

#include "base/problem_name.h"
#include "cuda/cuda.h"
#include "cuda/device_buffer.h"
#include "gpu/data.h"
#include "gpu/shape_benches.h"
#include "gpu/timing.h"
#include "reference/reference.h"

namespace sparse_mla::bench {
namespace {

constexpr int kDv = 512;
constexpr std::size_t kBytesPastL2 = std::size_t{256} << 20;  // several times the L2 of a Hopper card
constexpr int kMaxSets = 8;
constexpr float kQScale = 1.0f;
constexpr float kKvScale = 1.0f;

// One set of inputs and outputs that no other set shares.
struct Set {
  cuda::DeviceBuffer q, kv, indices, out, max_logits, lse;
};

class PrefillInputs {
 public:
  PrefillInputs(const PrefillShape& shape, int sets) : shape_(shape), scales_(make_scales()) {
    for (int i = 0; i < sets; ++i) sets_.push_back(make_set(i));
    workspace_ = cuda::DeviceBuffer(cuda::prefill_workspace_bytes(problem(0), {}));
  }

  PrefillProblem problem(int set) const {
    const Set& s = sets_[set];
    PrefillProblem p;
    p.s_q = shape_.s_q;
    p.s_kv = shape_.s_kv;
    p.topk = shape_.topk;
    p.h_q = shape_.h_q;
    p.d_qk = shape_.d_qk;
    p.d_v = kDv;
    p.q = s.q.as<const std::uint8_t>();
    p.q_head_stride = shape_.d_qk;
    p.q_row_stride = std::int64_t{shape_.h_q} * shape_.d_qk;
    p.kv = s.kv.as<const std::uint8_t>();
    p.kv_row_stride = shape_.d_qk;
    p.indices = s.indices.as<const std::int32_t>();
    p.indices_row_stride = shape_.topk;
    p.q_scale = scales_.as<const float>();
    p.kv_scale = scales_.as<const float>() + 1;
    p.sm_scale = 1.0f / std::sqrt(static_cast<float>(shape_.d_qk));
    p.out = s.out.as<std::uint16_t>();
    p.max_logits = s.max_logits.as<float>();
    p.lse = s.lse.as<float>();
    return p;
  }

  cuda::Launch launch(cudaStream_t stream) const {
    return {.stream = stream, .workspace = workspace_.data(), .workspace_bytes = workspace_.bytes()};
  }

  const Set& set(int i) const { return sets_[i]; }

  static std::size_t bytes_per_set(const PrefillShape& s) {
    return static_cast<std::size_t>(s.s_q * s.h_q * (s.d_qk + 2 * kDv + 8) + s.s_kv * s.d_qk + s.s_q * s.topk * 4);
  }

 private:
  static cuda::DeviceBuffer make_scales() {
    const float scales[2] = {kQScale, kKvScale};
    return {scales, sizeof(scales)};
  }

  Set make_set(int i) const {
    const std::int64_t heads = shape_.s_q * shape_.h_q;
    const std::uint64_t seed = 1000 + 10 * static_cast<std::uint64_t>(i);
    Set s{cuda::DeviceBuffer(heads * shape_.d_qk),       cuda::DeviceBuffer(shape_.s_kv * shape_.d_qk),
          cuda::DeviceBuffer(shape_.s_q * shape_.topk * 4), cuda::DeviceBuffer(heads * kDv * 2),
          cuda::DeviceBuffer(heads * 4),                 cuda::DeviceBuffer(heads * 4)};
    fill_normal_e4m3(s.q.as<std::uint8_t>(), heads * shape_.d_qk, 1.0f, seed);
    fill_normal_e4m3(s.kv.as<std::uint8_t>(), shape_.s_kv * shape_.d_qk, 1.0f, seed + 1);
    fill_unique_indices(s.indices.as<std::int32_t>(), shape_.s_q, shape_.topk, shape_.s_kv, seed + 2);
    fill_nan(s.out.data(), s.out.bytes());
    return s;
  }

  PrefillShape shape_;
  cuda::DeviceBuffer scales_;
  std::vector<Set> sets_;
  cuda::DeviceBuffer workspace_;
};

// Compares first, middle and last row of set 0 with the reference.
void check_rows(const PrefillInputs& inputs, const PrefillShape& shape, nlohmann::json& entry) {
  PrefillProblem host = inputs.problem(0);
  const std::int64_t heads = shape.s_q * shape.h_q;
  std::vector<std::uint8_t> q(heads * shape.d_qk), kv(shape.s_kv * shape.d_qk);
  std::vector<std::int32_t> indices(shape.s_q * shape.topk);
  std::vector<std::uint16_t> out(heads * kDv);
  std::vector<float> lse(heads);
  inputs.set(0).q.copy_to_host(q.data());
  inputs.set(0).kv.copy_to_host(kv.data());
  inputs.set(0).indices.copy_to_host(indices.data());
  inputs.set(0).out.copy_to_host(out.data());
  inputs.set(0).lse.copy_to_host(lse.data());
  const float scales[2] = {kQScale, kKvScale};
  host.q = q.data();
  host.kv = kv.data();
  host.indices = indices.data();
  host.q_scale = &scales[0];
  host.kv_scale = &scales[1];
  double error_squares = 0, want_squares = 0, lse_error = 0;
  std::vector<std::int64_t> rows{0, shape.s_q / 2, shape.s_q - 1};
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  for (const std::int64_t row : rows) {
    const reference::PrefillResult want = reference::prefill(host, row, 1);
    const std::int64_t count = std::int64_t{shape.h_q} * kDv;
    const double error = relative_error_bf16(out.data() + row * count, want.out.data(), count);
    double norm = 0;
    for (double value : want.out) norm += value * value;
    error_squares += error * error * norm;
    want_squares += norm;
    for (int h = 0; h < shape.h_q; ++h) {
      lse_error = std::max(lse_error, std::fabs(lse[row * shape.h_q + h] - want.lse[h]));
    }
  }
  entry["checked_rows"] = rows;
  entry["relative_error"] = std::sqrt(error_squares / want_squares);
  entry["lse_max_error"] = lse_error;
}

}  // namespace

std::string shape_name(const PrefillShape& shape) {
  ProblemName name;
  name.rows = shape.s_q;
  name.kv_rows = shape.s_kv;
  name.topk = shape.topk;
  name.heads = shape.h_q;
  name.d = shape.d_qk;
  return to_string(name);
}

nlohmann::json bench_shape(const PrefillShape& shape, const GpuBenchOptions& options, const Ceilings& ceilings) {
  const std::size_t set_bytes = PrefillInputs::bytes_per_set(shape);
  const int sets = static_cast<int>(std::clamp<std::size_t>(kBytesPastL2 / set_bytes + 1, 2, kMaxSets));
  const PrefillInputs inputs(shape, sets);
  const auto enqueue = [&](int repetition, cudaStream_t stream) {
    cuda::prefill(inputs.problem(repetition % sets), inputs.launch(stream));
  };
  const bool small = shape.s_q <= 8;
  const Spread us = small ? time_graph(enqueue, 12, options.samples, 5) : time_events(enqueue, options.samples, 5);
  const double flop = 2.0 * shape.s_q * shape.h_q * shape.topk * (shape.d_qk + kDv);
  nlohmann::json entry = to_json(us);
  entry["name"] = shape_name(shape);
  entry["timing"] = small ? "CUDA graph of 12 launches, per launch" : "CUDA events round one launch";
  entry["input_sets"] = sets;
  entry["tflops"] = flop / us.median * 1e-6;
  if (ceilings.e4m3_tflops > 0) entry["of_e4m3_gemm"] = flop / us.median * 1e-6 / ceilings.e4m3_tflops;
  entry["gathered_bytes_per_s"] = 1.0 * shape.s_q * shape.topk * shape.d_qk / us.median * 1e6;
  if (options.check) check_rows(inputs, shape, entry);
  return entry;
}

}  // namespace sparse_mla::bench
