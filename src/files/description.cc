#include "files/description.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "files/arguments.h"
#include "files/json_text.h"
#include "files/mapped_file.h"

namespace sparse_mla::files {
namespace {

using nlohmann::json;

// Bounds that keep every product of a described shape, and every address, far from 63 bits.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 56;
constexpr std::uint64_t kMaxAddress = std::uint64_t{1} << 62;

bool is_whole(const json& value) { return value.is_number_integer() || value.is_number_unsigned(); }

std::string python_type(const json& value) {
  if (value.is_string()) return "str";
  if (value.is_boolean()) return "bool";
  if (value.is_array()) return "list";
  return value.is_number_float() ? "float" : "int";
}

std::optional<double> as_float(const json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  return std::nullopt;
}

std::optional<std::int32_t> as_int32(const json& value) {
  if (!is_whole(value)) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{0x7FFFFFFF}) return std::nullopt;
  const auto number = value.get<std::int64_t>();
  if (number < std::numeric_limits<std::int32_t>::min()) return std::nullopt;
  return static_cast<std::int32_t>(number);
}

// Row-major order of a nested list; the JSON parser has bounded its depth.
void flatten(const json& value, std::vector<const json*>& items) {
  if (!value.is_array()) {
    items.push_back(&value);
    return;
  }
  for (const json& item : value) flatten(item, items);
}

// One described tensor.
class TensorReader {
 public:
  TensorReader(std::string_view path, std::string_view name, const json& value)
      : path_(path), name_(name), value_(value) {}

  struct Result {
    Tensor tensor;
    std::optional<std::uint64_t> address;
  };

  Result read() const {
    for (const auto& [key, item] : value_.items()) require_known(key);
    const std::vector<std::int64_t> shape = sizes("shape", "a list of sizes");
    const DType dtype = named<DType>("dtype", "a dtype such as \"torch.float8_e4m3fn\"", dtype_from_torch_name);
    const Device device = value_.contains("device")
                              ? named<Device>("device", "\"cpu\", \"meta\" or \"cuda:N\"", device_from_string)
                              : Device::cuda(0);
    Result result{Tensor(nullptr, dtype, shape, device), std::nullopt};
    require_bounded(result.tensor);
    if (value_.contains("strides")) {
      const std::vector<std::int64_t> strides = sizes("strides", "a list of element counts");
      if (strides.size() != shape.size()) {
        fail_field("strides", "as long as shape", std::to_string(strides.size()) + " numbers");
      }
      result.tensor = Tensor(nullptr, dtype, shape, strides, device);
      require_bounded(result.tensor);
    }
    if (value_.contains("address")) result.address = address();
    return result;
  }

  void add_values(const Tensor& tensor, DescribedValues& values) const {
    const auto found = value_.find("values");
    if (found == value_.end() || found->is_null()) return;
    if (!found->is_array()) fail_values("a list", kind_of(*found));
    std::vector<const json*> items;
    flatten(*found, items);
    if (items.size() != static_cast<std::uint64_t>(tensor.elements())) {
      fail_values(std::to_string(tensor.elements()) + " numbers, as shape " + shape_string(tensor) + " has",
                  std::to_string(items.size()));
    }
    if (tensor.dtype == DType::kInt32) {
      values.add(std::string(name_), converted<std::int32_t>(items, as_int32, "int32 numbers"));
    } else {  // the rules about other values are about float32 tensors
      const std::vector<double> numbers = converted<double>(items, as_float, "numbers");
      if (tensor.dtype == DType::kFloat32) {
        values.add(std::string(name_), std::vector<float>(numbers.begin(), numbers.end()));
      }
    }
  }

 private:
  void require_known(const std::string& key) const {
    constexpr std::array<std::string_view, 6> kKeys = {"shape", "dtype", "device", "strides", "address", "values"};
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      fail_field("its fields", "among " + listed(kKeys), in_quotes(key));
    }
  }

  [[noreturn]] void fail_field(std::string_view field, std::string_view expected, std::string got) const {
    throw FileError(path_, Fault::kDescriptionField,
                    {{"name", std::string(name_)},
                     {"field", std::string(field)},
                     {"expected", std::string(expected)},
                     {"got", std::move(got)}});
  }

  [[noreturn]] void fail_values(std::string expected, std::string got) const {
    throw FileError(path_, Fault::kDescriptionValues,
                    {{"name", std::string(name_)}, {"expected", std::move(expected)}, {"got", std::move(got)}});
  }

  const json& field(const char* key, std::string_view expected) const {
    const auto found = value_.find(key);
    if (found == value_.end()) fail_field(key, expected, "nothing");
    return *found;
  }

