#include <cmath>
#include <limits>

#include "contract/cases.h"

namespace sparse_mla::contract_test {
namespace {

using V = ValidPrefill;
constexpr DType kFp8 = DType::kFloat8E4M3FN, kF32 = DType::kFloat32, kI32 = DType::kInt32, kBf16 = DType::kBFloat16;
constexpr Device kCpu = Device::cpu(), kOther = Device::cuda(1), kMeta{Device::Kind::kMeta, 0};

std::vector<Case<V>> input_cases() {
  return {
      {"prefill-q-rank", true,
       [](V& v) {
         v.call.q = Tensor(nowhere(0), kFp8, {2, 64}, kGpu);
       },
       "q must have shape (s_q, h_q, d_qk), got (2, 64)", "q"},
      {"prefill-q-rank", true,
       [](V& v) {  // what the last dimension holds is no row, and nothing is said about its alignment
         v.call.q = Tensor(nowhere(0), kFp8, {2, 64, 576, 1}, kGpu);
       },
       "q must have shape (s_q, h_q, d_qk), got (2, 64, 576, 1)", "q"},
      {"prefill-kv-rank", true,
       [](V& v) {
         v.call.kv = Tensor(nowhere(1), kFp8, {1024, 576}, kGpu);
       },
       "kv must have shape (s_kv, h_kv, d_qk), got (1024, 576)", "kv"},
      {"prefill-indices-rank", true, [](V& v) { v.call.indices = Tensor(nowhere(2), kI32, {512}, kGpu); },
       "indices must have shape (s_q, h_kv, topk), got (512,)", "indices"},
      {"prefill-q-cuda", true, [](V& v) { v.call.q.device = kCpu; }, "q must be a CUDA tensor", "q"},
      {"prefill-kv-cuda", true, [](V& v) { v.call.kv.device = kCpu; }, "kv must be a CUDA tensor", "kv"},
      {"prefill-indices-cuda", true, [](V& v) { v.call.indices.device = kCpu; }, "indices must be a CUDA tensor",
       "indices"},
      {"prefill-q-device", false, [](V& v) { v.call.q.device = kMeta; }, "q must be a CPU or CUDA tensor, got meta",
       "q"},
      {"prefill-kv-device", true, [](V& v) { v.call.kv.device = kOther; },
       "kv must be on q's device cuda:0, got cuda:1", "kv"},
      {"prefill-indices-device", true, [](V& v) { v.call.indices.device = kOther; },
       "indices must be on q's device cuda:0, got cuda:1", "indices"},
      {"prefill-q-dtype", true, [](V& v) { v.call.q.dtype = DType::kFloat8E5M2; },
       "q must be torch.float8_e4m3fn, got torch.float8_e5m2", "q"},
      {"prefill-kv-dtype", true, [](V& v) { v.call.kv.dtype = kBf16; },
       "kv must be torch.float8_e4m3fn, got torch.bfloat16", "kv"},
      {"prefill-q-contiguous", true, [](V& v) { v.call.q.strides[0] = 2 * 64 * 576; }, "q must be contiguous", "q"},
      {"prefill-kv-contiguous", true, [](V& v) { v.call.kv.strides[0] = 592; }, "kv must be contiguous", "kv"},
      {"prefill-indices-contiguous", true, [](V& v) { v.call.indices.strides[0] = 512; }, "indices must be contiguous",
       "indices"},
      {"prefill-q-last-dim", false,
       [](V& v) {
         v.call.q = strided(v.call.q, {64 * 1152, 1152, 2});
       },
       "q must be contiguous in its last dimension, got strides (73728, 1152, 2)", "q"},
      {"prefill-kv-last-dim", false,
       [](V& v) {
         v.call.kv = strided(v.call.kv, {1152, 1152, 2});
       },
       "kv must be contiguous in its last dimension, got strides (1152, 1152, 2)", "kv"},
      {"prefill-indices-last-dim", false,
       [](V& v) {
         v.call.indices = strided(v.call.indices, {1, 1, 2});
       },
       "indices must be contiguous in its last dimension, got strides (1, 1, 2)", "indices"},
  };
}

std::vector<Case<V>> size_cases() {
  return {
      {"prefill-kv-width", true,
       [](V& v) {
         v.call.kv = Tensor(nowhere(1), kFp8, {1024, 1, 512}, kGpu);
       },
       "kv d_qk must match q d_qk=576, got 512", "kv"},
      {"prefill-h-q-multiple-of-64", true,
       [](V& v) {
         v.call.q = Tensor(nowhere(0), kFp8, {2, 8, 576}, kGpu);
         v.call.attn_sink = Tensor(v.sink.data(), kF32, {8}, kGpu);
         v.call.out = Tensor(nowhere(3), kBf16, {2, 8, 512}, kGpu);
         v.call.max_logits = Tensor(nowhere(4), kF32, {2, 8}, kGpu);
         v.call.lse = Tensor(nowhere(5), kF32, {2, 8}, kGpu);
       },
       "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 8", "q"},
      {"prefill-h-q-positive", false,
       [](V& v) {
         v.call.q = Tensor(nowhere(0), kFp8, {2, 0, 576}, kGpu);
         v.call.attn_sink = std::nullopt;
         v.call.out = Tensor(nowhere(3), kBf16, {2, 0, 512}, kGpu);
         v.call.max_logits = Tensor(nowhere(4), kF32, {2, 0}, kGpu);
         v.call.lse = Tensor(nowhere(5), kF32, {2, 0}, kGpu);
       },
       "prefill requires h_q of at least 1, got 0", "q"},
      {"prefill-h-q-int32", true,
       [](V& v) {
         const std::int64_t heads = std::int64_t{1} << 31;
         v.call.q = Tensor(nowhere(0), kFp8, {2, heads, 576}, kGpu);
         v.call.attn_sink = std::nullopt;
         v.call.out = Tensor(nowhere(10), kBf16, {2, heads, 512}, kGpu);
         v.call.max_logits = Tensor(nowhere(20), kF32, {2, heads}, kGpu);
         v.call.lse = Tensor(nowhere(30), kF32, {2, heads}, kGpu);
       },
       "sparse_mla_q8kv8_prefill_fwd requires h_q below 2**31, got 2147483648", "q"},
      {"prefill-h-kv", true,
       [](V& v) {
         v.call.kv = Tensor(nowhere(1), kFp8, {1024, 2, 576}, kGpu);
         v.call.indices = Tensor(nowhere(2), kI32, {2, 2, 256}, kGpu);
       },
       "sparse_mla_q8kv8_prefill_fwd requires h_kv=1, got 2", "kv"},
      {"prefill-d-qk", true,
       [](V& v) {
         v.call.q = Tensor(nowhere(0), kFp8, {2, 64, 640}, kGpu);
         v.call.kv = Tensor(nowhere(1), kFp8, {1024, 1, 640}, kGpu);
       },
       "sparse_mla_q8kv8_prefill_fwd supports d_qk=512/576, got 640", "q"},
      {"prefill-d-qk-multiple-of-16", false,
       [](V& v) {
         v.call.q = strided(Tensor(nowhere(0), kFp8, {2, 64, 520}, kGpu), {64 * 528, 528, 1});
         v.call.kv = strided(Tensor(nowhere(1), kFp8, {1024, 1, 520}, kGpu), {528, 528, 1});
       },
       "prefill requires d_qk to be a positive multiple of 16 below 2**31, got 520", "q"},
      {"prefill-indices-shape", true,
       [](V& v) {
         v.call.indices = Tensor(nowhere(2), kI32, {3, 1, 256}, kGpu);
       },
       "indices must have shape (2, 1, topk), got (3, 1, 256)", "indices"},
      {"prefill-indices-dtype", true, [](V& v) { v.call.indices.dtype = DType::kInt64; },
       "indices must be int32, got torch.int64", "indices"},
      {"prefill-topk-multiple-of-128", true,
       [](V& v) {
         v.call.indices = Tensor(nowhere(2), kI32, {2, 1, 300}, kGpu);
       },
       "Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got 300", "indices"},
      {"prefill-topk-positive", false,
       [](V& v) {
         v.call.indices = Tensor(nowhere(2), kI32, {2, 1, 0}, kGpu);
         v.lengths = {0, 0, 0, 0};
       },
       "prefill requires topk of at least 1, got 0", "indices"},
  };
}

std::vector<Case<V>> optional_input_cases() {
  return {
      {"prefill-topk-length-tensor", true, [](V& v) { v.call.topk_length = kNumber; },
       "topk_length must be a torch.Tensor", "topk_length"},
      {"prefill-topk-length-shape-dtype", true,
       [](V& v) {
         v.call.topk_length = Tensor(v.lengths.data(), kI32, {2, 1}, kGpu);
       },
       "topk_length must be int32 with shape (2,), got (2, 1)/torch.int32", "topk_length"},
      {"prefill-topk-length-shape-dtype", true,
       [](V& v) { v.call.topk_length = as(DType::kInt64, v.call.topk_length); },
       "topk_length must be int32 with shape (2,), got (2,)/torch.int64", "topk_length"},
      {"prefill-topk-length-cuda", true, [](V& v) { v.call.topk_length = on(kCpu, v.call.topk_length); },
       "topk_length must be a CUDA tensor", "topk_length"},
      {"prefill-topk-length-device", true, [](V& v) { v.call.topk_length = on(kOther, v.call.topk_length); },
       "topk_length must be on q's device cuda:0, got cuda:1", "topk_length"},
      {"prefill-topk-length-contiguous", true, [](V& v) { v.call.topk_length = strided(v.call.topk_length, {2}); },
       "topk_length must be contiguous", "topk_length"},
      {"prefill-topk-length-range", true,
       [](V& v) {
         v.lengths = {7, 900, 0, 0};
       },
       "topk_length values must satisfy 0 <= topk_length <= topk (256)", "topk_length"},
      {"prefill-topk-length-range", true,
       [](V& v) {
         v.lengths = {-1, 256, 0, 0};
       },
       "topk_length values must satisfy 0 <= topk_length <= topk (256)", "topk_length"},
      {"prefill-d-v", true, [](V& v) { v.call.d_v = 256; },
       "sparse_mla_q8kv8_prefill_fwd only supports d_v=512, got 256", "d_v"},
      {"prefill-d-v-range", false, [](V& v) { v.call.d_v = 577; }, "prefill requires d_v from 1 to d_qk=576, got 577",
       "d_v"},
      {"prefill-d-v-range", false, [](V& v) { v.call.d_v = 0; }, "prefill requires d_v from 1 to d_qk=576, got 0",
       "d_v"},
      {"prefill-attn-sink-needs-topk-length", true, [](V& v) { v.call.topk_length = std::nullopt; },
       "attn_sink requires topk_length to be provided as well", "attn_sink"},
      {"prefill-attn-sink-tensor", true, [](V& v) { v.call.attn_sink = kNumber; }, "attn_sink must be a torch.Tensor",
       "attn_sink"},
      {"prefill-attn-sink-shape-dtype", true, [](V& v) { v.call.attn_sink = as(kBf16, v.call.attn_sink); },
       "attn_sink must be float32 with shape (64,), got (64,)/torch.bfloat16", "attn_sink"},
      {"prefill-attn-sink-shape-dtype", true,
       [](V& v) {
         v.call.attn_sink = Tensor(v.sink.data(), kF32, {1, 64}, kGpu);
       },
       "attn_sink must be float32 with shape (64,), got (1, 64)/torch.float32", "attn_sink"},
      {"prefill-attn-sink-cuda", true, [](V& v) { v.call.attn_sink = on(kCpu, v.call.attn_sink); },
       "attn_sink must be a CUDA tensor", "attn_sink"},
      {"prefill-attn-sink-device", true, [](V& v) { v.call.attn_sink = on(kOther, v.call.attn_sink); },
       "attn_sink must be on q's device cuda:0, got cuda:1", "attn_sink"},
      {"prefill-attn-sink-contiguous", true, [](V& v) { v.call.attn_sink = strided(v.call.attn_sink, {2}); },
       "attn_sink must be contiguous", "attn_sink"},
  };
}

std::vector<Case<V>> scale_cases() {
  return {
      {"prefill-q-scale-tensor", true, [](V& v) { v.call.q_scale = kNumber; }, "q_scale must be a torch.Tensor",
       "q_scale"},
      {"prefill-q-scale-tensor", true, [](V& v) { v.call.q_scale = std::nullopt; }, "q_scale must be a torch.Tensor",
       "q_scale"},
      {"prefill-q-scale-cuda", true, [](V& v) { v.call.q_scale = on(kCpu, v.call.q_scale); },
       "q_scale must be a CUDA tensor", "q_scale"},
      {"prefill-q-scale-device", true, [](V& v) { v.call.q_scale = on(kOther, v.call.q_scale); },
       "q_scale must be on q's device cuda:0, got cuda:1", "q_scale"},
      {"prefill-q-scale-dtype", true, [](V& v) { v.call.q_scale = as(DType::kFloat64, v.call.q_scale); },
       "q_scale must be float32, got torch.float64", "q_scale"},
      {"prefill-q-scale-scalar", true, [](V& v) { v.call.q_scale = Tensor(v.q_scale_value, kF32, {2}, kGpu); },
       "q_scale must be a scalar tensor, got shape (2,)", "q_scale"},
      {"prefill-q-scale-scalar", true, [](V& v) { v.call.q_scale = Tensor(v.q_scale_value, kF32, {0}, kGpu); },
       "q_scale must be a scalar tensor, got shape (0,)", "q_scale"},
      {"prefill-q-scale-contiguous",
       true,
       [](V& v) { v.call.q_scale = strided(Tensor(v.q_scale_value, kF32, {2}, kGpu), {0}); },
       "q_scale must be contiguous",
       "q_scale",
       {"prefill-q-scale-scalar", "prefill-q-scale-contiguous"}},
      {"prefill-kv-scale-tensor", true, [](V& v) { v.call.kv_scale = kNumber; }, "kv_scale must be a torch.Tensor",
       "kv_scale"},
      {"prefill-kv-scale-cuda", true, [](V& v) { v.call.kv_scale = on(kCpu, v.call.kv_scale); },
       "kv_scale must be a CUDA tensor", "kv_scale"},
      {"prefill-kv-scale-device", true, [](V& v) { v.call.kv_scale = on(kOther, v.call.kv_scale); },
       "kv_scale must be on q's device cuda:0, got cuda:1", "kv_scale"},
      {"prefill-kv-scale-dtype", true, [](V& v) { v.call.kv_scale = as(DType::kFloat16, v.call.kv_scale); },
       "kv_scale must be float32, got torch.float16", "kv_scale"},
      {"prefill-kv-scale-scalar", true,
       [](V& v) {
         v.call.kv_scale = Tensor(v.kv_scale_value, kF32, {1, 2}, kGpu);
       },
       "kv_scale must be a scalar tensor, got shape (1, 2)", "kv_scale"},
      {"prefill-kv-scale-contiguous",
       true,
       [](V& v) { v.call.kv_scale = strided(Tensor(v.kv_scale_value, kF32, {2}, kGpu), {0}); },
       "kv_scale must be contiguous",
       "kv_scale",
       {"prefill-kv-scale-scalar", "prefill-kv-scale-contiguous"}},
      {"prefill-q-scale-finite", true, [](V& v) { v.q_scale_value[0] = std::nanf(""); },
       "q_scale must be finite, got nan at [0]", "q_scale"},
      {"prefill-kv-scale-finite", true, [](V& v) { v.kv_scale_value[0] = -std::numeric_limits<float>::infinity(); },
       "kv_scale must be finite, got -inf at [0]", "kv_scale"},
      {"prefill-sm-scale-finite", true, [](V& v) { v.call.sm_scale = std::nan(""); },
       "sm_scale must be finite, got nan", "sm_scale"},
      {"prefill-sm-scale-finite", true, [](V& v) { v.call.sm_scale = -1e39; },  // past what float32 holds
       "sm_scale must be finite, got -1e+39", "sm_scale"},
  };
}

std::vector<Case<V>> output_cases() {
  return {
      {"prefill-out-tensor", true, [](V& v) { v.call.out = kNumber; }, "out must be a torch.Tensor", "out"},
      {"prefill-max-logits-tensor", true, [](V& v) { v.call.max_logits = kNumber; },
       "max_logits must be a torch.Tensor", "max_logits"},
      {"prefill-lse-tensor", true, [](V& v) { v.call.lse = kNumber; }, "lse must be a torch.Tensor", "lse"},
      {"prefill-out-shape", true,
       [](V& v) {
         v.call.out = Tensor(nowhere(3), kBf16, {2, 64, 576}, kGpu);
       },
       "out must have shape (2, 64, 512), got (2, 64, 576)", "out"},
      {"prefill-out-dtype", true, [](V& v) { v.call.out = as(DType::kFloat16, v.call.out); },
       "out must have dtype torch.bfloat16, got torch.float16", "out"},
      {"prefill-out-device", true, [](V& v) { v.call.out = on(kCpu, v.call.out); },
       "out must be on device cuda:0, got cpu", "out"},
      {"prefill-out-contiguous", true,
       [](V& v) {
         v.call.out = strided(v.call.out, {64 * 1024, 1024, 1});
       },
       "out must be contiguous", "out"},
      {"prefill-max-logits-shape", true, [](V& v) { v.call.max_logits = Tensor(nowhere(4), kF32, {128}, kGpu); },
       "max_logits must have shape (2, 64), got (128,)", "max_logits"},
      {"prefill-max-logits-dtype", true, [](V& v) { v.call.max_logits = as(kBf16, v.call.max_logits); },
       "max_logits must have dtype torch.float32, got torch.bfloat16", "max_logits"},
      {"prefill-max-logits-device", true, [](V& v) { v.call.max_logits = on(kOther, v.call.max_logits); },
       "max_logits must be on device cuda:0, got cuda:1", "max_logits"},
      {"prefill-max-logits-contiguous", true,
       [](V& v) {
         v.call.max_logits = strided(v.call.max_logits, {1, 2});
       },
       "max_logits must be contiguous", "max_logits"},
      {"prefill-lse-shape", true,
       [](V& v) {
         v.call.lse = Tensor(nowhere(5), kF32, {64, 2}, kGpu);
       },
       "lse must have shape (2, 64), got (64, 2)", "lse"},
      {"prefill-lse-dtype", true, [](V& v) { v.call.lse = as(DType::kFloat64, v.call.lse); },
       "lse must have dtype torch.float32, got torch.float64", "lse"},
      {"prefill-lse-device", true, [](V& v) { v.call.lse = on(kCpu, v.call.lse); },
       "lse must be on device cuda:0, got cpu", "lse"},
      {"prefill-lse-contiguous", true,
       [](V& v) {
         v.call.lse = strided(v.call.lse, {1, 2});
       },
       "lse must be contiguous", "lse"},
      {"prefill-outputs-alias", true, [](V& v) { v.call.lse = v.call.max_logits; },
       "out, max_logits and lse must not alias each other", "lse"},
      {"prefill-outputs-alias", true,  // the last byte of out
       [](V& v) {
         const std::int64_t last_byte = 2 * 64 * 512 * 2 - 1;
         v.call.max_logits = Tensor(static_cast<char*>(nowhere(3)) + last_byte, kF32, {2, 64}, kGpu);
       },
       "out, max_logits and lse must not alias each other", "max_logits"},
      {"prefill-output-missing", true, [](V& v) { v.call.lse = std::nullopt; },
       "lse must be given, since sparse_mla_q8kv8_prefill_fwd does not allocate", "lse"},
  };
}

std::vector<Case<V>> memory_cases() {
  return {
      {"prefill-size-negative", true,
       [](V& v) {
         v.call.kv = Tensor(nowhere(1), kFp8, {-4, 1, 576}, kGpu);
       },
       "kv must have sizes of 0 or more, got (-4, 1, 576)", "kv"},
      {"prefill-stride-negative", false, [](V& v) { v.call.kv.strides[0] = -576; },
       "kv must have strides of 0 or more, got (-576, 576, 1)", "kv"},
      {"prefill-span", false, [](V& v) { v.call.kv.strides[0] = std::int64_t{1} << 60; },
       "kv must span less than 2**63 bytes, got shape (1024, 1, 576) and strides (1152921504606846976, 576, 1)", "kv"},
      {"prefill-row-alignment", true, [](V& v) { v.call.q.data = v.call.q.as<char>() + 8; },
       "q must have rows that start at multiples of 16 bytes, got address 1099511627784 and strides (36864, 576, 1) of "
       "torch.float8_e4m3fn",
       "q"},
      {"prefill-row-alignment", false, [](V& v) { v.call.kv.strides[0] = 584; },
       "kv must have rows that start at multiples of 16 bytes, got address 2199023255552 and strides (584, 576, 1) of "
       "torch.float8_e4m3fn",
       "kv"},
      {"prefill-out-alignment", true, [](V& v) { v.call.out = moved(v.call.out, 2); },
       "out must start at a multiple of 16 bytes, got address 4398046511106", "out"},
      {"prefill-memory", true, [](V& v) { v.call.indices.data = nullptr; },
       "indices has shape (2, 1, 256) but no memory", "indices"},
  };
}

}  // namespace

const std::vector<Case<ValidPrefill>>& prefill_cases() {
  static const std::vector<Case<V>> cases = [] {
    std::vector<Case<V>> all;
    for (const auto& block :
         {input_cases(), size_cases(), optional_input_cases(), scale_cases(), output_cases(), memory_cases()}) {
      all.insert(all.end(), block.begin(), block.end());
    }
    return all;
  }();
  return cases;
}

}  // namespace sparse_mla::contract_test
