#include "files/description.h"

#include <gmock/gmock.h>

#include <cmath>

#include "temporary_folder.h"

namespace sparse_mla::files {
namespace {

constexpr std::string_view kPrefill = R"({
  "entry_point": "sparse_mla_q8kv8_prefill_fwd",
  "args": {
    "q": {"shape": [2, 64, 576], "dtype": "torch.float8_e4m3fn", "device": "cuda:1", "strides": [36864, 576, 1],
          "address": 4096},
    "kv": {"shape": [9, 1, 576], "dtype": "float8_e4m3fn", "device": "cpu"},
    "indices": {"shape": [2, 1, 128], "dtype": "torch.int32"},
    "sm_scale": 0.04, "d_v": 256, "q_scale": 1.5, "kv_scale": null, "attn_sink": "none",
    "topk_length": {"shape": [2], "dtype": "torch.int32", "values": [7, 900]}
  }
})";

PrefillCall prefill_of(std::string_view text) { return std::get<PrefillCall>(parse_description(text, "call").call); }

std::string error_of(std::string_view text) {
  try {
    parse_description(text, "call.json");
  } catch (const FileError& error) {
    return std::string(error.slug()) + " | " + error.what();
  }
  return "no error";
}

// A description whose q is `q` and which has `more` arguments.
std::string with_q(std::string_view q, std::string_view more = "") {
  return R"({"entry_point":"sparse_mla_q8kv8_prefill_fwd","args":{"sm_scale":1,)"
         R"("kv":{"shape":[1],"dtype":"uint8"},"indices":{"shape":[1],"dtype":"int32"},"q":)" +
         std::string(q) + std::string(more) + "}}";
}

TEST(Description, EveryFieldArrives) {
  const PrefillCall call = prefill_of(kPrefill);
  EXPECT_EQ(shape_string(call.q), "(2, 64, 576)");
  EXPECT_EQ(call.q.dtype, DType::kFloat8E4M3FN);
  EXPECT_EQ(call.q.device, Device::cuda(1));
  EXPECT_EQ(call.q.strides[0], 36864);
  EXPECT_EQ(call.q.data, reinterpret_cast<void*>(4096));
  EXPECT_EQ(call.kv.device, Device::cpu());
  EXPECT_EQ(call.indices.device, Device::cuda(0));
  EXPECT_TRUE(call.indices.is_contiguous());
  EXPECT_EQ(call.sm_scale, 0.04);
  EXPECT_EQ(call.d_v, 256);
  ASSERT_NE(call.q_scale.not_a_tensor(), nullptr);
  EXPECT_EQ(call.q_scale.not_a_tensor()->what, "float");
  EXPECT_TRUE(call.kv_scale.is_none());
  EXPECT_EQ(call.attn_sink.not_a_tensor()->what, "str");
  EXPECT_TRUE(call.out.is_none());
  EXPECT_EQ(shape_string(*call.topk_length.tensor()), "(2,)");
}

TEST(Description, TensorsWithoutAnAddressOverlapNothing) {
  const PrefillCall call = prefill_of(kPrefill);
  const std::vector<const Tensor*> tensors = {&call.q, &call.kv, &call.indices, call.topk_length.tensor()};
  for (const Tensor* a : tensors) {
    for (const Tensor* b : tensors) {
      if (a == b) continue;
      const auto a_begin = reinterpret_cast<std::uintptr_t>(a->data);
      const auto b_begin = reinterpret_cast<std::uintptr_t>(b->data);
      EXPECT_TRUE(a_begin + a->extent_bytes() <= b_begin || b_begin + b->extent_bytes() <= a_begin);
    }
  }
}

TEST(Description, ValuesAnswerTheRulesAboutValues) {
  const DescribedCall described = parse_description(kPrefill, "call");
  const Tensor& lengths = *std::get<PrefillCall>(described.call).topk_length.tensor();
  const auto offender = described.values.first_outside("topk_length", lengths, 0, 128);
  ASSERT_TRUE(offender.has_value());
  EXPECT_EQ(offender->position, 1);
  EXPECT_EQ(offender->value, 900);
  EXPECT_FALSE(described.values.first_outside("topk_length", lengths, 0, 900).has_value());
  EXPECT_FALSE(described.values.first_outside("indices", lengths, 0, 0).has_value());
}

