// The compiled half of the Python package: functions that tvm-ffi finds by name in this library. One call of an entry
// point is one call of a function here. Nothing here depends on a Python or torch version.
#include <bit>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "arguments.h"
#include "cuda/cuda.h"
#include "sparse_mla/attention.h"
#include "sparse_mla/contract.h"
#include "sparse_mla/dlpack.h"
#include "sparse_mla/kv_cache.h"

namespace sparse_mla::python {
namespace {

namespace ffi = tvm::ffi;

// Bits of the first argument of `prefill`, `decode` and `check_*`; python/sparse_mla/_native.py has the same numbers.
enum Flag : std::int64_t {
  kContract = 1,        // parts A and B of the contract, not the general API
  kBatchInvariant = 2,  // RunOptions::batch_invariant
  kCheckValues = 4,     // RunOptions::check_values
  kDeviceRules = 8,     // CheckOptions::device_rules, for check_* only
  kOneThread = 16,      // RunOptions::threads = 1
};

// The violation behind the last error of this thread, until Python asks for it.
thread_local std::optional<Violation> last_violation;

ffi::Array<ffi::String> to_strings(const Violation& violation) {
  return {ffi::String(std::string(violation.slug)),
          ffi::String(violation.message),
          ffi::String(std::string(error_class_name(violation.error_class))),
          ffi::String(violation.argument),
          ffi::String(violation.expected),
          ffi::String(violation.got),
          ffi::String(violation.fix)};
}

int raise_in_python(const char* kind, const char* message) noexcept {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

// Runs `body`, whose result is the function's, and turns C++ exceptions into Python's.
template <class Body>
int guarded(TVMFFIAny* result, Body body) noexcept {
  try {
    last_violation.reset();
    ffi::Any value = body();
    *result = ffi::details::AnyUnsafe::MoveAnyToTVMFFIAny(std::move(value));
    return 0;
  } catch (const InvalidCall& error) {
    last_violation = error.violation();
    return raise_in_python("ValueError", error.what());
  } catch (const RefusedCall& error) {
    last_violation = error.violation();
    return raise_in_python("RuntimeError", error.what());
  } catch (const ffi::Error& error) {
    TVMFFIErrorSetRaised(ffi::details::ObjectUnsafe::TVMFFIObjectPtrFromObjectRef(error));
    return -1;
  } catch (const std::bad_alloc&) {
    return raise_in_python("MemoryError", "out of memory");
  } catch (const std::invalid_argument& error) {
    return raise_in_python("ValueError", error.what());
  } catch (const std::exception& error) {
    return raise_in_python("RuntimeError", error.what());
  }
}

PrefillCall prefill_call(const Arguments& in) {
  return {.q = in.tensor(1, "q"),
          .kv = in.tensor(2, "kv"),
          .indices = in.tensor(3, "indices"),
          .sm_scale = in.real(4, "sm_scale"),
          .q_scale = in.argument(5, "q_scale"),
          .kv_scale = in.argument(6, "kv_scale"),
          .d_v = in.integer(7, "d_v"),
          .attn_sink = in.argument(8, "attn_sink"),
          .topk_length = in.argument(9, "topk_length"),
          .out = in.argument(10, "out"),
          .max_logits = in.argument(11, "max_logits"),
          .lse = in.argument(12, "lse")};
}
constexpr int kPrefillWorkspace = 13;

DecodeCall decode_call(const Arguments& in) {
  DecodeCall call{.q = in.tensor(1, "q"),
                  .pool = {.unified_kv = in.tensor(2, "unified_kv"),
                           .kv_indices = in.tensor(3, "kv_indices"),
                           .kv_indptr = in.tensor(4, "kv_indptr"),
                           .kv_scales = in.argument(7, "kv_scales")},
                  .attn_sink = in.argument(5, "attn_sink"),
                  .softmax_scale = in.real(6, "softmax_scale"),
                  .out = in.argument(8, "out"),
                  .second_pool = std::nullopt,
                  .d_v = 0,
                  .lse = in.argument(9, "lse")};
  if (in.has(10)) call.d_v = in.integer(10, "d_v");
  if (in.has(11)) {
    call.second_pool = PagedPool{.unified_kv = in.tensor(11, "second_pool.unified_kv"),
                                 .kv_indices = in.tensor(12, "second_pool.kv_indices"),
                                 .kv_indptr = in.tensor(13, "second_pool.kv_indptr"),
                                 .kv_scales = in.argument(14, "second_pool.kv_scales")};
  }
  return call;
}
constexpr int kDecodeWorkspace = 15;

RunOptions options_of(std::int64_t flags) {
  return {.batch_invariant = (flags & kBatchInvariant) != 0,
          .check_values = (flags & kCheckValues) != 0,
          .threads = (flags & kOneThread) != 0 ? 1 : 0};
}

void run(const PrefillCall& call, const RunOptions& options, bool contract) {
  contract ? sparse_mla_q8kv8_prefill_fwd(call, options) : prefill(call, options);
}
void run(const DecodeCall& call, const RunOptions& options, bool contract) {
  contract ? sparse_attn_v4_paged_decode(call, options) : decode(call, options);
}

// Thrown out of a call that needs a workspace where no framework's allocator is at hand.
struct NoAllocator {
  std::size_t bytes;
};

// Device memory from the allocator of the framework that the tensors belong to, on its current stream. Freed when the
// call returns to Python: the allocator hands it out again only to work that follows on the same stream.
class FrameworkMemory {
 public:
  explicit FrameworkMemory(Device device) : device_{kDLCUDA, device.index} {}

  static void* allocate(std::size_t bytes, void* self) {
    if (TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr) throw NoAllocator{bytes};
    auto& memory = *static_cast<FrameworkMemory*>(self);
    memory.tensor_ = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({static_cast<std::int64_t>(bytes)}),
                                               DLDataType{kDLUInt, 8, 1}, memory.device_);
    return memory.tensor_->data_ptr();
  }

 private:
  DLDevice device_;
  std::optional<ffi::Tensor> tensor_;
};

void use_workspace(RunOptions& options, const Argument& given, Device device) {
  const Tensor* tensor = given.tensor();
  if (tensor == nullptr) throw std::invalid_argument("workspace must be a tensor of bytes on q's device");
  if (tensor->device != device || !tensor->is_contiguous()) {
    throw std::invalid_argument("workspace must be a contiguous tensor on q's device " + to_string(device) + ", got " +
                                to_string(tensor->device));
  }
  options.workspace = tensor->data;
  options.workspace_bytes = tensor->extent_bytes();
}

// Returns 0, or, where a workspace is needed, none was passed and no framework's allocator is at hand, the bytes that
// the caller has to pass; nothing has run then.
template <class Call>
std::int64_t run_call(const Call& call, std::int64_t flags, const Argument& workspace) {
  RunOptions options = options_of(flags);
  FrameworkMemory memory(call.q.device);
  if (call.q.device.is_cuda()) {
    options.stream = TVMFFIEnvGetStream(kDLCUDA, call.q.device.index);
    options.allocate = FrameworkMemory::allocate;
    options.allocate_context = &memory;
    if (!workspace.is_none()) use_workspace(options, workspace, call.q.device);
  }
  try {
    run(call, options, (flags & kContract) != 0);
  } catch (const NoAllocator& needed) {
    return static_cast<std::int64_t>(needed.bytes);
  }
  return 0;
}

template <class Call>
ffi::Array<ffi::Array<ffi::String>> check_call(const Call& call, std::int64_t flags) {
  const bool on_cpu = call.q.device.is_cpu();
  ffi::Array<ffi::Array<ffi::String>> violations;
  for (const Violation& violation :
       check(call, {.contract = (flags & kContract) != 0,
                    .device_rules = (flags & kDeviceRules) != 0,
                    .values = (flags & kCheckValues) != 0,
                    .value_source = on_cpu ? &host_values() : &cuda::device_values()})) {
    violations.push_back(to_strings(violation));
  }
  return violations;
}

// Four arguments from `first`: format or None, data, scales or None, page size.
KvRows kv_rows(const Arguments& in, int first, const std::string& name) {
  KvRows rows;
  if (in.has(first)) rows.format = kv_format_from_name(in.text(first, name + ".format"));
  rows.data = in.tensor(first + 1, name);
  rows.scales = in.argument(first + 2, name + ".scales");
  rows.page_size = in.integer(first + 3, name + ".page_size");
  return rows;
}

KvScaling kv_scaling(std::string_view name) {
  if (name == "amax") return KvScaling::kAmax;
  if (name == "amax_power_of_two") return KvScaling::kAmaxPowerOfTwo;
  if (name == "given") return KvScaling::kGiven;
  throw std::invalid_argument("unknown scaling \"" + std::string(name) +
                              "\", expected amax, amax_power_of_two or given");
}

KvCall kv_call(const Arguments& in) {
  KvCall call;
  call.source = kv_rows(in, 1, "source");
  call.target = kv_rows(in, 5, "target");
  call.source_slots = in.argument(9, "source_slots");
  call.target_slots = in.argument(10, "target_slots");
  call.first_row = in.integer(11, "first_row");
  call.remapped = in.argument(12, "remapped");
  if (in.has(13)) call.scaling = kv_scaling(in.text(13, "scaling"));
  call.scales = in.argument(14, "scales");
  return call;
}

void run_kv_transfer(const KvCall& call, std::int64_t flags) {
  const Device device = call.source.data.device;
  RunOptions options = options_of(flags);
  FrameworkMemory memory(device);
  if (device.is_cuda()) {
    options.stream = TVMFFIEnvGetStream(kDLCUDA, device.index);
    options.workspace_bytes = kv_workspace_bytes(call);
    if (options.workspace_bytes > 0) options.workspace = FrameworkMemory::allocate(options.workspace_bytes, &memory);
  }
  kv_transfer(call, options);
}

ffi::Any kv_verdicts(const Tensor& tensor) {
  ffi::Array<ffi::Array<ffi::String>> verdicts;
  for (const KvVerdict& verdict : inspect(tensor)) {
    ffi::Array<ffi::String> texts{ffi::String(std::string(kv_format_name(verdict.format)))};
    for (const std::string& objection : verdict.objections) texts.push_back(ffi::String(objection));
    verdicts.push_back(texts);
  }
  return verdicts;
}

ffi::Any rule_table() {
  ffi::Array<ffi::Array<ffi::String>> table;
  for (const RuleInfo& rule : rules()) {
    table.push_back({ffi::String(std::string(rule.slug)), ffi::String(std::string(rule.contract_id)),
                     ffi::String(std::string(entry_point_name(rule.entry_point))),
                     ffi::String(std::string(error_class_name(rule.error_class))),
                     ffi::String(std::string(rule.argument)), ffi::String(std::string(rule.message)),
                     ffi::String(std::string(rule.fix))});
  }
  return table;
}

}  // namespace
}  // namespace sparse_mla::python

