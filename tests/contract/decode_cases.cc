#include <cmath>
#include <limits>
#include <memory>

#include "contract/cases.h"

namespace sparse_mla::contract_test {
namespace {

using V = ValidDecode;
constexpr DType kFp8 = DType::kFloat8E4M3FN, kF32 = DType::kFloat32, kI32 = DType::kInt32, kBf16 = DType::kBFloat16;
constexpr Device kCpu = Device::cpu(), kOther = Device::cuda(1), kMeta{Device::Kind::kMeta, 0};

// A case that is told for either pool; {p} in its texts becomes "" or "second_pool.".
struct PoolCase {
  std::string_view rule;  // the slug without "decode-" and the pool
  std::string message;
  std::string argument;
  void (*first)(V& valid);
  void (*second)(V& valid);
};

// The pool that a case breaks and the values that it points to.
struct First {
  static PagedPool& pool(V& v) { return v.call.pool; }
  static V::PoolValues& values(V& v) { return v.first; }
};
struct Second {
  static PagedPool& pool(V& v) { return *v.call.second_pool; }
  static V::PoolValues& values(V& v) { return v.second; }
};

template <class Break>
PoolCase pool_case(std::string_view rule, std::string message, std::string argument, Break) {
  return {rule, std::move(message), std::move(argument), [](V& v) { Break{}(First::pool(v), First::values(v), v); },
          [](V& v) { Break{}(Second::pool(v), Second::values(v), v); }};
}

using Pool = PagedPool;
using Values = V::PoolValues;

// B3 to B7.
std::vector<PoolCase> pool_dtype_cases() {
  return {
      pool_case("kv-scales-need-e4m3fn",
                "{p}kv_scales supplied but {p}unified_kv is torch.bfloat16, expected torch.float8_e4m3fn",
                "{p}unified_kv", [](Pool& p, Values&, V&) { p.unified_kv.dtype = kBf16; }),
      pool_case("kv-scales-need-e4m3fn",
                "{p}kv_scales supplied but {p}unified_kv is torch.float8_e4m3fnuz, expected torch.float8_e4m3fn",
                "{p}unified_kv", [](Pool& p, Values&, V&) { p.unified_kv.dtype = DType::kFloat8E4M3FNUZ; }),
      pool_case("kv-scales-dtype", "{p}kv_scales must be fp32, got torch.float16", "{p}kv_scales",
                [](Pool& p, Values&, V&) { p.kv_scales = as(DType::kFloat16, p.kv_scales); }),
      pool_case("kv-scales-shape", "{p}kv_scales shape (40, 4) does not match expected (40, 8)", "{p}kv_scales",
                [](Pool& p, Values& v, V&) {
                  p.kv_scales = Tensor(v.scales.data(), kF32, {40, 4}, kGpu);
                }),
      pool_case("kv-scales-shape", "{p}kv_scales shape (320,) does not match expected (40, 8)", "{p}kv_scales",
                [](Pool& p, Values& v, V&) { p.kv_scales = Tensor(v.scales.data(), kF32, {320}, kGpu); }),
      pool_case("unified-kv-dtype", "{p}unified_kv dtype mismatch: kv=torch.float8_e4m3fn, q=torch.bfloat16",
                "{p}unified_kv", [](Pool& p, Values&, V&) { p.kv_scales = std::nullopt; }),
      pool_case("unified-kv-dtype", "{p}unified_kv dtype mismatch: kv=torch.float16, q=torch.bfloat16", "{p}unified_kv",
                [](Pool& p, Values&, V&) {
                  p.kv_scales = std::nullopt;
                  p.unified_kv.dtype = DType::kFloat16;
                }),
  };
}

std::vector<PoolCase> pool_shape_cases() {
  return {
      pool_case("unified-kv-rank", "{p}unified_kv must have shape (total_pages, D), got (40, 1, 512)", "{p}unified_kv",
                [](Pool& p, Values&, V&) {
                  p.unified_kv = Tensor(nowhere(1), kFp8, {40, 1, 512}, kGpu);
                }),
      pool_case("kv-indices-rank", "{p}kv_indices must have shape (total_indices,), got (3, 3)", "{p}kv_indices",
                [](Pool& p, Values&, V&) {
                  p.kv_indices = Tensor(nowhere(2), kI32, {3, 3}, kGpu);
                }),
      pool_case("kv-indptr-shape", "{p}kv_indptr must have shape (4,), got (3,)", "{p}kv_indptr",
                [](Pool& p, Values& v, V&) { p.kv_indptr = Tensor(v.indptr.data(), kI32, {3}, kGpu); }),
      pool_case("kv-scales-tensor", "{p}kv_scales must be a torch.Tensor", "{p}kv_scales",
                [](Pool& p, Values&, V&) { p.kv_scales = kNumber; }),
      pool_case("width-match", "{p}unified_kv D must match q D=512, got 576", "{p}unified_kv",
                [](Pool& p, Values& v, V&) {
                  p.unified_kv = Tensor(nowhere(1), kFp8, {40, 576}, kGpu);
                  p.kv_scales = Tensor(v.scales.data(), kF32, {40, 9}, kGpu);
                }),
  };
}

std::vector<PoolCase> pool_layout_cases() {
  return {
      pool_case("unified-kv-device", "{p}unified_kv must be on q's device cuda:0, got cpu", "{p}unified_kv",
                [](Pool& p, Values&, V&) { p.unified_kv.device = kCpu; }),
      pool_case("kv-indices-device", "{p}kv_indices must be on q's device cuda:0, got cuda:1", "{p}kv_indices",
                [](Pool& p, Values&, V&) { p.kv_indices.device = kOther; }),
      pool_case("kv-indptr-device", "{p}kv_indptr must be on q's device cuda:0, got cpu", "{p}kv_indptr",
                [](Pool& p, Values&, V&) { p.kv_indptr.device = kCpu; }),
      pool_case("kv-scales-device", "{p}kv_scales must be on q's device cuda:0, got cuda:1", "{p}kv_scales",
                [](Pool& p, Values&, V&) { p.kv_scales = on(kOther, p.kv_scales); }),
      pool_case("kv-indices-dtype", "{p}kv_indices must be int32, got torch.int64", "{p}kv_indices",
                [](Pool& p, Values&, V&) { p.kv_indices.dtype = DType::kInt64; }),
      pool_case("kv-indptr-dtype", "{p}kv_indptr must be int32, got torch.int64", "{p}kv_indptr",
                [](Pool& p, Values&, V&) { p.kv_indptr.dtype = DType::kInt64; }),
      pool_case("unified-kv-last-dim", "{p}unified_kv must be contiguous in its last dimension, got strides (1024, 2)",
                "{p}unified_kv",
                [](Pool& p, Values&, V&) {
                  p.unified_kv = strided(p.unified_kv, {1024, 2});
                }),
      pool_case("kv-indices-contiguous", "{p}kv_indices must be contiguous", "{p}kv_indices",
                [](Pool& p, Values&, V&) { p.kv_indices.strides[0] = 2; }),
      pool_case("kv-indptr-contiguous", "{p}kv_indptr must be contiguous", "{p}kv_indptr",
                [](Pool& p, Values&, V&) { p.kv_indptr.strides[0] = 2; }),
  };
}

std::vector<PoolCase> pool_value_cases() {
  return {
      pool_case("kv-indptr-range",
                "{p}kv_indptr values must satisfy 0 <= kv_indptr <= total_indices (9), got 10 at [3]", "{p}kv_indptr",
                [](Pool&, Values& v, V&) { v.indptr[3] = 10; }),
      pool_case("kv-indptr-range",
                "{p}kv_indptr values must satisfy 0 <= kv_indptr <= total_indices (9), got -1 at [0]", "{p}kv_indptr",
                [](Pool&, Values& v, V&) { v.indptr[0] = -1; }),
      pool_case("kv-indptr-order", "{p}kv_indptr must not decrease, got 3 after 4 at [2]", "{p}kv_indptr",
                [](Pool&, Values& v, V&) { v.indptr[2] = 3; }),
      pool_case("kv-scales-finite", "{p}kv_scales must be finite, got inf at [39, 7]", "{p}kv_scales",
                [](Pool&, Values& v, V&) { v.scales[39 * 8 + 7] = std::numeric_limits<float>::infinity(); }),
      pool_case("kv-scales-finite", "{p}kv_scales must be finite, got nan at [3, 2]", "{p}kv_scales",
                [](Pool& p, Values& v, V&) {  // columns apart: the position is logical, not an address
                  p.kv_scales = strided(p.kv_scales, {16, 2});
                  v.scales[3 * 16 + 4] = std::nanf("");
                }),
  };
}

std::string with_prefix(std::string text, std::string_view prefix) {
  for (std::size_t at = text.find("{p}"); at != std::string::npos; at = text.find("{p}")) text.replace(at, 3, prefix);
  return text;
}

void add_pool_cases(const std::vector<PoolCase>& pool_cases, std::vector<Case<V>>& all) {
  static std::vector<std::unique_ptr<std::string>> slugs;  // a Case only views its slug
  for (const PoolCase& one : pool_cases) {
    slugs.push_back(std::make_unique<std::string>("decode-" + std::string(one.rule)));
    all.push_back({*slugs.back(), true, one.first, with_prefix(one.message, ""), with_prefix(one.argument, "")});
    slugs.push_back(std::make_unique<std::string>("decode-second-pool-" + std::string(one.rule)));
    all.push_back({*slugs.back(), false, one.second, with_prefix(one.message, "second_pool."),
                   with_prefix(one.argument, "second_pool.")});
  }
}

void set_width(V& v, std::int64_t width, DType pool_dtype) {
  v.call.q = Tensor(nowhere(0), kBf16, {3, 16, width}, kGpu);
  v.call.pool.unified_kv = Tensor(nowhere(1), pool_dtype, {40, width}, kGpu);
  v.call.out = Tensor(nowhere(7), kBf16, {3, 16, width}, kGpu);
}

void set_heads(V& v, std::int64_t heads) {
  v.call.q = Tensor(nowhere(0), kBf16, {3, heads, 512}, kGpu);
  v.call.attn_sink = Tensor(nowhere(6), kF32, {heads}, kGpu);
  v.call.out = Tensor(nowhere(10), kBf16, {3, heads, 512}, kGpu);
}

std::vector<Case<V>> q_cases() {
  return {
      {"decode-q-cuda", true, [](V& v) { v.call.q.device = kCpu; }, "sparse_attn_v4_paged_decode requires CUDA tensors",
       "q"},
      {"decode-q-dtype", true, [](V& v) { v.call.q.dtype = kF32; },
       "sparse_attn_v4_paged_decode expects fp16/bf16 q, got torch.float32", "q"},
      {"decode-width-multiple-of-64", true,
       [](V& v) {
         set_width(v, 528, kFp8);
         v.call.pool.kv_scales = Tensor(v.first.scales.data(), kF32, {40, 8}, kGpu);
       },
       "D=528 must be divisible by GROUP_SIZE=64", "unified_kv"},
      {"decode-width-multiple-of-64", true,
       [](V& v) {
         set_width(v, 80, kBf16);
         v.call.pool.kv_scales = std::nullopt;
       },
       "D=80 must be divisible by GROUP_SIZE=64", "unified_kv"},
      {"decode-second-pool-width-multiple-of-64", false,
       [](V& v) {
         set_width(v, 528, kBf16);
         v.call.out = Tensor(nowhere(7), kBf16, {3, 16, 448}, kGpu);
         v.call.pool.kv_scales = std::nullopt;
         v.call.second_pool->unified_kv = Tensor(nowhere(4), kFp8, {40, 528}, kGpu);
       },
       "second_pool.D=528 must be divisible by GROUP_SIZE=64", "second_pool.unified_kv"},
      {"decode-q-rank", true,
       [](V& v) {
         v.call.q = Tensor(nowhere(0), kBf16, {48, 512}, kGpu);
       },
       "q must have shape (N, H, D), got (48, 512)", "q"},
      {"decode-heads-positive", true, [](V& v) { set_heads(v, 0); },
       "sparse_attn_v4_paged_decode requires H of at least 1, got 0", "q"},
      {"decode-heads-int32", true, [](V& v) { set_heads(v, std::int64_t{1} << 31); },
       "sparse_attn_v4_paged_decode requires H below 2**31, got 2147483648", "q"},
      {"decode-width-range", true,
       [](V& v) {
         set_width(v, 0, kFp8);
         v.call.pool.kv_scales = Tensor(v.first.scales.data(), kF32, {40, 0}, kGpu);
       },
       "sparse_attn_v4_paged_decode requires D from 1 to 2**31-1, got 0", "q"},
      {"decode-width-multiple-of-16", false,
       [](V& v) {
         set_width(v, 520, kBf16);
         v.call.out = Tensor(nowhere(7), kBf16, {3, 16, 448}, kGpu);
         v.call.pool.kv_scales = std::nullopt;
         v.call.second_pool->unified_kv = Tensor(nowhere(4), kBf16, {40, 520}, kGpu);
         v.call.second_pool->kv_scales = std::nullopt;
       },
       "decode requires D to be a multiple of 16, got 520", "q"},
      {"decode-q-device", false, [](V& v) { v.call.q.device = kMeta; }, "q must be a CPU or CUDA tensor, got meta",
       "q"},
      {"decode-q-last-dim", true,
       [](V& v) {
         v.call.q = strided(v.call.q, {16 * 1024, 1024, 2});
       },
       "q must be contiguous in its last dimension, got strides (16384, 1024, 2)", "q"},
  };
}

std::vector<Case<V>> other_argument_cases() {
  return {
      {"decode-attn-sink-tensor", true, [](V& v) { v.call.attn_sink = std::nullopt; },
       "attn_sink must be a torch.Tensor", "attn_sink"},
      {"decode-attn-sink-tensor", false, [](V& v) { v.call.attn_sink = kNumber; }, "attn_sink must be a torch.Tensor",
       "attn_sink"},
      {"decode-attn-sink-shape-dtype", true, [](V& v) { v.call.attn_sink = Tensor(v.sink.data(), kF32, {8}, kGpu); },
       "attn_sink must be float32 with shape (16,), got (8,)/torch.float32", "attn_sink"},
      {"decode-attn-sink-shape-dtype", true, [](V& v) { v.call.attn_sink = as(kBf16, v.call.attn_sink); },
       "attn_sink must be float32 with shape (16,), got (16,)/torch.bfloat16", "attn_sink"},
      {"decode-attn-sink-device", true, [](V& v) { v.call.attn_sink = on(kCpu, v.call.attn_sink); },
       "attn_sink must be on q's device cuda:0, got cpu", "attn_sink"},
      {"decode-attn-sink-contiguous", true, [](V& v) { v.call.attn_sink = strided(v.call.attn_sink, {2}); },
       "attn_sink must be contiguous", "attn_sink"},
      {"decode-second-pool-in-contract", true, [](V& v) { v.call.second_pool = v.call.pool; },
       "sparse_attn_v4_paged_decode takes one pool, got second_pool", "second_pool"},
      {"decode-lse-in-contract", true,
       [](V& v) {
         v.call.lse = Tensor(nowhere(8), kF32, {3, 16}, kGpu);
       },
       "sparse_attn_v4_paged_decode does not write lse", "lse"},
      {"decode-d-v-in-contract", true, [](V& v) { v.call.d_v = 448; },
       "sparse_attn_v4_paged_decode writes all D=512 values, got d_v=448", "d_v"},
      {"decode-d-v-range", false, [](V& v) { v.call.d_v = 513; },
       "decode requires d_v from 1 to D=512, or 0 for all of them, got 513", "d_v"},
      {"decode-d-v-range", false, [](V& v) { v.call.d_v = -1; },
       "decode requires d_v from 1 to D=512, or 0 for all of them, got -1", "d_v"},
      {"decode-softmax-scale-finite", true,
       [](V& v) { v.call.softmax_scale = std::numeric_limits<double>::infinity(); },
       "softmax_scale must be finite, got inf", "softmax_scale"},
      {"decode-softmax-scale-finite", true, [](V& v) { v.call.softmax_scale = 1e300; },
       "softmax_scale must be finite, got 1e+300", "softmax_scale"},
  };
}

std::vector<Case<V>> output_cases() {
  return {
      {"decode-out-tensor", true, [](V& v) { v.call.out = kNumber; }, "out must be a torch.Tensor", "out"},
      {"decode-out-shape", true,
       [](V& v) {
         v.call.out = Tensor(nowhere(7), kBf16, {3, 16, 448}, kGpu);
       },
       "out must have shape (3, 16, 512), got (3, 16, 448)", "out"},
      {"decode-out-shape", false,
       [](V& v) {
         v.call.out = Tensor(nowhere(7), kBf16, {3, 16, 512}, kGpu);
       },
       "out must have shape (3, 16, 448), got (3, 16, 512)", "out"},
      {"decode-out-dtype", true, [](V& v) { v.call.out = as(DType::kFloat16, v.call.out); },
       "out must have dtype torch.bfloat16, got torch.float16", "out"},
      {"decode-out-device", true, [](V& v) { v.call.out = on(kOther, v.call.out); },
       "out must be on device cuda:0, got cuda:1", "out"},
      {"decode-out-contiguous", true,
       [](V& v) {
         v.call.out = strided(v.call.out, {1 << 14, 1024, 1});
       },
       "out must be contiguous", "out"},
      {"decode-lse-tensor", false, [](V& v) { v.call.lse = kNumber; }, "lse must be a torch.Tensor", "lse"},
      {"decode-lse-shape", false,
       [](V& v) {
         v.call.lse = Tensor(nowhere(8), kF32, {16, 3}, kGpu);
       },
       "lse must have shape (3, 16), got (16, 3)", "lse"},
      {"decode-lse-dtype", false, [](V& v) { v.call.lse = as(kBf16, v.call.lse); },
       "lse must have dtype torch.float32, got torch.bfloat16", "lse"},
      {"decode-lse-device", false, [](V& v) { v.call.lse = on(kCpu, v.call.lse); },
       "lse must be on device cuda:0, got cpu", "lse"},
      {"decode-lse-contiguous", false,
       [](V& v) {
         v.call.lse = strided(v.call.lse, {1, 3});
       },
       "lse must be contiguous", "lse"},
      {"decode-outputs-alias", false,
       [](V& v) {
         v.call.lse = Tensor(static_cast<char*>(nowhere(7)) + 64, kF32, {3, 16}, kGpu);
       },
       "out and lse must not alias each other", "lse"},
      {"decode-output-missing", true, [](V& v) { v.call.out = std::nullopt; },
       "out must be given, since sparse_attn_v4_paged_decode does not allocate", "out"},
  };
}

std::vector<Case<V>> memory_cases() {
  return {
      {"decode-size-negative", true,
       [](V& v) {
         v.call.pool.unified_kv = Tensor(nowhere(1), kBf16, {-1, 512}, kGpu);
         v.call.pool.kv_scales = std::nullopt;
       },
       "unified_kv must have sizes of 0 or more, got (-1, 512)", "unified_kv"},
      {"decode-stride-negative", true, [](V& v) { v.call.pool.unified_kv.strides[0] = -512; },
       "unified_kv must have strides of 0 or more, got (-512, 1)", "unified_kv"},
      {"decode-span", true, [](V& v) { v.call.pool.unified_kv.strides[0] = std::int64_t{1} << 62; },
       "unified_kv must span less than 2**63 bytes, got shape (40, 512) and strides (4611686018427387904, 1)",
       "unified_kv"},
      {"decode-row-alignment", true, [](V& v) { v.call.pool.unified_kv.strides[0] = 520; },
       "unified_kv must have rows that start at multiples of 16 bytes, got address 2199023255552 and strides (520, 1) "
       "of torch.float8_e4m3fn",
       "unified_kv"},
      {"decode-row-alignment", false, [](V& v) { v.call.second_pool->unified_kv.strides[0] = 513; },
       "second_pool.unified_kv must have rows that start at multiples of 16 bytes, got address 5497558138880 and "
       "strides (513, 1) of torch.float8_e4m3fn",
       "second_pool.unified_kv"},
      {"decode-out-alignment", true, [](V& v) { v.call.out = moved(v.call.out, 8); },
       "out must start at a multiple of 16 bytes, got address 8796093022216", "out"},
      {"decode-memory", true, [](V& v) { v.call.pool.kv_indices.data = nullptr; },
       "kv_indices has shape (9,) but no memory", "kv_indices"},
  };
}

std::vector<Case<V>> all_cases() {
  std::vector<Case<V>> all;
  for (const auto& block : {q_cases(), other_argument_cases(), output_cases(), memory_cases()}) {
    all.insert(all.end(), block.begin(), block.end());
  }
  for (const auto& block : {pool_dtype_cases(), pool_shape_cases(), pool_layout_cases(), pool_value_cases()}) {
    add_pool_cases(block, all);
  }
  return all;
}

}  // namespace

const std::vector<Case<ValidDecode>>& decode_cases() {
  static const std::vector<Case<V>> cases = all_cases();
  return cases;
}

}  // namespace sparse_mla::contract_test