TEST(Description, NestedListsAndNonFiniteFloatsAreValues) {
  const DescribedCall described = parse_description(
      R"({"entry_point":"sparse_attn_v4_paged_decode","args":{"softmax_scale":1,
          "q":{"shape":[2,1,64],"dtype":"bfloat16"},"unified_kv":{"shape":[2,64],"dtype":"float8_e4m3fn"},
          "kv_indices":{"shape":[3],"dtype":"int32"},"kv_indptr":{"shape":[3],"dtype":"int32","values":[0,5,3]},
          "kv_scales":{"shape":[2,2],"dtype":"float32","values":[[1,0.5],["-inf",1]]}}})",
      "call");
  const auto& call = std::get<DecodeCall>(described.call);
  const auto scale = described.values.first_not_finite("kv_scales", *call.pool.kv_scales.tensor());
  ASSERT_TRUE(scale.has_value());
  EXPECT_EQ(scale->position, 2);
  EXPECT_EQ(scale->value, -INFINITY);
  const auto step_back = described.values.first_decrease("kv_indptr", call.pool.kv_indptr);
  ASSERT_TRUE(step_back.has_value());
  EXPECT_EQ(step_back->position, 2);
  EXPECT_EQ(step_back->previous, 5);
  EXPECT_FALSE(call.second_pool.has_value());
}

TEST(Description, FaultsOfTheWhole) {
  EXPECT_EQ(error_of("{\n  \"entry_point\": x"), "json-syntax | call.json: is not valid JSON at line 2, column 18");
  EXPECT_EQ(error_of("{\"a\":" + std::string(50, '[')), "json-too-deep | call.json: nests JSON deeper than 8 levels");
  EXPECT_EQ(error_of(R"({"args":{},"args":{}})"),
            "json-duplicate-key | call.json: has the JSON key \"args\" twice in one object");
  for (const std::string_view text : {"{}", "[]", "1", R"({"entry_point":1,"args":{}})", R"({"entry_point":"x"})",
                                      R"({"entry_point":"x","args":[]})"}) {
    EXPECT_EQ(error_of(text),
              "description-shape | call.json: must be an object with entry_point (a string) and args (an object)");
  }
  EXPECT_EQ(error_of(R"({"entry_point":"x","args":{}})"),
            "call-unknown-entry-point | call.json: unknown entry_point \"x\"; known: sparse_mla_q8kv8_prefill_fwd, "
            "sparse_attn_v4_paged_decode");
}

TEST(Description, FaultsOfArguments) {
  const std::string good = R"({"shape":[1],"dtype":"uint8"})";
  EXPECT_EQ(error_of(with_q(good)), "no error");
  EXPECT_EQ(error_of(with_q("3")), "description-tensor | call.json: q must be a tensor's description, got 3");
  EXPECT_EQ(error_of(with_q("null")), "description-tensor | call.json: q must be a tensor's description, got nothing");
  EXPECT_EQ(
      error_of(with_q(good, R"(,"topk_lengths":1)")),
      "description-unknown-argument | call.json: \"topk_lengths\" is no argument of sparse_mla_q8kv8_prefill_fwd; "
      "known: q, kv, indices, q_scale, kv_scale, attn_sink, topk_length, out, max_logits, lse, sm_scale, d_v");
  EXPECT_EQ(error_of(with_q(good, R"(,"d_v":512.5)")),
            "description-scalar | call.json: d_v must be a 32-bit integer, got 512.5");
  EXPECT_EQ(error_of(with_q(good, R"(,"d_v":99999999999)")),
            "description-scalar | call.json: d_v must be a 32-bit integer, got 99999999999");
  EXPECT_EQ(error_of(R"({"entry_point":"sparse_attn_v4_paged_decode","args":{
                "q":{"shape":[1],"dtype":"uint8"},"unified_kv":{"shape":[1],"dtype":"uint8"},
                "kv_indices":{"shape":[1],"dtype":"uint8"},"kv_indptr":{"shape":[1],"dtype":"uint8"}}})"),
            "description-scalar | call.json: softmax_scale must be a number, got nothing");
}

