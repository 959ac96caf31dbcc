#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sparse_mla/kv_cache.h"

namespace sparse_mla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string_view> possible(const Tensor& tensor) {
  std::vector<std::string_view> names;
  for (const KvVerdict& verdict : inspect(tensor)) {
    if (verdict.possible()) names.push_back(kv_format_name(verdict.format));
  }
  return names;
}

std::vector<std::string> objections(const Tensor& tensor, KvFormat format) {
  return inspect(tensor)[static_cast<std::size_t>(format)].objections;
}

TEST(Inspect, NamesTheFormatsThatATensorCouldBe) {
  const DType fp8 = DType::kFloat8E4M3FN;
  EXPECT_THAT(possible(Tensor(nullptr, fp8, {100, 576})), ElementsAre("q8kv8_576", "unified_fp8_1x64"));
  EXPECT_THAT(possible(Tensor(nullptr, fp8, {100, 1, 512})), ElementsAre("q8kv8_512", "unified_fp8_1x64"));
  EXPECT_THAT(possible(Tensor(nullptr, DType::kBFloat16, {100, 512})), ElementsAre("unified_bf16"));
  EXPECT_THAT(possible(Tensor(nullptr, DType::kFloat16, {10, 64, 576})), ElementsAre("unified_fp16"));
  EXPECT_THAT(possible(Tensor(nullptr, DType::kUInt8, {100, 656})), ElementsAre("v32_656"));
  EXPECT_THAT(possible(Tensor(nullptr, DType::kUInt8, {10, 64, 656})), ElementsAre("v32_656"));
  EXPECT_THAT(possible(Tensor(nullptr, DType::kUInt8, {10, 37440})), ElementsAre("v4_584"));
  EXPECT_THAT(possible(Tensor(nullptr, DType::kFloat32, {100, 512})), ElementsAre());
}

TEST(Inspect, SaysWhatSpeaksAgainstAFormat) {
  EXPECT_THAT(objections(Tensor(nullptr, DType::kUInt8, {10, 64 * 584}), KvFormat::kV4_584),
              ElementsAre("no page takes 37376 bytes: 64 rows take 37440, 65 take 38016"));
  EXPECT_THAT(objections(Tensor(nullptr, DType::kUInt8, {10, 640}), KvFormat::kV32_656),
              ElementsAre("a row is 640 bytes, not 656"));
  EXPECT_THAT(objections(Tensor(nullptr, DType::kBFloat16, {10, 576}), KvFormat::kQ8Kv8_576),
              ElementsAre("the dtype is torch.bfloat16, rows are torch.float8_e4m3fn"));
  const std::vector<std::int64_t> shape{10, 576}, strides{584, 1};
  EXPECT_THAT(objections(Tensor(nullptr, DType::kFloat8E4M3FN, shape, strides, Device::cpu()), KvFormat::kQ8Kv8_576),
              ElementsAre(HasSubstr("steps by 584 bytes, not a multiple of 16")));
}

TEST(Inspect, RecognisesTheOtherFloat8s) {
  EXPECT_THAT(objections(Tensor(nullptr, DType::kFloat8E4M3FNUZ, {10, 576}), KvFormat::kQ8Kv8_576),
              ElementsAre(HasSubstr("a factor-of-two scale")));
  EXPECT_THAT(objections(Tensor(nullptr, DType::kFloat8E5M2, {10, 576}), KvFormat::kQ8Kv8_576),
              ElementsAre(HasSubstr("5 exponent and 2 mantissa bits")));
}

}  // namespace
}  // namespace sparse_mla
