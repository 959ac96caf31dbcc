#include "files/safetensors.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <set>

#include "files/atomic_file.h"
#include "temporary_folder.h"

namespace sparse_mla::files {
namespace {

using sparse_mla::testing::content_of;
using sparse_mla::testing::safetensors_bytes;
using sparse_mla::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <class Value>
std::vector<Value> values_of(const Tensor& tensor) {
  return {tensor.as<Value>(), tensor.as<Value>() + tensor.elements()};
}

TEST(Safetensors, RoundTripKeepsEveryDTypeShapeAndByte) {
  const TemporaryFolder folder;
  std::vector<std::byte> bytes(24 * 8);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (safetensors_name(dtype).empty()) continue;
    tensors.push_back({std::string(torch_name(dtype)), Tensor(bytes.data(), dtype, {2, 3, 4})});
  }
  ASSERT_EQ(tensors.size(), 13u);
  tensors.push_back({"scalar", Tensor(bytes.data(), DType::kFloat32, std::initializer_list<std::int64_t>{})});
  tensors.push_back({"nothing", Tensor(nullptr, DType::kInt64, {0, 7})});
  tensors.push_back({"odd", Tensor(bytes.data(), DType::kUInt8, {3})});
  const std::string path = folder.path("all.safetensors");
  write_safetensors(path, tensors, {{"a", "1"}, {"b \"quoted\"", "line\nbreak"}});

  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata(), (Metadata{{"a", "1"}, {"b \"quoted\"", "line\nbreak"}}));
  for (const NamedTensor& expected : tensors) {
    SCOPED_TRACE(expected.name);
    const Tensor* got = file.find(expected.name);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->dtype, expected.tensor.dtype);
    EXPECT_EQ(shape_string(*got), shape_string(expected.tensor));
    EXPECT_TRUE(got->is_contiguous());
    EXPECT_EQ(got->device, Device::cpu());
    EXPECT_EQ(std::memcmp(got->data, bytes.data(), got->extent_bytes()), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got->data) % kTensorAlignment, 0u);
  }
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Safetensors, DataAtAnyByteIsReadAligned) {
  const std::vector<float> floats = {1.5f, -2.25f, 3e30f};
  std::string data = "\x07";
  data.append(reinterpret_cast<const char*>(floats.data()), sizeof(float) * floats.size());
  for (int spaces = 0; spaces < 16; ++spaces) {
    const std::string bytes = safetensors_bytes(
        R"({"one":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[3],"data_offsets":[1,13]}})" +
            std::string(static_cast<std::size_t>(spaces), ' '),
        data);
    const SafetensorsFile file = SafetensorsFile::from_bytes(std::as_bytes(std::span(bytes)), "memory");
    const Tensor& f = *file.find("f");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(f.data) % kTensorAlignment, 0u);
    EXPECT_EQ(values_of<float>(f), floats);
    EXPECT_EQ(values_of<std::uint8_t>(*file.find("one")), std::vector<std::uint8_t>{7});
  }
}

TEST(Safetensors, ViewsOutliveAMoveOfTheFile) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> values(1000);
  std::iota(values.begin(), values.end(), -500);
  const std::vector<NamedTensor> tensors = {{"v", Tensor(values.data(), DType::kInt32, {1000})}};
  write_safetensors(folder.path("v"), tensors, {});
  SafetensorsFile file = SafetensorsFile::open(folder.path("v"));
  const Tensor view = *file.find("v");
  const SafetensorsFile moved = std::move(file);
  EXPECT_EQ(values_of<std::int32_t>(view), values);
  EXPECT_EQ(moved.find("v")->data, view.data);
}

struct Broken {
  const char* name;
  std::string bytes;
  std::string_view slug;
  std::string message;
};
void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

std::string one(std::string_view entry, std::string_view data) {
  return safetensors_bytes("{\"t\":" + std::string(entry) + "}", data);
}

