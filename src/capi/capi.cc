// The C interface over the C++ one: views in, a status and this thread's text out.
#include "sparse_mla/sparse_mla.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparse_mla/attention.h"
#include "sparse_mla/contract.h"

namespace sparse_mla {
namespace {

// What this thread's last call left behind. `no_memory` stands in for a message that there was no memory for.
struct LastCall {
  std::string message;
  std::vector<Violation> violations;
  std::vector<std::string> slugs;  // null-terminated copies
  bool no_memory = false;

  void clear() noexcept {
    message.clear();
    violations.clear();
    slugs.clear();
    no_memory = false;
  }
  void add(const Violation& violation) {
    slugs.emplace_back(violation.slug);
    violations.push_back(violation);
  }
};
LastCall& last_call() noexcept {
  thread_local LastCall last;
  return last;
}

sparse_mla_status failed(sparse_mla_status status, const char* message, const Violation* violation = nullptr) noexcept {
  LastCall& last = last_call();
  try {
    last.message = message;
    if (violation != nullptr) last.add(*violation);
  } catch (...) {
    last.clear();
    last.no_memory = true;
    return SPARSE_MLA_OUT_OF_MEMORY;
  }
  return status;
}

// Runs `body`; no exception leaves it.
template <class Body>
sparse_mla_status guarded(Body body) noexcept {
  last_call().clear();
  try {
    body();
    return SPARSE_MLA_OK;
  } catch (const InvalidCall& error) {
    return failed(SPARSE_MLA_INVALID_CALL, error.what(), &error.violation());
  } catch (const RefusedCall& error) {
    return failed(SPARSE_MLA_REFUSED_CALL, error.what(), &error.violation());
  } catch (const std::bad_alloc&) {
    last_call().no_memory = true;
    return SPARSE_MLA_OUT_OF_MEMORY;
  } catch (const std::invalid_argument& error) {
    return failed(SPARSE_MLA_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return failed(SPARSE_MLA_RUNTIME_ERROR, error.what());
  } catch (...) {
    return failed(SPARSE_MLA_RUNTIME_ERROR, "unknown error");
  }
}

// The caller's struct as far as it goes, over defaults: a program built against an older header passes a shorter one.
template <class Struct>
Struct complete(const Struct* given, const Struct& defaults, const char* name) {
  if (given == nullptr) throw std::invalid_argument(std::string(name) + " must not be NULL");
  if (given->struct_size < sizeof(std::size_t) || given->struct_size > sizeof(Struct)) {
    throw std::invalid_argument(std::string(name) + ".struct_size is " + std::to_string(given->struct_size) +
                                ", expected at most " + std::to_string(sizeof(Struct)) + "; set it with the INIT macro");
  }
  Struct whole = defaults;
  std::memcpy(&whole, given, given->struct_size);
  return whole;
}

DType dtype_of(std::int32_t code, const char* name) {
  static_assert(static_cast<int>(DType::kFloat8E4M3FN) == SPARSE_MLA_FLOAT8_E4M3FN);
  static_assert(static_cast<int>(DType::kBFloat16) == SPARSE_MLA_BFLOAT16);
  static_assert(static_cast<int>(DType::kFloat32) == SPARSE_MLA_FLOAT32);
  static_assert(static_cast<int>(DType::kInt32) == SPARSE_MLA_INT32);
  static_assert(static_cast<int>(DType::kBool) == SPARSE_MLA_BOOL);
  if (code < 0 || code > SPARSE_MLA_BOOL) {
    throw std::invalid_argument(std::string(name) + ": unknown dtype " + std::to_string(code));
  }
  return static_cast<DType>(code);
}

Device device_of(const sparse_mla_tensor& tensor, const char* name) {
  if (tensor.device == SPARSE_MLA_CPU) return Device::cpu();
  if (tensor.device == SPARSE_MLA_CUDA && tensor.device_index >= 0) return Device::cuda(tensor.device_index);
  throw std::invalid_argument(std::string(name) + ": unknown device " + std::to_string(tensor.device) + ", index " +
                              std::to_string(tensor.device_index));
}

Tensor tensor_of(const sparse_mla_tensor* tensor, const char* name) {
  if (tensor == nullptr) throw std::invalid_argument(std::string(name) + " must not be NULL");
  if (tensor->rank < 0 || tensor->rank > kMaxRank || (tensor->rank > 0 && tensor->shape == nullptr)) {
    throw std::invalid_argument(std::string(name) + ": expected a shape of 0 to " + std::to_string(kMaxRank) +
                                " dimensions, got rank " + std::to_string(tensor->rank));
  }
  const DType dtype = dtype_of(tensor->dtype, name);
  const Device device = device_of(*tensor, name);
  const std::span<const std::int64_t> shape(tensor->shape, static_cast<std::size_t>(tensor->rank));
  if (tensor->strides == nullptr) return Tensor(tensor->data, dtype, shape, device);
  return Tensor(tensor->data, dtype, shape, std::span(tensor->strides, shape.size()), device);
}

Argument argument_of(const sparse_mla_tensor* tensor, const char* name) {
  if (tensor == nullptr) return std::nullopt;
  return tensor_of(tensor, name);
}

PrefillCall call_of(const sparse_mla_prefill_call* given) {
  const sparse_mla_prefill_call call = complete(given, sparse_mla_prefill_call SPARSE_MLA_PREFILL_CALL_INIT, "call");
  return {.q = tensor_of(call.q, "q"),
          .kv = tensor_of(call.kv, "kv"),
          .indices = tensor_of(call.indices, "indices"),
          .sm_scale = call.sm_scale,
          .q_scale = argument_of(call.q_scale, "q_scale"),
          .kv_scale = argument_of(call.kv_scale, "kv_scale"),
          .d_v = call.d_v,
          .attn_sink = argument_of(call.attn_sink, "attn_sink"),
          .topk_length = argument_of(call.topk_length, "topk_length"),
          .out = argument_of(call.out, "out"),
          .max_logits = argument_of(call.max_logits, "max_logits"),
          .lse = argument_of(call.lse, "lse")};
}

PagedPool pool_of(const sparse_mla_pool& pool, const std::string& prefix) {
  return {.unified_kv = tensor_of(pool.unified_kv, (prefix + "unified_kv").c_str()),
          .kv_indices = tensor_of(pool.kv_indices, (prefix + "kv_indices").c_str()),
          .kv_indptr = tensor_of(pool.kv_indptr, (prefix + "kv_indptr").c_str()),
          .kv_scales = argument_of(pool.kv_scales, (prefix + "kv_scales").c_str())};
}

DecodeCall call_of(const sparse_mla_decode_call* given) {
  const sparse_mla_decode_call call = complete(given, sparse_mla_decode_call SPARSE_MLA_DECODE_CALL_INIT, "call");
  DecodeCall result{.q = tensor_of(call.q, "q"),
                    .pool = pool_of(call.pool, ""),
                    .attn_sink = argument_of(call.attn_sink, "attn_sink"),
                    .softmax_scale = call.softmax_scale,
                    .out = argument_of(call.out, "out"),
                    .second_pool = std::nullopt,
                    .d_v = call.d_v,
                    .lse = argument_of(call.lse, "lse")};
  if (call.second_pool != nullptr) result.second_pool = pool_of(*call.second_pool, "second_pool.");
  return result;
}

RunOptions options_of(const sparse_mla_options* given) {
  if (given == nullptr) return {};
  const sparse_mla_options options = complete(given, sparse_mla_options SPARSE_MLA_OPTIONS_INIT, "options");
  return {.batch_invariant = options.batch_invariant != 0,
          .check_values = options.check_values != 0,
          .threads = options.threads,
          .stream = options.stream,
          .workspace = options.workspace,
          .workspace_bytes = options.workspace_bytes};
}

template <class Call>
sparse_mla_status check_call(const Call* given, int contract, int check_values, std::size_t* count) noexcept {
  return guarded([&] {
    if (count == nullptr) throw std::invalid_argument("count must not be NULL");
    const auto call = call_of(given);
    // Values are read where this thread can read them.
    const bool readable = call.q.device.is_cpu();
    const CheckOptions options{.contract = contract != 0, .values = check_values != 0 && readable};
    for (const Violation& violation : check(call, options)) last_call().add(violation);
    *count = last_call().violations.size();
  });
}

}  // namespace
}  // namespace sparse_mla

extern "C" {

const char* sparse_mla_version(void) { return SPARSE_MLA_VERSION; }

sparse_mla_status sparse_mla_q8kv8_prefill_fwd(const sparse_mla_prefill_call* call, const sparse_mla_options* options) {
  return sparse_mla::guarded([&] {
    sparse_mla::sparse_mla_q8kv8_prefill_fwd(sparse_mla::call_of(call), sparse_mla::options_of(options));
  });
}

sparse_mla_status sparse_mla_sparse_attn_v4_paged_decode(const sparse_mla_decode_call* call,
                                                         const sparse_mla_options* options) {
  return sparse_mla::guarded([&] {
    sparse_mla::sparse_attn_v4_paged_decode(sparse_mla::call_of(call), sparse_mla::options_of(options));
  });
}

sparse_mla_status sparse_mla_prefill(const sparse_mla_prefill_call* call, const sparse_mla_options* options) {
  return sparse_mla::guarded(
      [&] { sparse_mla::prefill(sparse_mla::call_of(call), sparse_mla::options_of(options)); });
}

sparse_mla_status sparse_mla_decode(const sparse_mla_decode_call* call, const sparse_mla_options* options) {
  return sparse_mla::guarded([&] { sparse_mla::decode(sparse_mla::call_of(call), sparse_mla::options_of(options)); });
}

sparse_mla_status sparse_mla_prefill_workspace_bytes(const sparse_mla_prefill_call* call,
                                                     const sparse_mla_options* options, size_t* bytes) {
  return sparse_mla::guarded([&] {
    if (bytes == nullptr) throw std::invalid_argument("bytes must not be NULL");
    const sparse_mla::PrefillCall read = sparse_mla::call_of(call);
    sparse_mla::enforce(read, {.contract = false});
    *bytes = sparse_mla::prefill_workspace_bytes(read, sparse_mla::options_of(options));
  });
}

sparse_mla_status sparse_mla_decode_workspace_bytes(const sparse_mla_decode_call* call,
                                                    const sparse_mla_options* options, size_t* bytes) {
  return sparse_mla::guarded([&] {
    if (bytes == nullptr) throw std::invalid_argument("bytes must not be NULL");
    const sparse_mla::DecodeCall read = sparse_mla::call_of(call);
    sparse_mla::enforce(read, {.contract = false});
    *bytes = sparse_mla::decode_workspace_bytes(read, sparse_mla::options_of(options));
  });
}

sparse_mla_status sparse_mla_check_prefill(const sparse_mla_prefill_call* call, int contract, int check_values,
                                           size_t* count) {
  return sparse_mla::check_call(call, contract, check_values, count);
}

sparse_mla_status sparse_mla_check_decode(const sparse_mla_decode_call* call, int contract, int check_values,
                                          size_t* count) {
  return sparse_mla::check_call(call, contract, check_values, count);
}

const char* sparse_mla_last_message(void) {
  const sparse_mla::LastCall& last = sparse_mla::last_call();
  return last.no_memory ? "out of memory" : last.message.c_str();
}

int sparse_mla_get_violation(size_t index, sparse_mla_violation* violation) {
  const sparse_mla::LastCall& last = sparse_mla::last_call();
  if (violation == nullptr || index >= last.violations.size()) return 0;
  const sparse_mla::Violation& found = last.violations[index];
  *violation = {last.slugs[index].c_str(),  found.message.c_str(), found.argument.c_str(),
                found.expected.c_str(),     found.got.c_str(),     found.fix.c_str()};
  return 1;
}

}  // extern "C"