#define SPARSE_MLA_PYTHON_FUNCTION(name)                                                                             \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name([[maybe_unused]] void* self,                                    \
                                                     [[maybe_unused]] const TVMFFIAny* values,                       \
                                                     [[maybe_unused]] std::int32_t count, TVMFFIAny* result) noexcept

namespace py = sparse_mla::python;

// prefill(flags, q, kv, indices, sm_scale, q_scale, kv_scale, d_v, attn_sink, topk_length, out, max_logits, lse
//         [, workspace]) -> bytes of workspace that are missing, or 0
SPARSE_MLA_PYTHON_FUNCTION(prefill) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    return tvm::ffi::Any(
        py::run_call(py::prefill_call(in), in.integer(0, "flags"), in.argument(py::kPrefillWorkspace, "workspace")));
  });
}

// decode(flags, q, unified_kv, kv_indices, kv_indptr, attn_sink, softmax_scale, kv_scales, out
//        [, lse, d_v, four arguments of the second pool, workspace]) -> as prefill
SPARSE_MLA_PYTHON_FUNCTION(decode) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    return tvm::ffi::Any(
        py::run_call(py::decode_call(in), in.integer(0, "flags"), in.argument(py::kDecodeWorkspace, "workspace")));
  });
}

// The arguments of `prefill`, `decode` -> every broken rule, as arrays of strings.
SPARSE_MLA_PYTHON_FUNCTION(check_prefill) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    return tvm::ffi::Any(py::check_call(py::prefill_call(in), in.integer(0, "flags")));
  });
}
SPARSE_MLA_PYTHON_FUNCTION(check_decode) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    return tvm::ffi::Any(py::check_call(py::decode_call(in), in.integer(0, "flags")));
  });
}

