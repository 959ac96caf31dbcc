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

constexpr int kSets = 4;
constexpr int kLaunches = 12;
constexpr int kGroup = 64;
constexpr float kQStandardDeviation = 3.0f;
constexpr float kLowScale = 0.05f;
constexpr float kHighScale = 0.25f;

struct Set {
  cuda::DeviceBuffer q, indices, out;
};

// One pool, and several sets of queries and slot lists: the lists of one launch do not stay in the L2 for the next.
class DecodeInputs {
 public:
  explicit DecodeInputs(const DecodeShape& shape) : shape_(shape) {
    const std::int64_t values = shape.pool_rows * kDecodeDim;
    if (shape.pool == Pool::kFp8) {
      kv_ = cuda::DeviceBuffer(values);
      fill_normal_e4m3(kv_.as<std::uint8_t>(), values, 1.0f, 2000);
      scales_ = cuda::DeviceBuffer(values / kGroup * 4);
      fill_uniform(scales_.as<float>(), values / kGroup, kLowScale, kHighScale, 2001);
    } else {
      kv_ = cuda::DeviceBuffer(values * 2);
      fill_normal_bf16(kv_.as<std::uint16_t>(), values, 0.15f, 2000);
    }
    indptr_ = cuda::DeviceBuffer((shape.n + 1) * 4);
    fill_steps(indptr_.as<std::int32_t>(), shape.n + 1, static_cast<std::int32_t>(shape.slots));
    sink_ = cuda::DeviceBuffer(shape.h * 4);
    fill_uniform(sink_.as<float>(), shape.h, -1.0f, 1.0f, 2002);
    for (int i = 0; i < kSets; ++i) sets_.push_back(make_set(i));
    workspace_ = cuda::DeviceBuffer(cuda::decode_workspace_bytes(problem(0), {}));
  }

  DecodeProblem problem(int set) const {
    const Set& s = sets_[set];
    DecodeProblem p;
    p.n = shape_.n;
    p.h = shape_.h;
    p.d = p.d_v = kDecodeDim;
    p.q = s.q.data();
    p.q_head_stride = kDecodeDim;
    p.q_row_stride = std::int64_t{shape_.h} * kDecodeDim;
    p.pool.total_pages = shape_.pool_rows;
    p.pool.kv_dtype = shape_.pool == Pool::kFp8 ? DType::kFloat8E4M3FN : DType::kBFloat16;
    p.pool.kv = kv_.data();
    p.pool.kv_row_stride = kDecodeDim;
    p.pool.kv_scales = scales_.bytes() > 0 ? scales_.as<const float>() : nullptr;
    p.pool.kv_scales_row_stride = kDecodeDim / kGroup;
    p.pool.indices = s.indices.as<const std::int32_t>();
    p.pool.total_indices = shape_.n * shape_.slots;
    p.pool.indptr = indptr_.as<const std::int32_t>();
    p.attn_sink = sink_.as<const float>();
    p.softmax_scale = 1.0f / std::sqrt(static_cast<float>(kDecodeDim));
    p.out = s.out.data();
    return p;
  }

  cuda::Launch launch(cudaStream_t stream) const {
    return {.stream = stream, .workspace = workspace_.data(), .workspace_bytes = workspace_.bytes()};
  }

