// Valid CUDA-described calls to break. Big tensors have made-up addresses, since rules on metadata never read them; the
// small ones whose values rules read lie in this object.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "sparse_mla/contract.h"
#include "sparse_mla/kv_cache.h"

namespace sparse_mla::contract_test {

// An address that nothing is at, one terabyte from the next.
inline void* nowhere(std::uintptr_t number) { return reinterpret_cast<void*>((number + 1) << 40); }

inline constexpr Device kGpu = Device::cuda(0);
inline const NotATensor kNumber{"float"};

// The tensor in an argument, on another device, of another dtype, with other strides, elsewhere. What is not a tensor
// stays, so that cases can be combined.
Argument changed(const Argument& argument, auto change) {
  if (argument.tensor() == nullptr) return argument;
  Tensor tensor = *argument.tensor();
  change(tensor);
  return tensor;
}
inline Argument on(Device device, const Argument& argument) {
  return changed(argument, [device](Tensor& tensor) { tensor.device = device; });
}
inline Argument as(DType dtype, const Argument& argument) {
  return changed(argument, [dtype](Tensor& tensor) { tensor.dtype = dtype; });
}
inline Argument strided(const Argument& argument, std::initializer_list<std::int64_t> strides) {
  return changed(argument, [strides](Tensor& tensor) { std::ranges::copy(strides, tensor.strides.begin()); });
}
inline Argument moved(const Argument& argument, std::ptrdiff_t bytes) {
  return changed(argument, [bytes](Tensor& tensor) { tensor.data = tensor.as<char>() + bytes; });
}
inline Tensor strided(const Tensor& tensor, std::initializer_list<std::int64_t> strides) {
  return *strided(Argument(tensor), strides).tensor();
}

struct ValidPrefill {
  static constexpr std::int64_t kQueries = 2, kHeads = 64, kWidth = 576, kTokens = 1024, kTopk = 256;
  using Call = PrefillCall;

  float q_scale_value[2] = {0.5f, 0.5f};
  float kv_scale_value[2] = {0.25f, 0.25f};
  std::array<float, 2 * kHeads> sink{};
  std::array<std::int32_t, 2 * kQueries> lengths{7, 256, 0, 0};
  PrefillCall call;
  CheckOptions options{.values = true, .run_rules = true};

  explicit ValidPrefill(Device device = kGpu) {
    call.q = Tensor(nowhere(0), DType::kFloat8E4M3FN, {kQueries, kHeads, kWidth}, device);
    call.kv = Tensor(nowhere(1), DType::kFloat8E4M3FN, {kTokens, 1, kWidth}, device);
    call.indices = Tensor(nowhere(2), DType::kInt32, {kQueries, 1, kTopk}, device);
    call.sm_scale = 0.04;
    call.q_scale = Tensor(q_scale_value, DType::kFloat32, {1}, device);
    call.kv_scale = Tensor(kv_scale_value, DType::kFloat32, {1}, device);
    call.attn_sink = Tensor(sink.data(), DType::kFloat32, {kHeads}, device);
    call.topk_length = Tensor(lengths.data(), DType::kInt32, {kQueries}, device);
    call.out = Tensor(nowhere(3), DType::kBFloat16, {kQueries, kHeads, 512}, device);
    call.max_logits = Tensor(nowhere(4), DType::kFloat32, {kQueries, kHeads}, device);
    call.lse = Tensor(nowhere(5), DType::kFloat32, {kQueries, kHeads}, device);
  }
  ValidPrefill(const ValidPrefill&) = delete;  // the call points into this object
};

struct ValidDecode {
  static constexpr std::int64_t kTokens = 3, kHeads = 16, kWidth = 512, kPages = 40, kIndices = 9;
  using Call = DecodeCall;

  struct PoolValues {
    std::array<std::int32_t, 2 * (kTokens + 1)> indptr{0, 4, 4, 9};
    std::array<float, 4 * kPages * kWidth / 64> scales{};
  };
  PoolValues first, second;
  std::array<float, 2 * kHeads> sink{};
  DecodeCall call;
  CheckOptions options{.values = true, .run_rules = true};