// The arguments of `prefill`, `decode` -> bytes.
SPARSE_MLA_PYTHON_FUNCTION(prefill_workspace_bytes) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    const sparse_mla::PrefillCall call = py::prefill_call(in);
    sparse_mla::enforce(call, {.contract = false});
    return tvm::ffi::Any(
        static_cast<std::int64_t>(sparse_mla::prefill_workspace_bytes(call, py::options_of(in.integer(0, "flags")))));
  });
}
SPARSE_MLA_PYTHON_FUNCTION(decode_workspace_bytes) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    const sparse_mla::DecodeCall call = py::decode_call(in);
    sparse_mla::enforce(call, {.contract = false});
    return tvm::ffi::Any(
        static_cast<std::int64_t>(sparse_mla::decode_workspace_bytes(call, py::options_of(in.integer(0, "flags")))));
  });
}

// () -> the violation behind this thread's last error as seven strings, or None; asked once.
SPARSE_MLA_PYTHON_FUNCTION(take_violation) {
  const std::optional<sparse_mla::Violation> violation = std::exchange(py::last_violation, std::nullopt);
  return py::guarded(result,
                     [&] { return violation ? tvm::ffi::Any(py::to_strings(*violation)) : tvm::ffi::Any(nullptr); });
}

// () -> the rule table, as arrays of strings.
SPARSE_MLA_PYTHON_FUNCTION(rules) {
  return py::guarded(result, [&] { return py::rule_table(); });
}

