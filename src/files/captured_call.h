// A captured call: one safetensors file whose tensors are named as the arguments of an entry point (`q`, `kv`,
// `indices`, ...; `q`, `unified_kv`, `kv_indices`, ...), with the strings `entry_point`, `sm_scale` or `softmax_scale`,
// and `d_v` in its __metadata__. A second decode pool has the prefix `second_pool.`.
#pragma once

#include <string>
#include <variant>

#include "files/safetensors.h"
#include "sparse_mla/calls.h"

namespace sparse_mla::files {

using AnyCall = std::variant<PrefillCall, DecodeCall>;

// The tensors are CPU views into `storage`; an argument that the file does not have is None.
struct CapturedCall {
  SafetensorsFile storage;
  AnyCall call;
};

// Throws FileError. What the contract says about the call is not looked at.
CapturedCall read_captured_call(const std::string& path);
CapturedCall captured_call(SafetensorsFile file);

// Writes the tensors that the call holds, out and lse included where it has them. Throws FileError, and
// std::invalid_argument for strided tensors.
void write_captured_call(const std::string& path, const AnyCall& call);

// A result file holds `out`, and `max_logits` and `lse` where the call returned them. Throws FileError where `out` is
// missing.
SafetensorsFile read_result(const std::string& path);
void write_result(const std::string& path, const AnyCall& call);

}  // namespace sparse_mla::files