std::string length_only(std::uint64_t length, std::string_view rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(rest);
}

class BrokenFile : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenFile, IsRefusedWithItsNameAndFault) {
  const TemporaryFolder folder;
  const std::string path = folder.write("call.safetensors", GetParam().bytes);
  try {
    SafetensorsFile::open(path);
    FAIL() << "read without an error";
  } catch (const FileError& error) {
    EXPECT_EQ(error.slug(), GetParam().slug);
    EXPECT_EQ(error.what(), path + ": " + GetParam().message);
    EXPECT_EQ(error.path(), path);
  }
}

// One row for each fault of the format, and one for each way to meet it that has a branch of its own.
INSTANTIATE_TEST_SUITE_P(
    Safetensors, BrokenFile,
    ::testing::Values(
        Broken{"Empty", "", "safetensors-too-short",
               "is 0 bytes long; a safetensors file starts with the 8-byte length of its header"},
        Broken{"SevenBytes", "1234567", "safetensors-too-short",
               "is 7 bytes long; a safetensors file starts with the 8-byte length of its header"},
        Broken{"HeaderPastEnd", length_only(3, "{}"), "safetensors-header-past-end",
               "claims a header of 3 bytes, but 2 bytes follow"},
        Broken{"HeaderLengthOfAllOnes", length_only(~std::uint64_t{0}, "{}"), "safetensors-header-past-end",
               "claims a header of 18446744073709551615 bytes, but 2 bytes follow"},
        Broken{"HeaderTooLarge", length_only(10'000'001, "{" + std::string(10'000'000, ' ')),
               "safetensors-header-too-large", "claims a header of 10000001 bytes; at most 10000000 are read"},
        Broken{"NoHeader", length_only(0, ""), "safetensors-header-start", "header must start with \"{\", got nothing"},
        Broken{"HeaderIsAList", safetensors_bytes("[]"), "safetensors-header-start",
               "header must start with \"{\", got \"[\""},
        Broken{"HeaderIsBinary", safetensors_bytes("\x01{}"), "safetensors-header-start",
               "header must start with \"{\", got \"\\x01\""},
        Broken{"NotJson", safetensors_bytes("{\"a\":}"), "json-syntax", "is not valid JSON at header byte 5"},
        Broken{"HeaderCutShort", safetensors_bytes("{\"a\":{\"dtype\":"), "json-syntax",
               "is not valid JSON at header byte 14"},
        Broken{"TextAfterHeader", safetensors_bytes("{} {}"), "json-syntax", "is not valid JSON at header byte 3"},
        Broken{"BadUtf8", safetensors_bytes("{\"\xff\":1}"), "json-syntax", "is not valid JSON at header byte 2"},
        Broken{"NumberPastDouble", safetensors_bytes("{\"a\":1e999}"), "json-syntax",
               "is not valid JSON at a number that no double can hold"},
        Broken{"DeepNesting", safetensors_bytes("{\"a\":" + std::string(100'000, '[')), "json-too-deep",
               "nests JSON deeper than 8 levels"},
        Broken{"SameNameTwice",
               safetensors_bytes(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                 R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
               "json-duplicate-key", "has the JSON key \"t\" twice in one object"},
        Broken{"SameFieldTwice", one(R"({"dtype":"U8","dtype":"I8"})", ""), "json-duplicate-key",
               "has the JSON key \"dtype\" twice in one object"},
        Broken{"MetadataIsANumber", safetensors_bytes(R"({"__metadata__":1})"), "safetensors-metadata",
               "__metadata__ must map strings to strings, got 1"},
        Broken{"MetadataValueIsANumber", safetensors_bytes(R"({"__metadata__":{"sm_scale":0.5}})"),
               "safetensors-metadata", "__metadata__ must map strings to strings, got 0.5 at \"sm_scale\""},
        Broken{"EntryIsAList", one("[1]", ""), "safetensors-entry",
               "tensor \"t\" must be an object with dtype, shape and data_offsets, got an array"},
        Broken{"NoDType", one(R"({"shape":[1],"data_offsets":[0,1]})", "x"), "safetensors-entry-field",
               "tensor \"t\": dtype must be a string, got nothing"},
        Broken{"DTypeIsANumber", one(R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})", "x"), "safetensors-entry-field",
               "tensor \"t\": dtype must be a string, got 8"},
        Broken{
            "UnknownDType", one(R"({"dtype":"F4","shape":[1],"data_offsets":[0,1]})", "x"), "safetensors-unknown-dtype",
            "tensor \"t\": unknown dtype \"F4\"; known: F8_E4M3, F8_E5M2, F8_E8M0, BF16, F16, F32, F64, U8, I8, I16, "
            "I32, I64, BOOL"},
        Broken{"ShapeIsANumber", one(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", "x"),
               "safetensors-entry-field", "tensor \"t\": shape must be a list of sizes, got 1"},
        Broken{"NegativeSize", one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", "x"),
               "safetensors-entry-field", "tensor \"t\": shape must be a list of sizes, got -1"},
        Broken{"FractionalSize", one(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", "x"),
               "safetensors-entry-field", "tensor \"t\": shape must be a list of sizes, got 1.0"},
        Broken{"SizePast63Bits", one(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]})", "x"),
               "safetensors-entry-field", "tensor \"t\": shape must be a list of sizes, got 9223372036854775808"},
        Broken{"NineDimensions", one(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]})", "x"),
               "safetensors-rank", "tensor \"t\" has 9 dimensions; at most 8 are read"},
        Broken{"ProductWraps", one(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", ""),
               "safetensors-too-large", "tensor \"t\": shape (4294967296, 4294967296) does not fit 63 bits of bytes"},
        Broken{"ElementBytesWrap", one(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", ""),
               "safetensors-too-large", "tensor \"t\": shape (2305843009213693952,) does not fit 63 bits of bytes"},
        Broken{
            "StridesOfNothingWrap", one(R"({"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", ""),
            "safetensors-too-large", "tensor \"t\": shape (0, 4294967296, 4294967296) does not fit 63 bits of bytes"},
        Broken{"OneOffset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", "x"), "safetensors-entry-field",
               "tensor \"t\": data_offsets must be two byte offsets, got 1 numbers"},
        Broken{"NegativeOffset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", "x"),
               "safetensors-entry-field", "tensor \"t\": data_offsets must be two byte offsets, got -1"},
        Broken{"OffsetsReversed", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", "x"),
               "safetensors-offsets-reversed", "tensor \"t\": data_offsets end at 0, before they begin at 1"},
        Broken{"LyingShape", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "xxxx"),
               "safetensors-size-mismatch", "tensor \"t\": F32 of shape (2,) is 8 bytes, its data_offsets span 4"},
        Broken{"LyingEmptyShape", one(R"({"dtype":"F32","shape":[0],"data_offsets":[0,4]})", "xxxx"),
               "safetensors-size-mismatch", "tensor \"t\": F32 of shape (0,) is 0 bytes, its data_offsets span 4"},
        Broken{"DataCutShort", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", "xxxxxxx"),
               "safetensors-past-end", "tensor \"t\" ends at byte 8 of the data, but the file holds 7"},
        Broken{"EmptyTensorPastEnd", one(R"({"dtype":"F32","shape":[0],"data_offsets":[99,99]})", ""),
               "safetensors-past-end", "tensor \"t\" ends at byte 99 of the data, but the file holds 0"},
        Broken{"Overlap",
               safetensors_bytes(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                 R"("b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
                                 "12345"),
               "safetensors-overlap", "tensors \"a\" and \"b\" overlap"},
        Broken{"SameBytes",
               safetensors_bytes(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                 R"("b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                                 "123"),
               "safetensors-overlap", "tensors \"a\" and \"b\" overlap"},
        Broken{"HoleBefore", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", "xx"), "safetensors-hole",
               "bytes 0 to 1 of the data belong to no tensor"},
        Broken{"BytesAfter", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", "xyz"), "safetensors-hole",
               "bytes 1 to 3 of the data belong to no tensor"}),
    [](const ::testing::TestParamInfo<Broken>& param) { return std::string(param.param.name); });

std::string error_of(const std::string& path) {
  try {
    SafetensorsFile::open(path);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Safetensors, WhatIsNoFileIsRefusedByName) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of("/nonexistent/call.safetensors"),
            "/nonexistent/call.safetensors: cannot be opened: No such file or directory");
  EXPECT_EQ(error_of(folder.path()), folder.path() + ": is not a regular file");
  EXPECT_EQ(error_of("/dev/null"), "/dev/null: is not a regular file");
}

