#include "files/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "files/json_text.h"

namespace sparse_mla::files {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, DType>, 13> kDTypeNames = {{
    {"F8_E4M3", DType::kFloat8E4M3FN},
    {"F8_E5M2", DType::kFloat8E5M2},
    {"F8_E8M0", DType::kFloat8E8M0FNU},
    {"BF16", DType::kBFloat16},
    {"F16", DType::kFloat16},
    {"F32", DType::kFloat32},
    {"F64", DType::kFloat64},
    {"U8", DType::kUInt8},
    {"I8", DType::kInt8},
    {"I16", DType::kInt16},
    {"I32", DType::kInt32},
    {"I64", DType::kInt64},
    {"BOOL", DType::kBool},
}};

// A tensor as the header describes it, checked against itself but not yet against the file.
struct Entry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class EntryReader {
 public:
  EntryReader(std::string_view path, const std::string& name, const json& value)
      : path_(path), name_(name), value_(value) {}

  Entry read() const {
    if (!value_.is_object()) fail(Fault::kEntry, {{"got", kind_of(value_)}});
    Entry entry{name_, dtype(), shape(), 0, 0};
    const auto offsets = unsigned_list("data_offsets", "two byte offsets");
    if (offsets.size() != 2)
      fail_field("data_offsets", "two byte offsets", std::to_string(offsets.size()) + " numbers");
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    if (entry.end < entry.begin) {
      fail(Fault::kOffsetsReversed, {{"begin", std::to_string(entry.begin)}, {"end", std::to_string(entry.end)}});
    }
    const std::uint64_t expected = bytes(entry);
    if (entry.end - entry.begin != expected) {
      fail(Fault::kSizeMismatch, {{"dtype", std::string(safetensors_name(entry.dtype))},
                                  {"shape", shape_string(entry.shape)},
                                  {"expected", std::to_string(expected)},
                                  {"got", std::to_string(entry.end - entry.begin)}});
    }
    return entry;
  }

 private:
  [[noreturn]] void fail(Fault fault, FaultValues values) const {
    values.push_back({"name", in_quotes(name_)});
    throw FileError(path_, fault, values);
  }

  [[noreturn]] void fail_field(std::string_view field, std::string_view expected, std::string got) const {
    fail(Fault::kEntryField,
         {{"field", std::string(field)}, {"expected", std::string(expected)}, {"got", std::move(got)}});
  }

  const json& field(const char* key, std::string_view expected) const {
    const auto found = value_.find(key);
    if (found == value_.end()) fail_field(key, expected, "nothing");
    return *found;
  }

  DType dtype() const {
    const json& value = field("dtype", "a string");
    if (!value.is_string()) fail_field("dtype", "a string", kind_of(value));
    std::vector<std::string_view> known;
    for (const auto& [dtype_name, dtype] : kDTypeNames) {
      if (dtype_name == value.get_ref<const std::string&>()) return dtype;
      known.push_back(dtype_name);
    }
    fail(Fault::kUnknownDType, {{"dtype", kind_of(value)}, {"known", listed(known)}});
  }

  std::vector<std::int64_t> unsigned_list(const char* key, std::string_view expected) const {
    const json& value = field(key, expected);
    if (!value.is_array()) fail_field(key, expected, kind_of(value));
    std::vector<std::int64_t> numbers;
    for (const json& item : value) {
      constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > kLargest) fail_field(key, expected, kind_of(item));
      numbers.push_back(item.get<std::int64_t>());
    }
    return numbers;
  }

  std::vector<std::int64_t> shape() const {
    std::vector<std::int64_t> sizes = unsigned_list("shape", "a list of sizes");
    if (sizes.size() > kMaxRank) {
      fail(Fault::kRank, {{"rank", std::to_string(sizes.size())}, {"limit", std::to_string(kMaxRank)}});
    }
    return sizes;
  }

  // Strides of an empty tensor must be representable too, so a size of 0 does not excuse the others.
  std::uint64_t bytes(const Entry& entry) const {
    std::uint64_t count = bytes_per_element(entry.dtype);
    bool empty = false;
    for (const std::int64_t size : entry.shape) {
      if (size == 0) empty = true;
      const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
      if (count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / factor) {
        fail(Fault::kTooLarge, {{"shape", shape_string(entry.shape)}});
      }
      count *= factor;
    }
    return empty ? 0 : count;
  }

  std::string_view path_;
  const std::string& name_;
  const json& value_;
};

Metadata read_metadata(std::string_view path, const json& value) {
  if (!value.is_object()) throw FileError(path, Fault::kMetadata, {{"got", kind_of(value)}});
  Metadata metadata;
  for (const auto& [key, item] : value.items()) {
    if (!item.is_string()) throw FileError(path, Fault::kMetadata, {{"got", kind_of(item) + " at " + in_quotes(key)}});
    metadata.emplace(key, item.get_ref<const std::string&>());
  }
  return metadata;
}