  std::vector<std::int64_t> sizes(const char* key, std::string_view expected) const {
    const json& value = field(key, expected);
    if (!value.is_array()) fail_field(key, expected, kind_of(value));
    if (value.size() > kMaxRank) {
      fail_field(key, "at most " + std::to_string(kMaxRank) + " numbers", std::to_string(value.size()));
    }
    std::vector<std::int64_t> numbers;
    for (const json& item : value) {
      if (!item.is_number_unsigned()) fail_field(key, expected, kind_of(item));
      if (item.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxExtent)) {
        fail_field(key, "at most 2^56 in each dimension", kind_of(item));
      }
      numbers.push_back(item.get<std::int64_t>());
    }
    return numbers;
  }

  template <class Value>
  Value named(const char* key, std::string_view expected, Value (*from_name)(std::string_view)) const {
    const json& value = field(key, expected);
    if (!value.is_string()) fail_field(key, expected, kind_of(value));
    try {
      return from_name(value.get_ref<const std::string&>());
    } catch (const std::invalid_argument&) {
      fail_field(key, expected, kind_of(value));
    }
  }

  std::uint64_t address() const {
    const json& value = value_.at("address");
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxAddress) {
      fail_field("address", "a byte address of at most 2^62", kind_of(value));
    }
    return value.get<std::uint64_t>();
  }

  // Sizes and strides multiply to something representable, also where a size of 0 makes the tensor empty.
  void require_bounded(const Tensor& tensor) const {
    std::int64_t count = static_cast<std::int64_t>(bytes_per_element(tensor.dtype));
    std::int64_t reach = count;
    const std::int64_t width = count;
    for (int d = 0; d < tensor.rank; ++d) {
      const std::int64_t size = std::max<std::int64_t>(tensor.shape[d], 1);
      const std::int64_t stride = std::max<std::int64_t>(tensor.strides[d], 1);
      const bool fits = count <= kMaxExtent / size && stride <= kMaxExtent / width / size &&
                        reach <= kMaxExtent - size * stride * width;
      if (!fits) fail_field("shape", "at most 2^56 bytes", shape_string(tensor));
      count *= size;
      reach += size * stride * width;
    }
  }

  template <class Number>
  std::vector<Number> converted(const std::vector<const json*>& items, std::optional<Number> (*convert)(const json&),
                                std::string_view expected) const {
    std::vector<Number> numbers;
    numbers.reserve(items.size());
    for (const json* item : items) {
      const std::optional<Number> number = convert(*item);
      if (!number) fail_values(std::string(expected), kind_of(*item));
      numbers.push_back(*number);
    }
    return numbers;
  }

  std::string_view path_;
  std::string_view name_;
  const json& value_;
};

// Gives each tensor its address: the described one, or a place of its own past everything that is described.
class Addresses {
 public:
  void place(Tensor& tensor, std::optional<std::uint64_t> address) {
    if (address) {
      tensor.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(*address));
      end_ = std::max(end_, *address + tensor.extent_bytes());
    } else {
      homeless_.push_back(&tensor);
    }
  }

  void settle() {
    constexpr std::uint64_t kPage = 4096;
    for (Tensor* tensor : homeless_) {
      end_ = (end_ / kPage + 1) * kPage;
      tensor->data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(end_));
      end_ += tensor->extent_bytes();
    }
    homeless_.clear();
  }

 private:
  std::uint64_t end_ = 0;
  std::vector<Tensor*> homeless_;
};

template <class Call>
class CallReader {
 public:
  CallReader(const json& args, const std::string& path) : args_(args), path_(path) {}

