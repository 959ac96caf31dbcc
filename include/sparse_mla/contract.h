// The rules of the entry points: what a call must hold, and what is said when it does not.
// Rules look at metadata only (shape, dtype, device, strides, addresses), so they work without a GPU; the few rules
// about values read them through a ValueSource.
#pragma once

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sparse_mla/calls.h"

namespace sparse_mla {

struct KvCall;  // kv_cache.h

enum class EntryPoint : std::uint8_t { kPrefill, kDecode, kKvTransfer };
// "sparse_mla_q8kv8_prefill_fwd", "sparse_attn_v4_paged_decode", "kv_transfer".
std::string_view entry_point_name(EntryPoint entry_point) noexcept;

// The Python exception that a rule raises; in C++ std::invalid_argument and std::runtime_error.
enum class ErrorClass : std::uint8_t { kValueError, kRuntimeError };
std::string_view error_class_name(ErrorClass error_class) noexcept;  // "ValueError", "RuntimeError"

// One broken rule of one call.
struct Violation {
  std::string_view slug;  // stable, e.g. "prefill-topk-multiple-of-128"
  std::string message;    // to the letter of the contract
  ErrorClass error_class;
  std::string argument;  // the argument at fault: "q", "kv_scales", ...
  std::string expected;
  std::string got;
  std::string fix;  // the shortest fix, with this call's values in it
};

// What the two exception types share: `catch (const ContractError& e)` reaches the violation of either.
class ContractError {
 public:
  explicit ContractError(Violation violation) : violation_(std::move(violation)) {}
  virtual ~ContractError() = default;
  const Violation& violation() const noexcept { return violation_; }

 private:
  Violation violation_;
};

class InvalidCall final : public std::invalid_argument, public ContractError {
 public:
  explicit InvalidCall(const Violation& violation)
      : std::invalid_argument(violation.message), ContractError(violation) {}
};

class RefusedCall final : public std::runtime_error, public ContractError {
 public:
  explicit RefusedCall(const Violation& violation) : std::runtime_error(violation.message), ContractError(violation) {}
};

// Throws InvalidCall or RefusedCall, by the violation's error class.
[[noreturn]] void raise(const Violation& violation);

// Where value rules get their values: host memory, a description's list, or a pass on a device. Each question names
// the argument as rules do ("topk_length", "second_pool.kv_indptr"), is asked only of a tensor whose shape and dtype
// hold, and is answered by the first offender in row-major order: none where every value is good or none can be read.
class ValueSource {
 public:
  struct Offender {
    std::int64_t position = 0;  // among the tensor's elements, row-major
    double value = 0;
    double previous = 0;  // the element before it, for first_decrease
  };
  virtual ~ValueSource() = default;
  // int32 or int64 values outside [low, high].
  virtual std::optional<Offender> first_outside(std::string_view argument, const Tensor& tensor, std::int64_t low,
                                                std::int64_t high) const = 0;
  // int32 values of a vector that are less than the value before them.
  virtual std::optional<Offender> first_decrease(std::string_view argument, const Tensor& tensor) const = 0;
  // float32 values that are NaN or infinite.
  virtual std::optional<Offender> first_not_finite(std::string_view argument, const Tensor& tensor) const = 0;
  // float32 values that are not finite and above 0.
  virtual std::optional<Offender> first_not_positive(std::string_view, const Tensor&) const { return std::nullopt; }
};
// Reads Tensor::data with the calling thread; a tensor without data has no offender.
const ValueSource& host_values() noexcept;

struct CheckOptions {
  // False: the general API's conditions (contract part D). True: the contract of the entry point (parts A and B).
  bool contract = true;
  // False leaves the device rules out: a call that was captured on a GPU is checked and run on a CPU.
  bool device_rules = true;
  // True: value rules (lengths, indptr, NaN and Inf in scales) are checked too, on what value_source gives.
  bool values = false;
  // Null is host_values(): the tensors' memory can be read by this thread.
  const ValueSource* value_source = nullptr;
  // True for a call that is about to run: its outputs must be given, and a tensor with elements must have memory.
  bool run_rules = false;
};

// Every broken rule, in the contract's order. A rule that cannot be judged because another one is broken (the width of
// a tensor of the wrong rank) is not reported.
std::vector<Violation> check(const PrefillCall& call, const CheckOptions& options = {});
std::vector<Violation> check(const DecodeCall& call, const CheckOptions& options = {});
std::vector<Violation> check(const KvCall& call, const CheckOptions& options = {});
// The first broken rule is raised; later rules are not looked at.
void enforce(const PrefillCall& call, const CheckOptions& options = {});
void enforce(const DecodeCall& call, const CheckOptions& options = {});
void enforce(const KvCall& call, const CheckOptions& options = {});

// Who asks for a rule.
enum class RuleScope : std::uint8_t { kBoth, kContract, kGeneral };
// When a rule is looked at: always, or with the option of CheckOptions that bears its name.
enum class RuleStage : std::uint8_t { kMetadata, kDevice, kValues, kRun };

// One entry of the rule table.
struct RuleInfo {
  std::string_view slug;         // stable
  std::string_view contract_id;  // "A15", "B4"; "B8" for decode's own rules, "KV" for those of kv_transfer, else "D"
  EntryPoint entry_point;
  ErrorClass error_class;
  RuleScope scope;
  RuleStage stage;
  std::string_view argument;  // the argument at fault; a rule about several names one of them in its violation
  std::string_view message;   // the template, with {placeholders}
  std::string_view fix;       // the template of the shortest fix
};
// The whole table, in the contract's order: prefill's rules, then decode's, then those of kv_transfer.
std::span<const RuleInfo> rules() noexcept;

}  // namespace sparse_mla
