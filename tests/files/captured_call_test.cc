#include "files/captured_call.h"

#include <gmock/gmock.h>

#include <array>

#include "temporary_folder.h"

namespace sparse_mla::files {
namespace {

using sparse_mla::testing::safetensors_bytes;
using sparse_mla::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr std::string_view kPrefillMetadata =
    R"("__metadata__":{"entry_point":"sparse_mla_q8kv8_prefill_fwd","sm_scale":"0.04"})";
constexpr std::string_view kDecodeMetadata =
    R"("__metadata__":{"entry_point":"sparse_attn_v4_paged_decode","softmax_scale":"0.04"})";

// An empty tensor: what these tests look at is names.
std::string empty(std::string_view name, std::string_view dtype) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) +
         "\",\"shape\":[0,1,1],\"data_offsets\":[0,0]}";
}

std::string error_of(const std::string& header) {
  const std::string bytes = safetensors_bytes(header);
  try {
    captured_call(SafetensorsFile::from_bytes(std::as_bytes(std::span(bytes)), "call"));
  } catch (const FileError& error) {
    return std::string(error.slug()) + " | " + error.what();
  }
  return "no error";
}

std::string prefill_header(std::string_view more, std::string_view metadata = kPrefillMetadata) {
  std::string header = "{" + std::string(metadata) + "," + empty("q", "F8_E4M3") + "," + empty("kv", "F8_E4M3") + "," +
                       empty("indices", "I32");
  if (!more.empty()) header += "," + std::string(more);
  return header + "}";
}

void expect_same(const Tensor& got, const Tensor& expected) {
  EXPECT_EQ(got.dtype, expected.dtype);
  EXPECT_EQ(shape_string(got), shape_string(expected));
  EXPECT_EQ(got.device, Device::cpu());
  const std::string_view got_bytes(got.as<const char>(), got.extent_bytes());
  EXPECT_EQ(got_bytes, std::string_view(expected.as<const char>(), expected.extent_bytes()));
}

TEST(CapturedCall, PrefillComesBackAsItWasWritten) {
  const TemporaryFolder folder;
  std::array<std::uint8_t, 64> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i + 1);
  std::array<float, 4> floats = {0.5f, -1.0f, 2.0f, 1e-30f};
  PrefillCall call;
  call.q = Tensor(bytes.data(), DType::kFloat8E4M3FN, {2, 4, 8});
  call.kv = Tensor(bytes.data() + 1, DType::kFloat8E4M3FN, {3, 1, 8});
  call.indices = Tensor(bytes.data(), DType::kInt32, {2, 1, 3});
  call.sm_scale = 0.1;
  call.d_v = 6;
  call.q_scale = Tensor(floats.data(), DType::kFloat32, {1});
  call.attn_sink = Tensor(floats.data(), DType::kFloat32, {4});
  write_captured_call(folder.path("call"), call);

  const CapturedCall captured = read_captured_call(folder.path("call"));
  const auto& got = std::get<PrefillCall>(captured.call);
  expect_same(got.q, call.q);
  expect_same(got.kv, call.kv);
  expect_same(got.indices, call.indices);
  expect_same(*got.q_scale.tensor(), *call.q_scale.tensor());
  expect_same(*got.attn_sink.tensor(), *call.attn_sink.tensor());
  EXPECT_TRUE(got.kv_scale.is_none());
  EXPECT_TRUE(got.topk_length.is_none());
  EXPECT_TRUE(got.out.is_none());
  EXPECT_EQ(got.sm_scale, 0.1);
  EXPECT_EQ(got.d_v, 6);
}

TEST(CapturedCall, DecodeWithTwoPoolsComesBackAsItWasWritten) {
  const TemporaryFolder folder;
  std::array<std::uint16_t, 512> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i * 3);
  DecodeCall call;
  call.q = Tensor(values.data(), DType::kBFloat16, {2, 1, 64});
  call.pool.unified_kv = Tensor(values.data(), DType::kFloat8E4M3FN, {5, 64});
  call.pool.kv_indices = Tensor(values.data(), DType::kInt32, {4});
  call.pool.kv_indptr = Tensor(values.data(), DType::kInt32, {3});
  call.pool.kv_scales = Tensor(values.data(), DType::kFloat32, {5, 1});
  call.softmax_scale = 1.0 / 3;
  call.second_pool = PagedPool{Tensor(values.data(), DType::kBFloat16, {7, 64}), Tensor(nullptr, DType::kInt32, {0}),
                               Tensor(values.data(), DType::kInt32, {3}), std::nullopt};
  write_captured_call(folder.path("call"), call);

  const CapturedCall captured = read_captured_call(folder.path("call"));
  const auto& got = std::get<DecodeCall>(captured.call);
  expect_same(got.q, call.q);
  expect_same(got.pool.unified_kv, call.pool.unified_kv);
  expect_same(*got.pool.kv_scales.tensor(), *call.pool.kv_scales.tensor());
  ASSERT_TRUE(got.second_pool.has_value());
  expect_same(got.second_pool->unified_kv, call.second_pool->unified_kv);
  EXPECT_TRUE(got.second_pool->kv_scales.is_none());
  EXPECT_EQ(got.softmax_scale, 1.0 / 3);
  EXPECT_TRUE(got.attn_sink.is_none());
}

