// The names that files use for the arguments of a call, and where each lives in its struct. Captured calls and
// descriptions read the same tables.
#pragma once

#include <array>
#include <string_view>
#include <variant>

#include "sparse_mla/calls.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::files {

// A place in a call: a Tensor must be there, an Argument may be None.
using Place = std::variant<Tensor*, Argument*>;

template <class Call>
struct TensorArgument {
  std::string_view name;
  Place (*place)(Call&);
  bool second_pool = false;  // reaching for its place makes the call a two-pool call
};

template <class Call>
struct CallFormat;

template <>
struct CallFormat<PrefillCall> {
  static constexpr EntryPoint kEntryPoint = EntryPoint::kPrefill;
  static constexpr std::string_view kScale = "sm_scale";
  static double& scale(PrefillCall& call) { return call.sm_scale; }
  static constexpr std::array kTensors = {
      TensorArgument<PrefillCall>{"q", [](PrefillCall& call) -> Place { return &call.q; }},
      TensorArgument<PrefillCall>{"kv", [](PrefillCall& call) -> Place { return &call.kv; }},
      TensorArgument<PrefillCall>{"indices", [](PrefillCall& call) -> Place { return &call.indices; }},
      TensorArgument<PrefillCall>{"q_scale", [](PrefillCall& call) -> Place { return &call.q_scale; }},
      TensorArgument<PrefillCall>{"kv_scale", [](PrefillCall& call) -> Place { return &call.kv_scale; }},
      TensorArgument<PrefillCall>{"attn_sink", [](PrefillCall& call) -> Place { return &call.attn_sink; }},
      TensorArgument<PrefillCall>{"topk_length", [](PrefillCall& call) -> Place { return &call.topk_length; }},
      TensorArgument<PrefillCall>{"out", [](PrefillCall& call) -> Place { return &call.out; }},
      TensorArgument<PrefillCall>{"max_logits", [](PrefillCall& call) -> Place { return &call.max_logits; }},
      TensorArgument<PrefillCall>{"lse", [](PrefillCall& call) -> Place { return &call.lse; }},
  };
  static bool has_second_pool(const PrefillCall&) { return false; }
};

template <>
struct CallFormat<DecodeCall> {
  static constexpr EntryPoint kEntryPoint = EntryPoint::kDecode;
  static constexpr std::string_view kScale = "softmax_scale";
  static double& scale(DecodeCall& call) { return call.softmax_scale; }
  static PagedPool& second(DecodeCall& call) {
    return call.second_pool.has_value() ? *call.second_pool : call.second_pool.emplace();
  }
  static constexpr std::array kTensors = {
      TensorArgument<DecodeCall>{"q", [](DecodeCall& call) -> Place { return &call.q; }},
      TensorArgument<DecodeCall>{"unified_kv", [](DecodeCall& call) -> Place { return &call.pool.unified_kv; }},
      TensorArgument<DecodeCall>{"kv_indices", [](DecodeCall& call) -> Place { return &call.pool.kv_indices; }},
      TensorArgument<DecodeCall>{"kv_indptr", [](DecodeCall& call) -> Place { return &call.pool.kv_indptr; }},
      TensorArgument<DecodeCall>{"attn_sink", [](DecodeCall& call) -> Place { return &call.attn_sink; }},
      TensorArgument<DecodeCall>{"kv_scales", [](DecodeCall& call) -> Place { return &call.pool.kv_scales; }},
      TensorArgument<DecodeCall>{"out", [](DecodeCall& call) -> Place { return &call.out; }},
      TensorArgument<DecodeCall>{"lse", [](DecodeCall& call) -> Place { return &call.lse; }},
      TensorArgument<DecodeCall>{"second_pool.unified_kv",
                                 [](DecodeCall& call) -> Place { return &second(call).unified_kv; }, true},
      TensorArgument<DecodeCall>{"second_pool.kv_indices",
                                 [](DecodeCall& call) -> Place { return &second(call).kv_indices; }, true},
      TensorArgument<DecodeCall>{"second_pool.kv_indptr",
                                 [](DecodeCall& call) -> Place { return &second(call).kv_indptr; }, true},
      TensorArgument<DecodeCall>{"second_pool.kv_scales",
                                 [](DecodeCall& call) -> Place { return &second(call).kv_scales; }, true},
  };
  static bool has_second_pool(const DecodeCall& call) { return call.second_pool.has_value(); }
};

// Names of the tensors that a call takes, in the order of its signature.
template <class Call>
constexpr auto tensor_names() {
  std::array<std::string_view, CallFormat<Call>::kTensors.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = CallFormat<Call>::kTensors[i].name;
  return names;
}

}  // namespace sparse_mla::files
