// The arguments of the two entry points, as the caller passed them: nothing here is checked yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "sparse_mla/tensor.h"

namespace sparse_mla {

// Something stood where a tensor belongs; `what` is how the caller's language prints its type, such as "float".
struct NotATensor {
  std::string what;
};

// A tensor, nothing (Python's None), or something that is not a tensor.
class Argument {
 public:
  Argument() = default;
  Argument(std::nullopt_t) {}
  Argument(const Tensor& tensor) : value_(tensor) {}
  Argument(NotATensor other) : value_(std::move(other)) {}

  bool is_none() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  // Null unless this is a tensor.
  const Tensor* tensor() const noexcept { return std::get_if<Tensor>(&value_); }
  const NotATensor* not_a_tensor() const noexcept { return std::get_if<NotATensor>(&value_); }

 private:
  std::variant<std::monostate, NotATensor, Tensor> value_;
};

// Arguments of sparse_mla_q8kv8_prefill_fwd (contract part A) and of the general prefill.
struct PrefillCall {
  Tensor q;                   // [s_q, h_q, d_qk]    float8_e4m3fn
  Tensor kv;                  // [s_kv, h_kv, d_qk]  float8_e4m3fn
  Tensor indices;             // [s_q, h_kv, topk]   int32; outside [0, s_kv) is "no token"
  double sm_scale = 1.0;      // multiplies q . kv, after q_scale and kv_scale
  Argument q_scale;           // one float32 value; None is 1 in the general API
  Argument kv_scale;          // one float32 value; None is 1 in the general API
  std::int64_t d_v = 512;     // value width: the first d_v values of a kv row
  Argument attn_sink;         // [h_q] float32
  Argument topk_length;       // [s_q] int32
  Argument out;               // [s_q, h_q, d_v] bfloat16
  Argument max_logits;        // [s_q, h_q] float32
  Argument lse;               // [s_q, h_q] float32, natural log, sink not included
};

// One pool of rows and the slot lists into it.
struct PagedPool {
  Tensor unified_kv;   // [total_pages, D]       q's dtype, or float8_e4m3fn with kv_scales
  Tensor kv_indices;   // [total_indices] int32  flat slot lists
  Tensor kv_indptr;    // [N + 1] int32          token t owns kv_indices[indptr[t] : indptr[t + 1]]
  Argument kv_scales;  // [total_pages, D / 64] float32
};

// Arguments of sparse_attn_v4_paged_decode (contract part B) and of the general decode.
struct DecodeCall {
  Tensor q;                    // [N, H, D] bfloat16 or float16
  PagedPool pool;
  Argument attn_sink;          // [H] float32; None is "no sink" in the general API
  double softmax_scale = 1.0;
  Argument out;                // [N, H, d_v] in q's dtype
  // The general API only:
  std::optional<PagedPool> second_pool;  // tokens attended beside the first pool's, under one softmax
  std::int64_t d_v = 0;                  // value width; 0 is all D values
  Argument lse;                          // [N, H] float32, natural log, sink not included
};

}  // namespace sparse_mla