TEST(CapturedCall, ValueWidthDefaultsToTheSignature) {
  const std::string bytes = safetensors_bytes(prefill_header(""));
  const CapturedCall captured = captured_call(SafetensorsFile::from_bytes(std::as_bytes(std::span(bytes)), "call"));
  EXPECT_EQ(std::get<PrefillCall>(captured.call).d_v, 512);
}

TEST(CapturedCall, AMissingTensorIsNamedBesideWhatWasFound) {
  EXPECT_EQ(
      error_of("{" + std::string(kPrefillMetadata) + "," + empty("q", "F8_E4M3") + "," + empty("indices", "I32") + "}"),
      "call-lacks-tensor | call: lacks the tensor kv of sparse_mla_q8kv8_prefill_fwd; found \"indices\", \"q\"");
  EXPECT_EQ(error_of("{" + std::string(kDecodeMetadata) + "}"),
            "call-lacks-tensor | call: lacks the tensor q of sparse_attn_v4_paged_decode; found none");
  EXPECT_EQ(error_of("{" + std::string(kDecodeMetadata) + "," + empty("q", "BF16") + "," + empty("unified_kv", "BF16") +
                     "," + empty("kv_indices", "I32") + "," + empty("kv_indptr", "I32") + "," +
                     empty("second_pool.kv_indptr", "I32") + "}"),
            "call-lacks-tensor | call: lacks the tensor second_pool.unified_kv of sparse_attn_v4_paged_decode; found "
            "\"kv_indices\", \"kv_indptr\", \"q\", \"second_pool.kv_indptr\", \"unified_kv\"");
}

TEST(CapturedCall, AMisspeltTensorIsNotTakenForNone) {
  EXPECT_EQ(
      error_of(prefill_header(empty("topk_lengths", "I32"))),
      "call-unknown-tensor | call: tensor \"topk_lengths\" is no argument of sparse_mla_q8kv8_prefill_fwd; known: "
      "q, kv, indices, q_scale, kv_scale, attn_sink, topk_length, out, max_logits, lse");
}

TEST(CapturedCall, MetadataThatIsMissingOrNoNumberIsNamed) {
  EXPECT_EQ(error_of("{}"), "call-lacks-metadata | call: has no entry_point in its __metadata__; found none");
  EXPECT_EQ(error_of(prefill_header("", R"("__metadata__":{"format":"pt","sm_scale":"1"})")),
            "call-lacks-metadata | call: has no entry_point in its __metadata__; found \"format\", \"sm_scale\"");
  EXPECT_EQ(error_of(prefill_header("", R"("__metadata__":{"entry_point":"flash_mla"})")),
            "call-unknown-entry-point | call: unknown entry_point \"flash_mla\"; known: sparse_mla_q8kv8_prefill_fwd, "
            "sparse_attn_v4_paged_decode");
  EXPECT_EQ(error_of(prefill_header("", R"("__metadata__":{"entry_point":"sparse_mla_q8kv8_prefill_fwd"})")),
            "call-lacks-metadata | call: has no sm_scale in its __metadata__; found \"entry_point\"");
  for (const std::string_view bad : {"", "x", "0.5x", " 0.5", "0,5"}) {
    EXPECT_EQ(
        error_of(prefill_header("", R"("__metadata__":{"entry_point":"sparse_mla_q8kv8_prefill_fwd","sm_scale":")" +
                                        std::string(bad) + "\"}")),
        "call-metadata-number | call: sm_scale in its __metadata__ must be a number, got \"" + std::string(bad) + "\"");
  }
  EXPECT_EQ(error_of(prefill_header(
                "", R"("__metadata__":{"entry_point":"sparse_mla_q8kv8_prefill_fwd","sm_scale":"1","d_v":"5.5"})")),
            "call-metadata-number | call: d_v in its __metadata__ must be an integer, got \"5.5\"");
}

TEST(Result, HoldsWhatTheCallReturned) {
  const TemporaryFolder folder;
  std::array<float, 8> values = {1, 2, 3, 4, 5, 6, 7, 8};
  PrefillCall prefill;
  prefill.out = Tensor(values.data(), DType::kBFloat16, {1, 2, 4});
  prefill.max_logits = Tensor(values.data(), DType::kFloat32, {1, 2});
  prefill.lse = Tensor(values.data() + 2, DType::kFloat32, {1, 2});
  write_result(folder.path("prefill"), prefill);
  const SafetensorsFile prefill_result = read_result(folder.path("prefill"));
  EXPECT_THAT(prefill_result.names(), UnorderedElementsAre("out", "max_logits", "lse"));
  expect_same(*prefill_result.find("lse"), *prefill.lse.tensor());

  DecodeCall decode;
  decode.out = Tensor(values.data(), DType::kFloat16, {1, 2, 4});
  write_result(folder.path("decode"), decode);
  EXPECT_THAT(read_result(folder.path("decode")).names(), ElementsAre("out"));
}

TEST(Result, AFileWithoutOutIsNoResult) {
  const TemporaryFolder folder;
  const std::string path = folder.write("r", safetensors_bytes("{" + empty("lse", "F32") + "}"));
  try {
    read_result(path);
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(), path + ": is not a result file: it lacks the tensor out; found \"lse\"");
  }
}

}  // namespace
}  // namespace sparse_mla::files
