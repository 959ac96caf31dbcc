// Everything that can be wrong with a file: one table of slugs and message templates, and the exception that carries
// an entry of it. Readers and writers of this folder throw FileError and nothing else about a file's content.
#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sparse_mla::files {

enum class Fault : unsigned char {
  kCannotOpen,
  kNotAFile,
  kCannotMap,
  kTooShort,
  kHeaderTooLarge,
  kHeaderPastEnd,
  kHeaderStart,
  kJsonSyntax,
  kJsonTooDeep,
  kJsonDuplicateKey,
  kMetadata,
  kEntry,
  kEntryField,
  kUnknownDType,
  kRank,
  kTooLarge,
  kOffsetsReversed,
  kPastEnd,
  kSizeMismatch,
  kOverlap,
  kHole,
  kLacksMetadata,
  kUnknownEntryPoint,
  kMetadataNumber,
  kLacksTensor,
  kUnknownTensor,
  kNotAResult,
  kDescriptionTooLarge,
  kDescriptionShape,
  kDescriptionScalar,
  kDescriptionTensor,
  kDescriptionField,
  kDescriptionValues,
  kUnknownArgument,
  kCannotWrite,
  kUnstorable,
};

// One row of the table; `{name}` in the message is filled in when the fault is met.
struct FaultInfo {
  Fault fault;
  std::string_view slug;
  std::string_view message;
};

inline constexpr std::array kFaults = {
    FaultInfo{Fault::kCannotOpen, "file-cannot-open", "cannot be opened: {reason}"},
    FaultInfo{Fault::kNotAFile, "file-not-regular", "is not a regular file"},
    FaultInfo{Fault::kCannotMap, "file-cannot-map", "cannot be read: {reason}"},
    FaultInfo{Fault::kTooShort, "safetensors-too-short",
              "is {size} bytes long; a safetensors file starts with the 8-byte length of its header"},
    FaultInfo{Fault::kHeaderTooLarge, "safetensors-header-too-large",
              "claims a header of {header} bytes; at most {limit} are read"},
    FaultInfo{Fault::kHeaderPastEnd, "safetensors-header-past-end",
              "claims a header of {header} bytes, but {left} bytes follow"},
    FaultInfo{Fault::kHeaderStart, "safetensors-header-start", "header must start with \"{\", got {got}"},
    FaultInfo{Fault::kJsonSyntax, "json-syntax", "is not valid JSON at {where}"},
    FaultInfo{Fault::kJsonTooDeep, "json-too-deep", "nests JSON deeper than {limit} levels"},
    FaultInfo{Fault::kJsonDuplicateKey, "json-duplicate-key", "has the JSON key {key} twice in one object"},
    FaultInfo{Fault::kMetadata, "safetensors-metadata", "__metadata__ must map strings to strings, got {got}"},
    FaultInfo{Fault::kEntry, "safetensors-entry",
              "tensor {name} must be an object with dtype, shape and data_offsets, got {got}"},
    FaultInfo{Fault::kEntryField, "safetensors-entry-field", "tensor {name}: {field} must be {expected}, got {got}"},
    FaultInfo{Fault::kUnknownDType, "safetensors-unknown-dtype",
              "tensor {name}: unknown dtype {dtype}; known: {known}"},
    FaultInfo{Fault::kRank, "safetensors-rank", "tensor {name} has {rank} dimensions; at most {limit} are read"},
    FaultInfo{Fault::kTooLarge, "safetensors-too-large", "tensor {name}: shape {shape} does not fit 63 bits of bytes"},
    FaultInfo{Fault::kOffsetsReversed, "safetensors-offsets-reversed",
              "tensor {name}: data_offsets end at {end}, before they begin at {begin}"},
    FaultInfo{Fault::kPastEnd, "safetensors-past-end",
              "tensor {name} ends at byte {end} of the data, but the file holds {size}"},
    FaultInfo{Fault::kSizeMismatch, "safetensors-size-mismatch",
              "tensor {name}: {dtype} of shape {shape} is {expected} bytes, its data_offsets span {got}"},
    FaultInfo{Fault::kOverlap, "safetensors-overlap", "tensors {name} and {other} overlap"},
    FaultInfo{Fault::kHole, "safetensors-hole", "bytes {begin} to {end} of the data belong to no tensor"},
    FaultInfo{Fault::kLacksMetadata, "call-lacks-metadata", "has no {key} in its __metadata__; found {found}"},
    FaultInfo{Fault::kUnknownEntryPoint, "call-unknown-entry-point", "unknown entry_point {got}; known: {known}"},
    FaultInfo{Fault::kMetadataNumber, "call-metadata-number",
              "{key} in its __metadata__ must be {expected}, got {got}"},
    FaultInfo{Fault::kLacksTensor, "call-lacks-tensor", "lacks the tensor {name} of {entry_point}; found {found}"},
    FaultInfo{Fault::kUnknownTensor, "call-unknown-tensor",
              "tensor {name} is no argument of {entry_point}; known: {known}"},
    FaultInfo{Fault::kNotAResult, "result-lacks-out", "is not a result file: it lacks the tensor out; found {found}"},
    FaultInfo{Fault::kDescriptionTooLarge, "description-too-large", "is {size} bytes long; at most {limit} are read"},
    FaultInfo{Fault::kDescriptionShape, "description-shape",
              "must be an object with entry_point (a string) and args (an object)"},
    FaultInfo{Fault::kDescriptionScalar, "description-scalar", "{name} must be {expected}, got {got}"},
    FaultInfo{Fault::kDescriptionTensor, "description-tensor", "{name} must be a tensor's description, got {got}"},
    FaultInfo{Fault::kDescriptionField, "description-field", "{name}: {field} must be {expected}, got {got}"},
    FaultInfo{Fault::kDescriptionValues, "description-values", "{name}: values must be {expected}, got {got}"},
    FaultInfo{Fault::kUnknownArgument, "description-unknown-argument",
              "{name} is no argument of {entry_point}; known: {known}"},
    FaultInfo{Fault::kCannotWrite, "file-cannot-write", "cannot be written: {reason}"},
    FaultInfo{Fault::kUnstorable, "file-unstorable", "tensor {name} cannot be stored: {reason}"},
};

// The row of a fault.
constexpr const FaultInfo& info(Fault fault) noexcept { return kFaults[static_cast<std::size_t>(fault)]; }

static_assert(
    [] {
      for (std::size_t i = 0; i < kFaults.size(); ++i) {
        if (static_cast<std::size_t>(kFaults[i].fault) != i) return false;
      }
      return kFaults.size() == static_cast<std::size_t>(Fault::kUnstorable) + 1;
    }(),
    "kFaults has one row for each Fault, in the enum's order");

// One `{name}` of a message and its text.
struct FaultValue {
  std::string_view name;
  std::string text;
};
using FaultValues = std::vector<FaultValue>;

// A file that cannot be read, written or understood. what() is "PATH: MESSAGE", always one line.
class FileError final : public std::runtime_error {
 public:
  FileError(std::string_view path, Fault fault, const FaultValues& values = {});
  const std::string& path() const noexcept { return path_; }
  Fault fault() const noexcept { return fault_; }
  std::string_view slug() const noexcept { return info(fault_).slug; }

 private:
  std::string path_;
  Fault fault_;
};

// Text from a file, fit for an error message: in double quotes, control characters escaped, cut after 80 characters.
std::string in_quotes(std::string_view text);
// "q, kv, indices", or "none".
template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const auto& name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text.empty() ? "none" : text;
}

}  // namespace sparse_mla::files