TEST(Safetensors, HostileNamesAreEscapedAndCutInMessages) {
  const std::string header = "{\"" + std::string(200, 'x') +
                             "\":1, \"\\u001b[2J\\n\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
  const std::string bytes = safetensors_bytes(header);
  try {
    SafetensorsFile::from_bytes(std::as_bytes(std::span(bytes)), "memory");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(), "memory: tensor \"" + std::string(80, 'x') +
                                "...\" must be an object with dtype, shape and data_offsets, got 1");
  }
  EXPECT_EQ(in_quotes("\x1b[2J\n"), "\"\\x1b[2J\\x0a\"");
}

TEST(Safetensors, EveryPrefixOfAGoodFileIsRefused) {
  const TemporaryFolder folder;
  std::vector<float> values = {1, 2, 3, 4, 5};
  const std::vector<NamedTensor> tensors = {{"v", Tensor(values.data(), DType::kFloat32, {5})}};
  write_safetensors(folder.path("v"), tensors, {{"k", "v"}});
  const std::string whole = content_of(folder.path("v"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string part = whole.substr(0, length);
    EXPECT_THROW(SafetensorsFile::from_bytes(std::as_bytes(std::span(part)), "part"), FileError) << length;
  }
  EXPECT_NO_THROW(SafetensorsFile::from_bytes(std::as_bytes(std::span(whole)), "whole"));
}

TEST(SafetensorsWriter, RefusesWhatTheFormatCannotHold) {
  const TemporaryFolder folder;
  std::array<float, 16> values{};
  const auto write = [&](const Tensor& tensor) {
    const std::vector<NamedTensor> tensors = {{"t", tensor}};
    write_safetensors(folder.path("t"), tensors, {});
  };
  const std::array<std::int64_t, 2> shape = {2, 2};
  const std::array<std::int64_t, 2> strides = {4, 1};
  EXPECT_THROW(write(Tensor(values.data(), DType::kFloat32, shape, strides, Device::cpu())), std::invalid_argument);
  EXPECT_THROW(write(Tensor(values.data(), DType::kFloat32, {2}, Device::cuda())), std::invalid_argument);
  try {
    write(Tensor(values.data(), DType::kFloat8E4M3FNUZ, {2}));
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(),
              folder.path("t") + ": tensor \"t\" cannot be stored: safetensors has no name for torch.float8_e4m3fnuz");
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(Faults, SlugsAreUniqueAndEveryPlaceholderIsFilled) {
  std::set<std::string_view> slugs;
  for (const FaultInfo& row : kFaults) {
    EXPECT_TRUE(slugs.insert(row.slug).second) << row.slug;
    EXPECT_THAT(std::string(row.slug), ::testing::MatchesRegex("[a-z]+(-[a-z]+)+"));
  }
  const FileError error("f", Fault::kHeaderPastEnd, {{"header", "{left}"}, {"left", "2"}});
  EXPECT_STREQ(error.what(), "f: claims a header of {left} bytes, but 2 bytes follow");
}

TEST(AtomicFile, WithoutACommitTheOldFileStays) {
  const TemporaryFolder folder;
  const std::string path = folder.write("out", "old");
  {
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(std::string_view("new"))));
    EXPECT_EQ(content_of(path), "old");
  }
  EXPECT_EQ(content_of(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(AtomicFile, CommitReplacesTheFileAndFollowsALink) {
  const TemporaryFolder folder;
  folder.write("real", "old");
  std::filesystem::create_symlink("real", folder.path("link"));
  AtomicFile file(folder.path("link"));
  file.write(std::as_bytes(std::span(std::string_view("new"))));
  file.commit();
  EXPECT_EQ(content_of(folder.path("real")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
  EXPECT_THAT(folder.names(), ElementsAre("link", "real"));
}

TEST(AtomicFile, CommitFollowsALinkToWhereNothingIsYet) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("second", folder.path("link"));
  std::filesystem::create_symlink("real", folder.path("second"));
  AtomicFile file(folder.path("link"));
  file.write(std::as_bytes(std::span(std::string_view("new"))));
  file.commit();
  EXPECT_EQ(content_of(folder.path("real")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
  EXPECT_THAT(folder.names(), ElementsAre("link", "real", "second"));
}

TEST(AtomicFile, ANameMayBeAsLongAsTheFileSystemTakes) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  AtomicFile(folder.path(name)).commit();
  EXPECT_THAT(folder.names(), ElementsAre(name));
}

// As in containers, where one process after the other has the same number.
TEST(AtomicFile, WhatAKilledProcessLeftIsInNobodysWay) {
  const TemporaryFolder folder;
  const pid_t killed = ::fork();
  if (killed == 0) {
    const AtomicFile file(folder.path("out"));
    ::_exit(0);  // no destructor runs
  }
  ::waitpid(killed, nullptr, 0);
  ASSERT_EQ(folder.names().size(), 1u);
  std::string left = folder.names().front();
  const std::string its_number = "." + std::to_string(killed) + ".";
  ASSERT_NE(left.find(its_number), std::string::npos);
  const std::string mine =
      left.replace(left.find(its_number), its_number.size(), "." + std::to_string(::getpid()) + ".");
  folder.write(mine, "left");
  AtomicFile(folder.path("out")).commit();
  EXPECT_EQ(content_of(folder.path(mine)), "left");
  EXPECT_EQ(content_of(folder.path("out")), "");
}

std::string write_error(const std::string& path) {
  try {
    require_writable(path);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(AtomicFile, UnwritableTargetsAreRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(write_error(folder.path("missing/out")),
            folder.path("missing/out") + ": cannot be written: No such file or directory");
  EXPECT_EQ(write_error(folder.path()), folder.path() + ": is not a regular file");
  EXPECT_EQ(write_error("/dev/full"), "/dev/full: is not a regular file");
  folder.write("file", "x");
  EXPECT_EQ(write_error(folder.path("file/out")), folder.path("file/out") + ": cannot be written: Not a directory");
  EXPECT_EQ(write_error(folder.path("good")), "no error");
  std::filesystem::create_symlink("round", folder.path("round"));
  EXPECT_EQ(write_error(folder.path("round")),
            folder.path("round") + ": cannot be written: Too many levels of symbolic links");
  std::filesystem::remove(folder.path("round"));
  EXPECT_THAT(folder.names(), ElementsAre("file"));
}

// Limits how long this process's files may grow, as a full disk would.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(SafetensorsWriter, AWriteThatFailsInTheMiddleLeavesNothing) {
  const TemporaryFolder folder;
  std::vector<float> values(100'000, 1.0f);
  const std::vector<NamedTensor> tensors = {{"v", Tensor(values.data(), DType::kFloat32, {100'000})}};
  const std::string path = folder.path("v");
  const FileSizeLimit limit(200'000);
  try {
    write_safetensors(path, tensors, {});
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(), path + ": cannot be written: File too large");
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

}  // namespace
}  // namespace sparse_mla::files
