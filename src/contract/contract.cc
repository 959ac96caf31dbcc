#include "sparse_mla/contract.h"

#include "contract/rule.h"

namespace sparse_mla {
namespace contract {
namespace {

bool is_asked(RuleScope scope, RuleStage stage, const CheckOptions& options) noexcept {
  if (scope == (options.contract ? RuleScope::kGeneral : RuleScope::kContract)) return false;
  switch (stage) {
    case RuleStage::kDevice:
      return options.device_rules;
    case RuleStage::kValues:
      return options.values;
    case RuleStage::kRun:
      return options.run_rules;
    case RuleStage::kMetadata:
      break;
  }
  return true;
}

template <class Call>
Input<Call> make_input(const Call& call, const CheckOptions& options) noexcept {
  const ValueSource& values = options.value_source != nullptr ? *options.value_source : host_values();
  return {call, options, values, Table<Call>::known(call, options)};
}

template <class Call>
std::optional<Facts> broken(const Rule<Call>& rule, const Input<Call>& in) {
  if (!is_asked(rule.scope, rule.stage, in.options) || !in.knows(rule.needs)) return std::nullopt;
  return rule.check(in);
}

std::optional<std::string> tensor_value(const Tensor& tensor, std::string_view name) {
  if (name == "shape") return shape_string(tensor);
  if (name == "dtype") return std::string(torch_name(tensor.dtype));
  if (name == "device") return to_string(tensor.device);
  if (name == "strides") return shape_string({tensor.strides.data(), static_cast<std::size_t>(tensor.rank)});
  return std::nullopt;
}

template <class Call>
std::optional<std::string> placeholder_value(std::string_view name, const Facts& facts, const Input<Call>& in) {
  for (const Field& field : facts.fields) {
    if (field.name == name) return field.value;
  }
  if (facts.tensor != nullptr) {
    if (std::optional<std::string> value = tensor_value(*facts.tensor, name)) return value;
  }
  if (name == "name") return std::string(facts.argument);
  if (name == "call") {
    return std::string(in.options.contract ? entry_point_name(Table<Call>::kEntryPoint) : Table<Call>::kGeneralName);
  }
  return Table<Call>::named_value(in.call, name);
}

// Puts values in for {placeholders}; a name without a value stays as it is.
template <class Call>
std::string fill(std::string_view text, const Facts& facts, const Input<Call>& in) {
  std::string filled;
  while (true) {
    const std::size_t open = text.find('{');
    const std::size_t close = text.find('}', open);
    if (close == std::string_view::npos) return filled.append(text);
    filled.append(text.substr(0, open));
    const std::optional<std::string> value = placeholder_value(text.substr(open + 1, close - open - 1), facts, in);
    filled.append(value ? *value : std::string(text.substr(open, close - open + 1)));
    text.remove_prefix(close + 1);
  }
}

template <class Call>
Violation describe(const Rule<Call>& rule, Facts facts, const Input<Call>& in) {
  if (facts.argument.empty()) facts.argument = rule.argument;
  return {
      rule.slug, fill(rule.message, facts, in), Table<Call>::kErrorClass, std::string(facts.argument), facts.expected,
      facts.got, fill(rule.fix, facts, in)};
}

template <class Call>
std::vector<Violation> check_all(const Call& call, const CheckOptions& options) {
  const Input<Call> in = make_input(call, options);
  std::vector<Violation> violations;
  for (const Rule<Call>& rule : Table<Call>::rules()) {
    if (std::optional<Facts> facts = broken(rule, in)) violations.push_back(describe(rule, std::move(*facts), in));
  }
  return violations;
}

template <class Call>
void enforce_first(const Call& call, const CheckOptions& options) {
  const Input<Call> in = make_input(call, options);
  for (const Rule<Call>& rule : Table<Call>::rules()) {
    if (std::optional<Facts> facts = broken(rule, in)) raise(describe(rule, std::move(*facts), in));
  }
}

template <class Call>
void append_infos(std::vector<RuleInfo>& infos) {
  for (const Rule<Call>& rule : Table<Call>::rules()) {
    infos.push_back({rule.slug, rule.id, Table<Call>::kEntryPoint, Table<Call>::kErrorClass, rule.scope, rule.stage,
                     rule.argument, rule.message, rule.fix});
  }
}

std::vector<RuleInfo> all_infos() {
  std::vector<RuleInfo> infos;
  append_infos<PrefillCall>(infos);
  append_infos<DecodeCall>(infos);
  append_infos<KvCall>(infos);
  return infos;
}

}  // namespace
}  // namespace contract

std::string_view entry_point_name(EntryPoint entry_point) noexcept {
  switch (entry_point) {
    case EntryPoint::kPrefill:
      return "sparse_mla_q8kv8_prefill_fwd";
    case EntryPoint::kDecode:
      return "sparse_attn_v4_paged_decode";
    case EntryPoint::kKvTransfer:
      break;
  }
  return "kv_transfer";
}

std::string_view error_class_name(ErrorClass error_class) noexcept {
  return error_class == ErrorClass::kValueError ? "ValueError" : "RuntimeError";
}

void raise(const Violation& violation) {
  if (violation.error_class == ErrorClass::kValueError) throw InvalidCall(violation);
  throw RefusedCall(violation);
}

std::vector<Violation> check(const PrefillCall& call, const CheckOptions& options) {
  return contract::check_all(call, options);
}
std::vector<Violation> check(const DecodeCall& call, const CheckOptions& options) {
  return contract::check_all(call, options);
}
std::vector<Violation> check(const KvCall& call, const CheckOptions& options) {
  return contract::check_all(call, options);
}
void enforce(const PrefillCall& call, const CheckOptions& options) { contract::enforce_first(call, options); }
void enforce(const DecodeCall& call, const CheckOptions& options) { contract::enforce_first(call, options); }
void enforce(const KvCall& call, const CheckOptions& options) { contract::enforce_first(call, options); }

std::span<const RuleInfo> rules() noexcept {
  static const std::vector<RuleInfo> kInfos = contract::all_infos();
  return kInfos;
}

}  // namespace sparse_mla