  // An e4m3fn pool with scales.
  explicit ValidDecode(Device device = kGpu) {
    call.q = Tensor(nowhere(0), DType::kBFloat16, {kTokens, kHeads, kWidth}, device);
    call.pool = make_pool(first, 1, device);
    call.attn_sink = Tensor(sink.data(), DType::kFloat32, {kHeads}, device);
    call.softmax_scale = 0.06;
    call.out = Tensor(nowhere(7), DType::kBFloat16, {kTokens, kHeads, kWidth}, device);
  }
  ValidDecode(const ValidDecode&) = delete;

  // What only the general API takes.
  void make_general(Device device = kGpu) {
    options.contract = false;
    call.second_pool = make_pool(second, 4, device);
    call.d_v = 448;
    call.out = Tensor(nowhere(7), DType::kBFloat16, {kTokens, kHeads, 448}, device);
    call.lse = Tensor(nowhere(8), DType::kFloat32, {kTokens, kHeads}, device);
  }

 private:
  static PagedPool make_pool(PoolValues& values, std::uintptr_t address, Device device) {
    return {.unified_kv = Tensor(nowhere(address), DType::kFloat8E4M3FN, {kPages, kWidth}, device),
            .kv_indices = Tensor(nowhere(address + 1), DType::kInt32, {kIndices}, device),
            .kv_indptr = Tensor(values.indptr.data(), DType::kInt32, {kTokens + 1}, device),
            .kv_scales = Tensor(values.scales.data(), DType::kFloat32, {kPages, kWidth / 64}, device)};
  }
};

// A gather with remapped indices; make_append() turns it into an append with given scales.
struct ValidKv {
  static constexpr std::int64_t kRows = 40, kCount = 6, kWidth = 512, kGroups = 8;
  using Call = KvCall;

  std::array<std::int32_t, kCount> slots{3, -1, 39, 0, 5, 5};
  std::array<std::int64_t, kCount> targets{9, 8, 7, -1, 1, 0};
  std::array<float, kCount * kGroups> given{};
  KvCall call;
  CheckOptions options{.values = true, .run_rules = true};

  explicit ValidKv(Device device = kGpu) {
    given.fill(0.5f);
    call.source.format = KvFormat::kUnifiedFp8_1x64;
    call.source.data = Tensor(nowhere(0), DType::kFloat8E4M3FN, {kRows, kWidth}, device);
    call.source.scales = Tensor(nowhere(1), DType::kFloat32, {kRows, kGroups}, device);
    call.target.format = KvFormat::kQ8Kv8_512;
    call.target.data = Tensor(nowhere(2), DType::kFloat8E4M3FN, {10, kWidth}, device);
    call.target.scales = Tensor(nowhere(3), DType::kFloat32, {1}, device);
    call.source_slots = Tensor(slots.data(), DType::kInt32, {kCount}, device);
    call.remapped = Tensor(nowhere(4), DType::kInt32, {kCount}, device);
  }
  ValidKv(const ValidKv&) = delete;  // the call points into this object

  void make_append() {
    call.source.format = std::nullopt;
    call.source.data = Tensor(nowhere(0), DType::kBFloat16, {kCount, kWidth}, kGpu);
    call.source.scales = std::nullopt;
    call.target.format = KvFormat::kUnifiedFp8_1x64;
    call.target.scales = Tensor(nowhere(3), DType::kFloat32, {10, kGroups}, kGpu);
    call.source_slots = std::nullopt;
    call.remapped = std::nullopt;
    call.target_slots = Tensor(targets.data(), DType::kInt64, {kCount}, kGpu);
    call.scaling = KvScaling::kGiven;
    call.scales = Tensor(given.data(), DType::kFloat32, {kCount, kGroups}, kGpu);
  }
};

}  // namespace sparse_mla::contract_test