  DescribedCall read() {
    require_known_arguments();
    Call call;
    // Held apart from the call until every address is settled: an Argument copies its tensor.
    std::vector<Tensor> tensors(Format::kTensors.size());
    Addresses addresses;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const json& value = argument(Format::kTensors[i].name);
      if (!value.is_object()) continue;
      const TensorReader reader(path_, Format::kTensors[i].name, value);
      const TensorReader::Result result = reader.read();
      tensors[i] = result.tensor;
      addresses.place(tensors[i], result.address);
      reader.add_values(tensors[i], values_);
    }
    addresses.settle();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorArgument<Call>& tensor = Format::kTensors[i];
      if (tensor.second_pool && !any_second_pool_argument()) continue;
      fill(tensor.place(call), tensor.name, tensors[i]);
    }
    Format::scale(call) = scale();
    if (!argument("d_v").is_null()) call.d_v = value_width();
    return {std::move(call), std::move(values_)};
  }

 private:
  using Format = CallFormat<Call>;

  // null where the argument is absent.
  const json& argument(std::string_view name) const {
    static const json kNone;
    const auto found = args_.find(name);
    return found == args_.end() ? kNone : *found;
  }

  bool any_second_pool_argument() const {
    for (const TensorArgument<Call>& tensor : Format::kTensors) {
      if (tensor.second_pool && !argument(tensor.name).is_null()) return true;
    }
    return false;
  }

  void require_known_arguments() const {
    constexpr auto kTensorNames = tensor_names<Call>();
    std::vector<std::string_view> known(kTensorNames.begin(), kTensorNames.end());
    known.push_back(Format::kScale);
    known.push_back("d_v");
    for (const auto& [name, value] : args_.items()) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        throw FileError(path_, Fault::kUnknownArgument,
                        {{"name", in_quotes(name)},
                         {"entry_point", std::string(entry_point_name(Format::kEntryPoint))},
                         {"known", listed(known)}});
      }
    }
  }

  void fill(Place place, std::string_view name, const Tensor& tensor) const {
    const json& value = argument(name);
    if (Argument* const* optional = std::get_if<Argument*>(&place)) {
      if (value.is_object()) {
        **optional = tensor;
      } else if (!value.is_null()) {
        **optional = NotATensor{python_type(value)};
      }
      return;
    }
    if (!value.is_object()) {
      throw FileError(path_, Fault::kDescriptionTensor,
                      {{"name", std::string(name)}, {"got", value.is_null() ? "nothing" : kind_of(value)}});
    }
    *std::get<Tensor*>(place) = tensor;
  }

  double scale() const {
    const std::optional<double> number = as_float(argument(Format::kScale));
    if (!number) fail_scalar(Format::kScale, "a number");
    return *number;
  }

  std::int64_t value_width() const {
    const json& value = argument("d_v");
    if (!as_int32(value)) fail_scalar("d_v", "a 32-bit integer");
    return value.get<std::int64_t>();
  }

  [[noreturn]] void fail_scalar(std::string_view name, std::string_view expected) const {
    const json& value = argument(name);
    throw FileError(path_, Fault::kDescriptionScalar,
                    {{"name", std::string(name)},
                     {"expected", std::string(expected)},
                     {"got", value.is_null() ? "nothing" : kind_of(value)}});
  }

  const json& args_;
  const std::string& path_;
  DescribedValues values_;
};

template <class Value>
Tensor view_of(const std::vector<Value>& values, DType dtype) {
  return Tensor(const_cast<Value*>(values.data()), dtype, {static_cast<std::int64_t>(values.size())});
}

}  // namespace

std::optional<ValueSource::Offender> DescribedValues::first_outside(std::string_view argument, const Tensor&,
                                                                    std::int64_t low, std::int64_t high) const {
  const auto found = integers_.find(argument);
  if (found == integers_.end()) return std::nullopt;
  return host_values().first_outside(argument, view_of(found->second, DType::kInt32), low, high);
}

std::optional<ValueSource::Offender> DescribedValues::first_decrease(std::string_view argument, const Tensor&) const {
  const auto found = integers_.find(argument);
  if (found == integers_.end()) return std::nullopt;
  return host_values().first_decrease(argument, view_of(found->second, DType::kInt32));
}

std::optional<ValueSource::Offender> DescribedValues::first_not_finite(std::string_view argument, const Tensor&) const {
  const auto found = floats_.find(argument);
  if (found == floats_.end()) return std::nullopt;
  return host_values().first_not_finite(argument, view_of(found->second, DType::kFloat32));
}

DescribedCall parse_description(std::string_view text, const std::string& path) {
  if (text.size() > kMaxDescriptionBytes) {
    throw FileError(path, Fault::kDescriptionTooLarge,
                    {{"size", std::to_string(text.size())}, {"limit", std::to_string(kMaxDescriptionBytes)}});
  }
  const json root = parse_json(text, {path});
  if (!root.is_object() || !root.contains("entry_point") || !root.at("entry_point").is_string() ||
      !root.contains("args") || !root.at("args").is_object()) {
    throw FileError(path, Fault::kDescriptionShape);
  }
  const auto& name = root.at("entry_point").get_ref<const std::string&>();
  if (name == entry_point_name(EntryPoint::kPrefill)) return CallReader<PrefillCall>(root.at("args"), path).read();
  if (name == entry_point_name(EntryPoint::kDecode)) return CallReader<DecodeCall>(root.at("args"), path).read();
  const std::array known = {entry_point_name(EntryPoint::kPrefill), entry_point_name(EntryPoint::kDecode)};
  throw FileError(path, Fault::kUnknownEntryPoint, {{"got", in_quotes(name)}, {"known", listed(known)}});
}

DescribedCall read_description(const std::string& path) {
  const MappedFile file(path);
  return parse_description({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

bool looks_like_description(std::span<const std::byte> bytes) noexcept {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 8));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte-order mark, which the JSON parser skips too
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  // A header length of 8 bytes that a file can hold ends in zero bytes; no JSON text holds one.
  return first == std::string_view::npos ? bytes.size() >= 8 : text[first] == '{' && text.find('\0') == text.npos;
}

}  // namespace sparse_mla::files
