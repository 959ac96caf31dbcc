// Transfers of a million cache rows beside the card's copy bandwidth: each byte counted once read and once written.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/device_buffer.h"
#include "gpu/data.h"
#include "gpu/shape_benches.h"
#include "gpu/timing.h"
#include "sparse_mla/kv_cache.h"

namespace sparse_mla::bench {
namespace {

constexpr int kWarmups = 3;
constexpr float kWorkspaceScale = 0.02f;

const char* name_of(KvVerb verb) {
  switch (verb) {
    case KvVerb::kAppend:
      return "append";
    case KvVerb::kDequantise:
      return "dequantise";
    case KvVerb::kGather:
      break;
  }
  return "gather";
}

// A filled cache, plain bf16 rows, and a random order of all slots: 1M rows are many times the L2.
class KvInputs {
 public:
  explicit KvInputs(const KvShape& shape)
      : shape_(shape),
        cache_({.format = shape.format, .rows = kKvRows, .width = shape.width}, Device::cuda()),
        rows_(static_cast<std::size_t>(kKvRows) * shape.width * 2),
        slots_(kKvRows * 4) {
    fill_normal_bf16(rows_.as<std::uint16_t>(), kKvRows * shape.width, 1.0f, 11);
    fill_unique_indices(slots_.as<std::int32_t>(), 1, kKvRows, kKvRows, 12);
    kv_transfer(kv_append_call(plain(), std::nullopt, cache_.view()));
    if (shape.verb == KvVerb::kGather) {
      workspace_ = KvCache({.format = *q8kv8_format(shape.width), .rows = kKvRows}, Device::cuda());
      cuda::throw_on_error(cudaMemcpy(workspace_.view().scales.tensor()->data, &kWorkspaceScale, sizeof(float),
                                      cudaMemcpyHostToDevice),
                           "the workspace's scale");
      remapped_ = cuda::DeviceBuffer(kKvRows * 4);
    }
    KvCall call = this->call();
    device_workspace_ = cuda::DeviceBuffer(kv_workspace_bytes(call));
  }

  KvCall call() const {
    if (shape_.verb == KvVerb::kAppend) {
      KvCall call = kv_append_call(plain(), slots(), cache_.view());
      call.unique_target_slots = shape_.unique_slots;
      return call;
    }
    if (shape_.verb == KvVerb::kDequantise) return kv_dequantise_call(cache_.view(), std::nullopt, plain());
    return kv_gather_call(cache_.view(), slots(), workspace_.view(),
                          Tensor(remapped_.data(), DType::kInt32, {kKvRows}, Device::cuda()));
  }
  RunOptions options(cudaStream_t stream) const {
    return {.stream = stream,
            .workspace = device_workspace_.data(),
            .workspace_bytes = device_workspace_.bytes()};
  }

  // Read once and written once: rows with their scales, slots, remapped indices.
  double bytes() const {
    const double cache = static_cast<double>(kv_row_bytes(cache_.info(), shape_.width)) +
                         (cache_.info().scale_place == KvScalePlace::kTensor ? shape_.width / 64 * 4 : 0);
    const double plain = 2.0 * shape_.width;
    const double per_row = shape_.verb == KvVerb::kAppend       ? plain + cache + 4
                           : shape_.verb == KvVerb::kDequantise ? cache + plain
                                                                : cache + shape_.width + 8;
    return per_row * kKvRows;
  }

 private:
  Tensor plain() const { return Tensor(rows_.data(), DType::kBFloat16, {kKvRows, shape_.width}, Device::cuda()); }
  Tensor slots() const { return Tensor(slots_.data(), DType::kInt32, {kKvRows}, Device::cuda()); }

  KvShape shape_;
  KvCache cache_;
  cuda::DeviceBuffer rows_, slots_, remapped_, device_workspace_;
  KvCache workspace_{{.format = KvFormat::kQ8Kv8_512, .rows = 0}, Device::cuda()};
};

}  // namespace

std::string shape_name(const KvShape& shape) {
  return std::string("kv:") + name_of(shape.verb) + ":" + std::string(kv_format_name(shape.format)) + ":rows" +
         std::to_string(kKvRows) + ":d" + std::to_string(shape.width) + (shape.unique_slots ? ":unique" : "");
}

nlohmann::json bench_shape(const KvShape& shape, const GpuBenchOptions& options, const Ceilings& ceilings) {
  const KvInputs inputs(shape);
  const KvCall call = inputs.call();
  const Spread us = time_events([&](int, cudaStream_t stream) { kv_transfer(call, inputs.options(stream)); },
                                options.samples, kWarmups);
  const double bytes_per_s = inputs.bytes() / us.median * 1e6;
  nlohmann::json entry = to_json(us);
  entry["name"] = shape_name(shape);
  entry["timing"] = "events around one call; cold: the rows are many times the L2";
  entry["bytes_per_s"] = bytes_per_s;
  if (ceilings.copy_bytes_per_s > 0) entry["of_copy"] = bytes_per_s / ceilings.copy_bytes_per_s;
  return entry;
}

}  // namespace sparse_mla::bench
