#include "files/captured_call.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "files/arguments.h"

namespace sparse_mla::files {
namespace {

constexpr std::string_view kEntryPointKey = "entry_point";
constexpr std::string_view kValueWidthKey = "d_v";

// The whole of `text` as a number.
template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

class CallReader {
 public:
  explicit CallReader(const SafetensorsFile& file) : file_(file) {}

  AnyCall read() const {
    const std::string& name = metadata(kEntryPointKey);
    if (name == entry_point_name(EntryPoint::kPrefill)) return read_as<PrefillCall>();
    if (name == entry_point_name(EntryPoint::kDecode)) return read_as<DecodeCall>();
    const std::array known = {entry_point_name(EntryPoint::kPrefill), entry_point_name(EntryPoint::kDecode)};
    throw FileError(file_.path(), Fault::kUnknownEntryPoint, {{"got", in_quotes(name)}, {"known", listed(known)}});
  }

 private:
  template <class Call>
  AnyCall read_as() const {
    using Format = CallFormat<Call>;
    Call call;
    require_known<Call>();
    for (const TensorArgument<Call>& argument : Format::kTensors) {
      if (argument.second_pool && !any_second_pool_tensor()) continue;
      fill(argument.place(call), argument.name, Format::kEntryPoint);
    }
    Format::scale(call) = number<double>(Format::kScale, "a number");
    if (file_.metadata().contains(kValueWidthKey)) call.d_v = number<std::int64_t>(kValueWidthKey, "an integer");
    return call;
  }

  void fill(Place place, std::string_view name, EntryPoint entry_point) const {
    const Tensor* tensor = file_.find(name);
    if (Argument* const* optional = std::get_if<Argument*>(&place)) {
      if (tensor != nullptr) **optional = *tensor;
    } else if (tensor != nullptr) {
      *std::get<Tensor*>(place) = *tensor;
    } else {
      throw FileError(file_.path(), Fault::kLacksTensor,
                      {{"name", std::string(name)},
                       {"entry_point", std::string(entry_point_name(entry_point))},
                       {"found", found_tensors()}});
    }
  }

  // A misspelt optional argument would otherwise be taken for None.
  template <class Call>
  void require_known() const {
    constexpr auto kNames = tensor_names<Call>();
    for (const NamedTensor& entry : file_.tensors()) {
      if (std::find(kNames.begin(), kNames.end(), entry.name) == kNames.end()) {
        throw FileError(file_.path(), Fault::kUnknownTensor,
                        {{"name", in_quotes(entry.name)},
                         {"entry_point", std::string(entry_point_name(CallFormat<Call>::kEntryPoint))},
                         {"known", listed(kNames)}});
      }
    }
  }

  bool any_second_pool_tensor() const {
    for (const NamedTensor& entry : file_.tensors()) {
      if (entry.name.starts_with("second_pool.")) return true;
    }
    return false;
  }

  std::string found_tensors() const {
    std::vector<std::string> names;
    for (const std::string_view name : file_.names()) names.push_back(in_quotes(name));
    return listed(names);
  }

  const std::string& metadata(std::string_view key) const {
    const auto found = file_.metadata().find(key);
    if (found != file_.metadata().end()) return found->second;
    std::vector<std::string> keys;
    for (const auto& [name, value] : file_.metadata()) keys.push_back(in_quotes(name));
    throw FileError(file_.path(), Fault::kLacksMetadata, {{"key", std::string(key)}, {"found", listed(keys)}});
  }

  template <class Number>
  Number number(std::string_view key, std::string_view expected) const {
    const std::string& text = metadata(key);
    Number value{};
    if (!parse_number(text, value)) {
      throw FileError(file_.path(), Fault::kMetadataNumber,
                      {{"key", std::string(key)}, {"expected", std::string(expected)}, {"got", in_quotes(text)}});
    }
    return value;
  }

  const SafetensorsFile& file_;
};

const Tensor* tensor_at(Place place) {
  if (Argument* const* optional = std::get_if<Argument*>(&place)) return (*optional)->tensor();
  return std::get<Tensor*>(place);
}

// The shortest decimal that reads back as the same double.
std::string decimal(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? std::string(text.data(), end) : "nan";
}

template <class Call>
void write_call(const std::string& path, Call call) {
  using Format = CallFormat<Call>;
  std::vector<NamedTensor> tensors;
  for (const TensorArgument<Call>& argument : Format::kTensors) {
    if (argument.second_pool && !Format::has_second_pool(call)) continue;
    const Tensor* tensor = tensor_at(argument.place(call));
    if (tensor != nullptr) tensors.push_back({std::string(argument.name), *tensor});
  }
  const Metadata metadata = {{std::string(kEntryPointKey), std::string(entry_point_name(Format::kEntryPoint))},
                             {std::string(Format::kScale), decimal(Format::scale(call))},
                             {std::string(kValueWidthKey), std::to_string(call.d_v)}};
  write_safetensors(path, tensors, metadata);
}

void add_output(std::vector<NamedTensor>& tensors, std::string_view name, const Argument& output) {
  if (output.tensor() != nullptr) tensors.push_back({std::string(name), *output.tensor()});
}

}  // namespace

CapturedCall captured_call(SafetensorsFile file) {
  AnyCall call = CallReader(file).read();
  return {std::move(file), std::move(call)};
}

CapturedCall read_captured_call(const std::string& path) { return captured_call(SafetensorsFile::open(path)); }

void write_captured_call(const std::string& path, const AnyCall& call) {
  if (const auto* prefill = std::get_if<PrefillCall>(&call)) {
    write_call(path, *prefill);
  } else {
    write_call(path, std::get<DecodeCall>(call));
  }
}

SafetensorsFile read_result(const std::string& path) {
  SafetensorsFile file = SafetensorsFile::open(path);
  if (file.find("out") == nullptr) {
    std::vector<std::string> names;
    for (const std::string_view name : file.names()) names.push_back(in_quotes(name));
    throw FileError(path, Fault::kNotAResult, {{"found", listed(names)}});
  }
  return file;
}

void write_result(const std::string& path, const AnyCall& call) {
  std::vector<NamedTensor> tensors;
  Metadata metadata;
  if (const auto* prefill = std::get_if<PrefillCall>(&call)) {
    add_output(tensors, "out", prefill->out);
    add_output(tensors, "max_logits", prefill->max_logits);
    add_output(tensors, "lse", prefill->lse);
    metadata.emplace(kEntryPointKey, entry_point_name(EntryPoint::kPrefill));
  } else {
    const auto& decode = std::get<DecodeCall>(call);
    add_output(tensors, "out", decode.out);
    add_output(tensors, "lse", decode.lse);
    metadata.emplace(kEntryPointKey, entry_point_name(EntryPoint::kDecode));
  }
  write_safetensors(path, tensors, metadata);
}

}  // namespace sparse_mla::files
