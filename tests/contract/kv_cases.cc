#include <cmath>
#include <limits>

#include "contract/cases.h"

namespace sparse_mla::contract_test {
namespace {

using V = ValidKv;
constexpr DType kFp8 = DType::kFloat8E4M3FN, kF32 = DType::kFloat32, kI32 = DType::kInt32, kI64 = DType::kInt64,
                kBf16 = DType::kBFloat16;
constexpr Device kOther = Device::cuda(1), kMeta{Device::Kind::kMeta, 0};

void make_v4(KvRows& rows, std::int64_t page_bytes, std::int64_t page_size, int number) {
  rows.format = KvFormat::kV4_584;
  rows.data = Tensor(nowhere(number), DType::kUInt8, {4, page_bytes}, kGpu);
  rows.scales = std::nullopt;
  rows.page_size = page_size;
}

std::vector<Case<V>> source_cases() {
  return {
      {"kv-source-rank", false, [](V& v) { v.call.source.data = Tensor(nowhere(0), kFp8, {40}, kGpu); },
       "source (unified_fp8_1x64) must have shape (rows, D) or (pages, page_size, D), got (40,)", "source"},
      {"kv-source-float8-variant", false, [](V& v) { v.call.source.data.dtype = DType::kFloat8E4M3FNUZ; },
       "source (unified_fp8_1x64) must be torch.float8_e4m3fn, got torch.float8_e4m3fnuz, whose exponent bias is 8, not "
       "7: its codes mean half as much",
       "source"},
      {"kv-source-dtype", false, [](V& v) { v.call.source.data.dtype = DType::kUInt8; },
       "source (unified_fp8_1x64) must be torch.float8_e4m3fn, got torch.uint8", "source"},
      {"kv-source-dtype", true, [](V& v) { v.call.source.data.dtype = DType::kFloat64; },
       "source (plain) must be torch.bfloat16, torch.float16 or torch.float32, got torch.float64", "source"},
      {"kv-source-row-width", false, [](V& v) { v.call.source.data = Tensor(nowhere(0), kFp8, {40, 528}, kGpu); },
       "source (unified_fp8_1x64) must have rows of a multiple of 64 up to 1024 elements, got 528", "source"},
      {"kv-source-page-bytes", false, [](V& v) { make_v4(v.call.source, 64 * 584, 0, 0); },
       "source (v4_584) with pages of 64 rows must have 37440 bytes a page, got 37376", "source"},
      {"kv-source-scales-absent", false, [](V& v) { v.call.source.scales = kNumber; },
       "source.scales must be a float32 tensor for unified_fp8_1x64, got float", "source.scales"},
      {"kv-source-scales-needless", true, [](V& v) { v.call.source.scales = Tensor(nowhere(1), kF32, {1}, kGpu); },
       "source.scales must be None for plain rows", "source.scales"},
      {"kv-source-scales-shape", false,
       [](V& v) { v.call.source.scales = Tensor(nowhere(1), kF32, {40, 4}, kGpu); },
       "source.scales must have shape (40, 8) for unified_fp8_1x64, got (40, 4)", "source.scales"},
      {"kv-source-rows-int32", false,
       [](V& v) {
         v.call.source.data = Tensor(nowhere(0), kFp8, {std::int64_t{1} << 31, 512}, kGpu);
         v.call.source.scales = Tensor(nowhere(10), kF32, {std::int64_t{1} << 31, 8}, kGpu);
         v.call.target.data.data = nowhere(20);
         v.call.target.scales = Tensor(nowhere(21), kF32, {1}, kGpu);
         v.call.remapped = Tensor(nowhere(22), kI32, {V::kCount}, kGpu);
       },
       "source must have fewer than 2**31 rows, got 2147483648", "source"},
  };
}

std::vector<Case<V>> target_cases() {
  return {
      {"kv-target-rank", false, [](V& v) { v.call.target.data = Tensor(nowhere(2), kFp8, {10, 1, 1, 512}, kGpu); },
       "target (q8kv8_512) must have shape (rows, 512) or (pages, page_size, 512), got (10, 1, 1, 512)", "target"},
      {"kv-target-float8-variant", false, [](V& v) { v.call.target.data.dtype = DType::kFloat8E5M2; },
       "target (q8kv8_512) must be torch.float8_e4m3fn, got torch.float8_e5m2, which has 5 exponent and 2 mantissa "
       "bits, not 4 and 3",
       "target"},
      {"kv-target-dtype", false, [](V& v) { v.call.target.data.dtype = kBf16; },
       "target (q8kv8_512) must be torch.float8_e4m3fn, got torch.bfloat16", "target"},
      {"kv-target-row-width", false, [](V& v) { v.call.target.data = Tensor(nowhere(2), kFp8, {10, 576}, kGpu); },
       "target (q8kv8_512) must have rows of 512 elements, got 576", "target"},
      {"kv-target-page-bytes", false, [](V& v) { make_v4(v.call.target, 1152, 2, 2); },
       "target (v4_584) with pages of 2 rows must have 1728 bytes a page, got 1152", "target"},
      {"kv-target-scales-absent", false, [](V& v) { v.call.target.scales = std::nullopt; },
       "target.scales must be a float32 tensor for q8kv8_512, got None", "target.scales"},
      {"kv-target-scales-needless", false,
       [](V& v) {
         v.call.target.format = KvFormat::kUnifiedBf16;
         v.call.target.data.dtype = kBf16;
       },
       "target.scales must be None for unified_bf16 rows", "target.scales"},
      {"kv-target-scales-shape", false, [](V& v) { v.call.target.scales = Tensor(nowhere(3), kF32, {10}, kGpu); },
       "target.scales must have shape (1,) for q8kv8_512, got (10,)", "target.scales"},
      {"kv-target-rows-int32", false,
       [](V& v) {
         v.call.target.data = Tensor(nowhere(2), kFp8, {std::int64_t{1} << 31, 512}, kGpu);
         v.call.target.scales = Tensor(nowhere(10), kF32, {1}, kGpu);
         v.call.remapped = Tensor(nowhere(12), kI32, {V::kCount}, kGpu);
       },
       "target must have fewer than 2**31 rows, got 2147483648", "target"},
  };
}

std::vector<Case<V>> layout_cases() {
  return {
      {"kv-size-negative", false, [](V& v) { v.call.source.data.shape[0] = -1; },
       "source must have sizes of 0 or more, got (-1, 512)", "source"},
      {"kv-stride-negative", false, [](V& v) { v.call.target.data = strided(v.call.target.data, {-512, 1}); },
       "target must have strides of 0 or more, got (-512, 1)", "target"},
      {"kv-span", false,
       [](V& v) { v.call.source.data = strided(v.call.source.data, {std::int64_t{1} << 60, 1}); },
       "source must span less than 2**63 bytes, got shape (40, 512) and strides (1152921504606846976, 1)", "source"},
      {"kv-source-last-dim", false, [](V& v) { v.call.source.data = strided(v.call.source.data, {1024, 2}); },
       "source must be contiguous in its last dimension, got strides (1024, 2)", "source"},
      {"kv-target-last-dim", false, [](V& v) { v.call.target.data = strided(v.call.target.data, {1024, 2}); },
       "target must be contiguous in its last dimension, got strides (1024, 2)", "target"},
      {"kv-source-scales-dtype", false, [](V& v) { v.call.source.scales = as(kBf16, v.call.source.scales); },
       "source.scales must be float32, got torch.bfloat16", "source.scales"},
      {"kv-target-scales-dtype", false, [](V& v) { v.call.target.scales = as(DType::kFloat64, v.call.target.scales); },
       "target.scales must be float32, got torch.float64", "target.scales"},
      {"kv-scales-dtype", true, [](V& v) { v.call.scales = as(kBf16, v.call.scales); },
       "scales must be float32, got torch.bfloat16", "scales"},
      {"kv-source-scales-last-dim", false, [](V& v) { v.call.source.scales = strided(v.call.source.scales, {16, 2}); },
       "source.scales must be contiguous in its last dimension, got strides (16, 2)", "source.scales"},
      {"kv-target-scales-last-dim", true, [](V& v) { v.call.target.scales = strided(v.call.target.scales, {16, 2}); },
       "target.scales must be contiguous in its last dimension, got strides (16, 2)", "target.scales"},
      {"kv-scales-last-dim", true,
       [](V& v) {
         v.call.scales = strided(v.call.scales, {1, 6});  // the transpose, within the same memory
       },
       "scales must be contiguous in its last dimension, got strides (1, 6)", "scales"},
      {"kv-source-slots-tensor", false,
       [](V& v) {
         v.call.source_slots = kNumber;
         v.call.remapped = std::nullopt;
         v.call.target.data = Tensor(nowhere(2), kFp8, {40, 512}, kGpu);
       },
       "source_slots must be a torch.Tensor", "source_slots"},
      {"kv-target-slots-tensor", false, [](V& v) { v.call.target_slots = kNumber; },
       "target_slots must be a torch.Tensor", "target_slots"},
      {"kv-remapped-tensor", false, [](V& v) { v.call.remapped = kNumber; }, "remapped must be a torch.Tensor",
       "remapped"},
      {"kv-source-slots-dtype", false, [](V& v) { v.call.source_slots = as(DType::kInt16, v.call.source_slots); },
       "source_slots must be int32 or int64, got torch.int16", "source_slots"},
      {"kv-target-slots-dtype", true, [](V& v) { v.call.target_slots = as(kF32, v.call.target_slots); },
       "target_slots must be int32 or int64, got torch.float32", "target_slots"},
      {"kv-source-slots-contiguous", false,
       [](V& v) {
         v.call.source_slots = Tensor(v.slots.data(), kI32, {2}, kGpu);
         v.call.source_slots = strided(v.call.source_slots, {3});
         v.call.remapped = Tensor(nowhere(4), kI32, {2}, kGpu);
       },
       "source_slots must be contiguous", "source_slots"},
      {"kv-target-slots-contiguous", true,
       [](V& v) {
         v.call.target_slots = strided(v.call.target_slots, {0});  // one slot, six times
       },
       "target_slots must be contiguous", "target_slots"},
      {"kv-remapped-contiguous", false, [](V& v) { v.call.remapped = strided(v.call.remapped, {2}); },
       "remapped must be contiguous", "remapped"},
      {"kv-source-row-alignment", false, [](V& v) { v.call.source.data.data = v.call.source.data.as<char>() + 8; },
       "source must have rows that start at multiples of 16 bytes, got address 1099511627784 and strides (512, 1) of "
       "torch.float8_e4m3fn",
       "source"},
      {"kv-target-row-alignment", false, [](V& v) { v.call.target.data.strides[0] = 520; },
       "target must have rows that start at multiples of 16 bytes, got address 3298534883328 and strides (520, 1) of "
       "torch.float8_e4m3fn",
       "target"},
      {"kv-source-scales-alignment", false, [](V& v) { v.call.source.scales = moved(v.call.source.scales, 2); },
       "source.scales must start at a multiple of 4 bytes, got address 2199023255554", "source.scales"},
      {"kv-target-scales-alignment", false, [](V& v) { v.call.target.scales = moved(v.call.target.scales, 2); },
       "target.scales must start at a multiple of 4 bytes, got address 4398046511106", "target.scales"},
      {"kv-scales-alignment", true,
       [](V& v) {
         v.options.values = false;
         v.call.scales = moved(Tensor(nowhere(7), kF32, {V::kCount, V::kGroups}, kGpu), 2);
       },
       "scales must start at a multiple of 4 bytes, got address 8796093022210", "scales"},
      {"kv-source-slots-alignment", false,
       [](V& v) {
         v.options.values = false;
         v.call.source_slots = moved(Tensor(nowhere(7), kI32, {V::kCount}, kGpu), 2);
       },
       "source_slots must start at a multiple of 4 bytes, got address 8796093022210", "source_slots"},
      {"kv-target-slots-alignment", true,
       [](V& v) {
         v.options.values = false;
         v.call.target_slots = moved(Tensor(nowhere(7), kI64, {V::kCount}, kGpu), 2);
       },
       "target_slots must start at a multiple of 4 bytes, got address 8796093022210", "target_slots"},
      {"kv-remapped-alignment", false, [](V& v) { v.call.remapped = moved(v.call.remapped, 2); },
       "remapped must start at a multiple of 4 bytes, got address 5497558138882", "remapped"},
  };
}

std::vector<Case<V>> device_cases() {
  return {
      {"kv-source-computes", false,
       [](V& v) {
         v.call.source.data.device = v.call.target.data.device = kMeta;
         v.call.source.scales = on(kMeta, v.call.source.scales);
         v.call.target.scales = on(kMeta, v.call.target.scales);
         v.call.source_slots = on(kMeta, v.call.source_slots);
         v.call.remapped = on(kMeta, v.call.remapped);
       },
       "source must be a CPU or CUDA tensor, got meta", "source"},
      {"kv-source-scales-device", false, [](V& v) { v.call.source.scales = on(kOther, v.call.source.scales); },
       "source.scales must be on source's device cuda:0, got cuda:1", "source.scales"},
      {"kv-target-device", false, [](V& v) { v.call.target.data.device = kOther; },
       "target must be on source's device cuda:0, got cuda:1", "target"},
      {"kv-target-scales-device", false, [](V& v) { v.call.target.scales = on(kOther, v.call.target.scales); },
       "target.scales must be on source's device cuda:0, got cuda:1", "target.scales"},
      {"kv-source-slots-device", false, [](V& v) { v.call.source_slots = on(kOther, v.call.source_slots); },
       "source_slots must be on source's device cuda:0, got cuda:1", "source_slots"},
      {"kv-target-slots-device", true, [](V& v) { v.call.target_slots = on(Device::cpu(), v.call.target_slots); },
       "target_slots must be on source's device cuda:0, got cpu", "target_slots"},
      {"kv-remapped-device", false, [](V& v) { v.call.remapped = on(kOther, v.call.remapped); },
       "remapped must be on source's device cuda:0, got cuda:1", "remapped"},
      {"kv-scales-device", true, [](V& v) { v.call.scales = on(kOther, v.call.scales); },
       "scales must be on source's device cuda:0, got cuda:1", "scales"},
  };
}

std::vector<Case<V>> slot_cases() {
  return {
      {"kv-slot-counts-match", true,
       [](V& v) {
         v.call.source_slots = Tensor(v.slots.data(), kI32, {5}, kGpu);
         v.slots.fill(0);
         v.call.scales = Tensor(v.given.data(), kF32, {5, 8}, kGpu);
       },
       "target_slots must have as many values as source_slots (5), got 6", "target_slots"},
      {"kv-transfer-int32", false,
       [](V& v) {
         v.options.values = false;
         v.call.source_slots = Tensor(nowhere(10), kI32, {std::int64_t{1} << 31}, kGpu);
         v.call.target_slots = Tensor(nowhere(12), kI32, {std::int64_t{1} << 31}, kGpu);
         v.call.remapped = std::nullopt;
       },
       "a transfer must have fewer than 2**31 rows, got 2147483648", "source_slots"},
      {"kv-source-row-per-slot", true, [](V& v) { v.call.source.data.shape[0] = 7; },
       "source must have a row for each of the 6 target_slots, got 7 rows", "source"},
      {"kv-target-short", false, [](V& v) { v.call.first_row = 5; },
       "target has 10 rows, 6 are needed from row 5 on", "target"},
      {"kv-target-short", false, [](V& v) { v.call.target.data.shape[0] = 5; },
       "target has 5 rows, 6 are needed from row 0 on", "target"},
      {"kv-first-row-with-slots", true, [](V& v) { v.call.first_row = 2; },
       "first_row must be 0 with target_slots, which name the rows, got 2", "first_row"},
      {"kv-remapped-alone", true, [](V& v) { v.call.remapped = Tensor(nowhere(4), kI32, {V::kCount}, kGpu); },
       "remapped needs source_slots and no target_slots", "remapped"},
      {"kv-remapped-shape", false, [](V& v) { v.call.remapped = Tensor(nowhere(4), kI64, {V::kCount}, kGpu); },
       "remapped must be int32 with source_slots' shape (6,), got (6,)/torch.int64", "remapped"},
      {"kv-source-slots-range", false, [](V& v) { v.slots[4] = 40; },
       "source_slots values must be -1 or a row of the cache (0 to 39), got 40 at [4]", "source_slots"},
      {"kv-source-slots-range", false, [](V& v) { v.slots[4] = -2; },
       "source_slots values must be -1 or a row of the cache (0 to 39), got -2 at [4]", "source_slots"},
      {"kv-target-slots-range", true, [](V& v) { v.targets[1] = std::int64_t{1} << 32; },
       "target_slots values must be -1 or a row of the cache (0 to 9), got 4294967296 at [1]", "target_slots"},
  };
}

std::vector<Case<V>> whole_cases() {
  return {
      {"kv-widths-match", false,
       [](V& v) {
         v.call.source.data = Tensor(nowhere(0), kFp8, {40, 576}, kGpu);
         v.call.source.scales = Tensor(nowhere(1), kF32, {40, 9}, kGpu);
       },
       "target must have source's 576 values a row, got 512", "target"},
      {"kv-sides-overlap", false, [](V& v) { v.call.target.data.data = v.call.source.data.as<char>() + 512; },
       "source and target must not share memory", "target"},
      {"kv-scaling-exponents", false,
       [](V& v) {
         make_v4(v.call.target, 1728, 2, 2);
         v.call.scaling = KvScaling::kAmax;
       },
       "v4_584 stores scales as exponents, got the scaling a / 448", "scaling"},
      {"kv-scaling-unscaled", false,
       [](V& v) {
         v.call.target.format = KvFormat::kUnifiedBf16;
         v.call.target.data.dtype = kBf16;
         v.call.target.scales = std::nullopt;
         v.call.scaling = KvScaling::kAmaxPowerOfTwo;
       },
       "target (unified_bf16) has no scales to make", "scaling"},
      {"kv-scales-given", true, [](V& v) { v.call.scales = std::nullopt; },
       "scales must be a float32 tensor, got None", "scales"},
      {"kv-scales-given", false, [](V& v) { v.call.scales = Tensor(v.given.data(), kF32, {V::kCount, 8}, kGpu); },
       "scales must be None, got a tensor", "scales"},
      {"kv-scales-shape", true, [](V& v) { v.call.scales = Tensor(v.given.data(), kF32, {V::kCount, 4}, kGpu); },
       "scales must have shape (6, 8), got (6, 4)", "scales"},
      {"kv-scales-positive", true, [](V& v) { v.given[9] = 0.0f; },
       "scales must be finite and above 0, got 0 at [1, 1]", "scales"},
      {"kv-scales-positive", true, [](V& v) { v.given[9] = std::numeric_limits<float>::infinity(); },
       "scales must be finite and above 0, got inf at [1, 1]", "scales"},
      {"kv-scales-positive", true, [](V& v) { v.given[9] = std::nanf(""); },
       "scales must be finite and above 0, got nan at [1, 1]", "scales"},
      {"kv-memory", false, [](V& v) { v.call.target.data.data = nullptr; }, "target has shape (10, 512) but no memory",
       "target"},
  };
}

}  // namespace

const std::vector<Case<ValidKv>>& kv_cases() {
  static const std::vector<Case<V>> cases = [] {
    std::vector<Case<V>> all;
    for (const auto& block :
         {source_cases(), target_cases(), layout_cases(), device_cases(), slot_cases(), whole_cases()}) {
      all.insert(all.end(), block.begin(), block.end());
    }
    return all;
  }();
  return cases;
}

}  // namespace sparse_mla::contract_test