// The format has neither holes nor overlaps: entries, in the order of their bytes, meet end to begin.
void require_partition(std::string_view path, std::span<const Entry> sorted, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  const Entry* last = nullptr;
  for (const Entry& entry : sorted) {
    if (entry.end > data_bytes) {
      throw FileError(
          path, Fault::kPastEnd,
          {{"name", in_quotes(entry.name)}, {"end", std::to_string(entry.end)}, {"size", std::to_string(data_bytes)}});
    }
    if (entry.begin == entry.end) continue;
    if (entry.begin < covered) {
      throw FileError(path, Fault::kOverlap, {{"name", in_quotes(last->name)}, {"other", in_quotes(entry.name)}});
    }
    if (entry.begin > covered) {
      throw FileError(path, Fault::kHole, {{"begin", std::to_string(covered)}, {"end", std::to_string(entry.begin)}});
    }
    covered = entry.end;
    last = &entry;
  }
  if (covered != data_bytes) {
    throw FileError(path, Fault::kHole, {{"begin", std::to_string(covered)}, {"end", std::to_string(data_bytes)}});
  }
}

bool by_position(const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); }

std::uint64_t little_endian(std::span<const std::byte, 8> bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  return value;
}

// The header's text, and what follows it.
std::pair<std::string_view, std::span<const std::byte>> split(std::span<const std::byte> bytes, std::string_view path) {
  if (bytes.size() < 8) throw FileError(path, Fault::kTooShort, {{"size", std::to_string(bytes.size())}});
  const std::uint64_t length = little_endian(bytes.first<8>());
  const std::span<const std::byte> rest = bytes.subspan(8);
  if (length > rest.size()) {
    throw FileError(path, Fault::kHeaderPastEnd,
                    {{"header", std::to_string(length)}, {"left", std::to_string(rest.size())}});
  }
  if (length > kMaxHeaderBytes) {
    throw FileError(path, Fault::kHeaderTooLarge,
                    {{"header", std::to_string(length)}, {"limit", std::to_string(kMaxHeaderBytes)}});
  }
  const std::string_view header(reinterpret_cast<const char*>(rest.data()), static_cast<std::size_t>(length));
  if (header.empty() || header[0] != '{') {
    throw FileError(path, Fault::kHeaderStart, {{"got", header.empty() ? "nothing" : in_quotes(header.substr(0, 1))}});
  }
  return {header, rest.subspan(static_cast<std::size_t>(length))};
}

}  // namespace

std::string_view safetensors_name(DType dtype) noexcept {
  for (const auto& [name, known] : kDTypeNames) {
    if (known == dtype) return name;
  }
  return {};
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.file_ = MappedFile(path);
  file.parse(file.file_.bytes());
  return file;
}

SafetensorsFile SafetensorsFile::from_bytes(std::span<const std::byte> bytes, const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.parse(bytes);
  return file;
}

void SafetensorsFile::parse(std::span<const std::byte> bytes) {
  const auto [header, data] = split(bytes, path_);
  const json root = parse_json(header, {path_, true});
  std::vector<Entry> entries;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      metadata_ = read_metadata(path_, value);
    } else {
      entries.push_back(EntryReader(path_, name, value).read());
    }
  }
  std::sort(entries.begin(), entries.end(), by_position);
  require_partition(path_, entries, data.size());
  for (Entry& entry : entries) {
    const auto size = static_cast<std::size_t>(entry.end - entry.begin);
    const std::byte* start = aligned(data.subspan(static_cast<std::size_t>(entry.begin), size));
    // Views are typed void*; nothing in this library writes to an input.
    tensors_.push_back({std::move(entry.name), Tensor(const_cast<std::byte*>(start), entry.dtype, entry.shape)});
  }
}

const std::byte* SafetensorsFile::aligned(std::span<const std::byte> bytes) {
  if (bytes.empty() || reinterpret_cast<std::uintptr_t>(bytes.data()) % kTensorAlignment == 0) return bytes.data();
  std::vector<Block>& copy = copies_.emplace_back((bytes.size() + sizeof(Block) - 1) / sizeof(Block));
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy.front().bytes;
}

const Tensor* SafetensorsFile::find(std::string_view name) const noexcept {
  for (const NamedTensor& entry : tensors_) {
    if (entry.name == name) return &entry.tensor;
  }
  return nullptr;
}

std::vector<std::string_view> SafetensorsFile::names() const {
  std::vector<std::string_view> names;
  for (const NamedTensor& entry : tensors_) names.push_back(entry.name);
  return names;
}

}  // namespace sparse_mla::files
