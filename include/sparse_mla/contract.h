// The rules of the two entry points: what a call must hold, and what is said when it does not.
// Rules look at metadata only (shape, dtype, device, strides, addresses), so they work without a GPU.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sparse_mla/calls.h"

namespace sparse_mla {

enum class EntryPoint : std::uint8_t { kPrefill, kDecode };
// "sparse_mla_q8kv8_prefill_fwd", "sparse_attn_v4_paged_decode".
std::string_view entry_point_name(EntryPoint entry_point) noexcept;

// The Python exception that a rule raises; in C++ std::invalid_argument and std::runtime_error.
enum class ErrorClass : std::uint8_t { kValueError, kRuntimeError };
std::string_view error_class_name(ErrorClass error_class) noexcept;  // "ValueError", "RuntimeError"

// One broken rule of one call.
struct Violation {
  std::string_view slug;   // stable, e.g. "prefill-topk-multiple-of-128"
  std::string message;     // to the letter of the contract
  ErrorClass error_class;
  std::string argument;    // the argument at fault: "q", "kv_scales", ...
  std::string expected;
  std::string got;
  std::string fix;         // the shortest fix, with this call's values in it
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
  explicit InvalidCall(const Violation& violation) : std::invalid_argument(violation.message), ContractError(violation) {}
};

class RefusedCall final : public std::runtime_error, public ContractError {
 public:
  explicit RefusedCall(const Violation& violation) : std::runtime_error(violation.message), ContractError(violation) {}
};

// Throws InvalidCall or RefusedCall, by the violation's error class.
[[noreturn]] void raise(const Violation& violation);

struct CheckOptions {
  // False: the general API's conditions (contract part D). True: the contract of the entry point (parts A and B).
  bool contract = true;
  // False leaves the device rules out: a call that was captured on a GPU is checked and run on a CPU.
  bool device_rules = true;
  // True where the tensors' memory can be read by this thread: value rules (lengths, indices, indptr, NaN and Inf in
  // scales) are checked too.
  bool values = false;
};

// Every broken rule, in the contract's order.
std::vector<Violation> check(const PrefillCall& call, const CheckOptions& options = {});
std::vector<Violation> check(const DecodeCall& call, const CheckOptions& options = {});
// The first broken rule is raised; later rules are not looked at.
void enforce(const PrefillCall& call, const CheckOptions& options = {});
void enforce(const DecodeCall& call, const CheckOptions& options = {});

// One entry of the rule table.
struct RuleInfo {
  std::string_view slug;
  std::string_view contract_id;  // "A15", "B4"; "D1" for the general API's own
  EntryPoint entry_point;
  ErrorClass error_class;
  std::string_view message;  // the template, with {placeholders}
  std::string_view fix;      // the template of the shortest fix
};
// The whole table, in the contract's order.
std::span<const RuleInfo> rules() noexcept;

}  // namespace sparse_mla