  // The relative error of first and last token of set 0.
  double error() const {
    std::vector<std::byte> kv(kv_.bytes()), scales(scales_.bytes());
    std::vector<std::uint16_t> q(sets_[0].q.bytes() / 2), out(sets_[0].out.bytes() / 2);
    std::vector<std::int32_t> indices(sets_[0].indices.bytes() / 4), indptr(indptr_.bytes() / 4);
    std::vector<float> sink(shape_.h);
    kv_.copy_to_host(kv.data());
    scales_.copy_to_host(scales.data());
    sets_[0].q.copy_to_host(q.data());
    sets_[0].out.copy_to_host(out.data());
    sets_[0].indices.copy_to_host(indices.data());
    indptr_.copy_to_host(indptr.data());
    sink_.copy_to_host(sink.data());
    DecodeProblem host = problem(0);
    host.q = q.data();
    host.pool.kv = kv.data();
    if (!scales.empty()) host.pool.kv_scales = reinterpret_cast<const float*>(scales.data());
    host.pool.indices = indices.data();
    host.pool.indptr = indptr.data();
    host.attn_sink = sink.data();
    double worst = 0;
    const std::int64_t count = std::int64_t{shape_.h} * kDecodeDim;
    for (const std::int64_t row : {std::int64_t{0}, shape_.n - 1}) {
      const reference::DecodeResult want = reference::decode(host, row, 1);
      worst = std::max(worst, relative_error_bf16(out.data() + row * count, want.out.data(), count));
    }
    return worst;
  }

 private:
  Set make_set(int i) const {
    const std::int64_t values = shape_.n * shape_.h * kDecodeDim;
    const std::uint64_t seed = 3000 + 10 * static_cast<std::uint64_t>(i);
    Set s{cuda::DeviceBuffer(values * 2), cuda::DeviceBuffer(shape_.n * shape_.slots * 4),
          cuda::DeviceBuffer(values * 2)};
    fill_normal_bf16(s.q.as<std::uint16_t>(), values, kQStandardDeviation, seed);
    fill_unique_indices(s.indices.as<std::int32_t>(), shape_.n, shape_.slots, shape_.pool_rows, seed + 1);
    fill_nan(s.out.data(), s.out.bytes());
    return s;
  }

  DecodeShape shape_;
  cuda::DeviceBuffer kv_, scales_, indptr_, sink_;
  std::vector<Set> sets_;
  cuda::DeviceBuffer workspace_;
};

}  // namespace

std::string shape_name(const DecodeShape& shape) {
  ProblemName name;
  name.entry_point = ProblemName::EntryPoint::kDecode;
  name.rows = shape.n;
  name.kv_rows = shape.pool_rows;
  name.topk = shape.slots;
  name.heads = shape.h;
  name.d = kDecodeDim;
  name.sink = true;
  if (shape.pool == Pool::kFp8) name.kv_format = ProblemName::KvFormat::kFp8;
  return to_string(name);
}

nlohmann::json bench_shape(const DecodeShape& shape, const GpuBenchOptions& options, const Ceilings& ceilings) {
  const DecodeInputs inputs(shape);
  const Spread us = time_graph(
      [&](int repetition, cudaStream_t stream) {
        cuda::decode(inputs.problem(repetition % kSets), inputs.launch(stream));
      },
      kLaunches, options.samples, 5);
  const double flop = 4.0 * shape.n * shape.h * shape.slots * kDecodeDim;
  const double row_bytes = shape.pool == Pool::kFp8 ? kDecodeDim + kDecodeDim / kGroup * 4 : 2 * kDecodeDim;
  const double bytes = shape.n * (shape.slots * (row_bytes + 4) + 4.0 * shape.h * kDecodeDim);
  nlohmann::json entry = to_json(us);
  entry["name"] = shape_name(shape);
  entry["timing"] = "CUDA graph of 12 launches over 4 sets of queries and slot lists, per launch";
  entry["input_sets"] = kSets;
  entry["tflops"] = flop / us.median * 1e-6;
  if (ceilings.bf16_tflops > 0) entry["of_bf16_gemm"] = flop / us.median * 1e-6 / ceilings.bf16_tflops;
  entry["bytes_per_s"] = bytes / us.median * 1e6;
  if (ceilings.copy_bytes_per_s > 0) entry["of_copy"] = bytes / us.median * 1e6 / ceilings.copy_bytes_per_s;
  if (options.check) entry["relative_error"] = inputs.error();
  return entry;
}

}  // namespace sparse_mla::bench