TEST(Description, FaultsOfTensorFields) {
  const auto field_error = [](std::string_view q) { return error_of(with_q(q)); };
  const std::string prefix = "description-field | call.json: q: ";
  EXPECT_EQ(field_error("{}"), prefix + "shape must be a list of sizes, got nothing");
  EXPECT_EQ(field_error(R"({"shape":[-1],"dtype":"uint8"})"), prefix + "shape must be a list of sizes, got -1");
  EXPECT_EQ(field_error(R"({"shape":[1,1,1,1,1,1,1,1,1],"dtype":"uint8"})"),
            prefix + "shape must be at most 8 numbers, got 9");
  EXPECT_EQ(field_error(R"({"shape":[72057594037927937],"dtype":"uint8"})"),
            prefix + "shape must be at most 2^56 in each dimension, got 72057594037927937");
  EXPECT_EQ(field_error(R"({"shape":[0,4294967296,4294967296],"dtype":"uint8"})"),
            prefix + "shape must be at most 2^56 bytes, got (0, 4294967296, 4294967296)");
  EXPECT_EQ(field_error(R"({"shape":[2],"strides":[72057594037927936],"dtype":"uint8"})"),
            prefix + "shape must be at most 2^56 bytes, got (2,)");
  EXPECT_EQ(field_error(R"({"shape":[1]})"),
            prefix + "dtype must be a dtype such as \"torch.float8_e4m3fn\", got nothing");
  EXPECT_EQ(field_error(R"({"shape":[1],"dtype":"fp8"})"),
            prefix + "dtype must be a dtype such as \"torch.float8_e4m3fn\", got \"fp8\"");
  EXPECT_EQ(field_error(R"({"shape":[1],"dtype":"uint8","device":"gpu"})"),
            prefix + "device must be \"cpu\", \"meta\" or \"cuda:N\", got \"gpu\"");
  EXPECT_EQ(field_error(R"({"shape":[1],"dtype":"uint8","strides":[1,1]})"),
            prefix + "strides must be as long as shape, got 2 numbers");
  EXPECT_EQ(field_error(R"({"shape":[1],"dtype":"uint8","address":-4})"),
            prefix + "address must be a byte address of at most 2^62, got -4");
  EXPECT_EQ(field_error(R"({"shape":[1],"dtype":"uint8","stride":[1]})"),
            prefix + "its fields must be among shape, dtype, device, strides, address, values, got \"stride\"");
}

TEST(Description, FaultsOfValues) {
  const std::string prefix = "description-values | call.json: q: values must be ";
  EXPECT_EQ(error_of(with_q(R"({"shape":[2],"dtype":"int32","values":[1]})")),
            prefix + "2 numbers, as shape (2,) has, got 1");
  EXPECT_EQ(error_of(with_q(R"({"shape":[2],"dtype":"int32","values":7})")), prefix + "a list, got 7");
  EXPECT_EQ(error_of(with_q(R"({"shape":[1],"dtype":"int32","values":[2147483648]})")),
            prefix + "int32 numbers, got 2147483648");
  EXPECT_EQ(error_of(with_q(R"({"shape":[1],"dtype":"int32","values":[0.5]})")), prefix + "int32 numbers, got 0.5");
  EXPECT_EQ(error_of(with_q(R"({"shape":[1],"dtype":"float32","values":["x"]})")), prefix + "numbers, got \"x\"");
  EXPECT_EQ(error_of(with_q(R"({"shape":[1],"dtype":"int32","values":[-2147483648]})")), "no error");
}

TEST(Description, IsToldFromASafetensorsFile) {
  const auto looks = [](const std::string& text) { return looks_like_description(std::as_bytes(std::span(text))); };
  EXPECT_TRUE(looks("{\"entry_point\":1}"));
  EXPECT_TRUE(looks(" \n{}"));
  EXPECT_TRUE(looks("\xEF\xBB\xBF{\"entry_point\":1}"));  // as editors on Windows save it
  EXPECT_TRUE(looks("            {}"));
  EXPECT_FALSE(looks(sparse_mla::testing::safetensors_bytes("{" + std::string(0x7B - 1, ' '))));
  EXPECT_FALSE(looks(""));
  EXPECT_FALSE(looks("[1]"));
}

}  // namespace
}  // namespace sparse_mla::files