// () -> why the CUDA backend cannot be used, or "".
SPARSE_MLA_PYTHON_FUNCTION(cuda_unavailable_reason) {
  return py::guarded(result, [&] { return tvm::ffi::Any(tvm::ffi::String(sparse_mla::cuda::unavailable_reason())); });
}

// (device index, stream address): waits until the stream is done.
SPARSE_MLA_PYTHON_FUNCTION(synchronize) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    sparse_mla::cuda::synchronize(static_cast<int>(in.integer(0, "device")),
                                  std::bit_cast<void*>(in.integer(1, "stream")));
    return tvm::ffi::Any(nullptr);
  });
}

// kv_transfer(flags, source's format, data, scales, page size, target's four, source_slots, target_slots, first_row,
//             remapped, scaling, scales)
SPARSE_MLA_PYTHON_FUNCTION(kv_transfer) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    py::run_kv_transfer(py::kv_call(in), in.integer(0, "flags"));
    return tvm::ffi::Any(nullptr);
  });
}

// (tensor) -> for each format its name and what speaks against it.
SPARSE_MLA_PYTHON_FUNCTION(kv_inspect) {
  return py::guarded(result, [&] { return py::kv_verdicts(py::Arguments(values, count).tensor(0, "tensor")); });
}

// (from, to, scale)
SPARSE_MLA_PYTHON_FUNCTION(kv_to_e4m3fn) {
  return py::guarded(result, [&] {
    const py::Arguments in(values, count);
    const sparse_mla::Tensor from = in.tensor(0, "from");
    sparse_mla::RunOptions options;
    if (from.device.is_cuda()) options.stream = TVMFFIEnvGetStream(kDLCUDA, from.device.index);
    sparse_mla::kv_to_e4m3fn(from, in.tensor(1, "to"), static_cast<float>(in.real(2, "scale")), options);
    return tvm::ffi::Any(nullptr);
  });
}

// (format, width, page_size) -> bytes of a row, bytes of a page, scales of a row, where scales are: "none", "cache",
// "tensor", "row" or "page_end".
SPARSE_MLA_PYTHON_FUNCTION(kv_layout) {
  return py::guarded(result, [&] {
    using namespace sparse_mla;
    const py::Arguments in(values, count);
    const KvFormatInfo& info = kv_format_info(kv_format_from_name(in.text(0, "format")));
    const std::int64_t width = info.width != 0 ? info.width : in.integer(1, "width");
    constexpr const char* kPlaces[] = {"none", "cache", "tensor", "row", "page_end"};
    return tvm::ffi::Any(tvm::ffi::Array<tvm::ffi::Any>{
        width, kv_row_bytes(info, width), kv_page_bytes(info, width, in.integer(2, "page_size")),
        kv_row_scales(info, width), tvm::ffi::String(kPlaces[static_cast<int>(info.scale_place)]),
        tvm::ffi::String(std::string(torch_name(info.values)))});
  });
}
