// A description of a call without its data, which people paste into a bug report:
//   {"entry_point": "sparse_mla_q8kv8_prefill_fwd",
//    "args": {"q": {"shape": [2, 64, 576], "dtype": "torch.float8_e4m3fn", "device": "cuda:0",
//                   "strides": [36864, 576, 1], "address": 4096},
//             "sm_scale": 0.04, "d_v": 512,
//             "topk_length": {"shape": [2], "dtype": "torch.int32", "values": [7, 900]}}}
// Strides default to contiguous, device to cuda:0, address (bytes) to a place of its own. Values are optional,
// row-major, flat or nested; "nan", "inf" and "-inf" are floats too. An argument that is absent or null is None.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "files/captured_call.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::files {

// The values that a description gives, for the rules about values; an argument without values has no offender.
class DescribedValues final : public ValueSource {
 public:
  // The argument's elements in row-major order.
  void add(std::string argument, std::vector<std::int32_t> values) {
    integers_[std::move(argument)] = std::move(values);
  }
  void add(std::string argument, std::vector<float> values) { floats_[std::move(argument)] = std::move(values); }

  std::optional<Offender> first_outside(std::string_view argument, const Tensor& tensor, std::int64_t low,
                                        std::int64_t high) const override;
  std::optional<Offender> first_decrease(std::string_view argument, const Tensor& tensor) const override;
  std::optional<Offender> first_not_finite(std::string_view argument, const Tensor& tensor) const override;

 private:
  std::map<std::string, std::vector<std::int32_t>, std::less<>> integers_;
  std::map<std::string, std::vector<float>, std::less<>> floats_;
};

// Tensor::data holds the described address: it is for comparing, never for reading.
struct DescribedCall {
  AnyCall call;
  DescribedValues values;
};

inline constexpr std::size_t kMaxDescriptionBytes = 64'000'000;

// Throws FileError; `path` is for messages.
DescribedCall parse_description(std::string_view text, const std::string& path);
DescribedCall read_description(const std::string& path);

// Whether a file's first bytes are those of a JSON text rather than of a safetensors header length.
bool looks_like_description(std::span<const std::byte> bytes) noexcept;

}  // namespace sparse_mla::files
