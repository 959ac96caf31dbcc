// The program as people meet it: exit codes, streams, files.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "files/captured_call.h"
#include "files/safetensors.h"
#include "program.h"

namespace sparse_mla {
namespace {

using nlohmann::json;
using testing::content_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Outcome;
using testing::run_program;
using testing::safetensors_bytes;
using ::testing::StartsWith;
using testing::TemporaryFolder;

// Failure is exit code 1, an empty standard output and one line on standard error.
void expect_failure(const Outcome& outcome, const std::string& line) {
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "sparse-mla: " + line + "\n");
}

std::vector<std::string> small_prefill(const std::string& path) {
  return {"make-case", "prefill", "-o",     path,  "--s-q",  "3",         "--s-kv", "200",
          "--h-q",     "64",      "--topk", "128", "--sink", "--lengths", "--seed", "7"};
}

std::vector<std::string> small_decode(const std::string& path) {
  return {"make-case", "decode", "-o", path, "--n", "5", "--h", "16", "--pages", "300", "--tokens", "70", "--ragged"};
}

constexpr std::string_view kDescription =
    R"({"entry_point":"sparse_mla_q8kv8_prefill_fwd","args":{
        "q":{"shape":[2,64,576],"dtype":"torch.float8_e4m3fn","device":"cuda:0","strides":[36864,576,1],"address":4096},
        "kv":{"shape":[900,1,576],"dtype":"torch.float8_e4m3fn","device":"cpu"},
        "indices":{"shape":[2,1,128],"dtype":"torch.int32"},
        "sm_scale":0.04,"d_v":512,
        "q_scale":1.0,"kv_scale":{"shape":[1],"dtype":"torch.float32"},
        "topk_length":{"shape":[2],"dtype":"torch.int32","values":[7,900]}}})";

TEST(Help, IsPrintedAndSucceeds) {
  const Outcome help = run_program({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* command : {"demo", "prefill", "decode", "make-case", "check", "compare", "bench", "info"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    EXPECT_EQ(run_program({command, "--help"}).code, 0);
  }
  EXPECT_THAT(run_program({"--version"}).out, StartsWith("sparse-mla 0."));
}

TEST(Usage, ErrorsAreOneLine) {
  const std::string more = " (sparse-mla --help tells more)";
  expect_failure(run_program({}), "A subcommand is required" + more);
  expect_failure(run_program({"frobnicate"}), "\"frobnicate\" is no command or option (sparse-mla --help lists them)");
  expect_failure(run_program({"--frobnicate"}),
                 "\"--frobnicate\" is no command or option (sparse-mla --help lists them)");
  expect_failure(run_program({"check"}), "FILE is required" + more);
  expect_failure(run_program({"check", "a", "--frobnicate"}),
                 "The following argument was not expected: --frobnicate" + more);
  expect_failure(run_program({"prefill", "a"}), "--output is required" + more);
  expect_failure(run_program({"prefill", "a", "-o", "b", "--backend", "tpu"}),
                 "--backend: tpu not in {auto,cpu,cuda}" + more);
  expect_failure(run_program({"make-case"}), "A subcommand is required" + more);
  expect_failure(run_program({"make-case", "prefill", "-o", "x", "--s-q", "many"}),
                 "Could not convert: --s-q = many" + more);
  expect_failure(run_program({"make-case", "prefill", "-o", "x", "--seed", "-1"}),
                 "--seed: must be a number from 0 to 2^64-1, got -1" + more);
  expect_failure(run_program({"demo", "--seed", "18446744073709551616"}),
                 "--seed: must be a number from 0 to 2^64-1, got 18446744073709551616" + more);
}

TEST(Files, MissingAndBrokenInputsAreNamed) {
  const TemporaryFolder folder;
  const std::string missing = folder.path("missing.safetensors");
  const std::string reason = missing + ": cannot be opened: No such file or directory";
  expect_failure(run_program({"check", missing}), reason);
  expect_failure(run_program({"check", missing, "--json"}), reason);
  expect_failure(run_program({"prefill", missing, "-o", folder.path("out")}), reason);
  expect_failure(run_program({"decode", missing, "-o", folder.path("out")}), reason);
  expect_failure(run_program({"compare", missing, missing}), reason);
  expect_failure(run_program({"check", folder.path()}), folder.path() + ": is not a regular file");
  const std::string broken = folder.write("broken", safetensors_bytes("{\"q\":1}"));
  expect_failure(run_program({"check", broken}),
                 broken + ": tensor \"q\" must be an object with dtype, shape and data_offsets, got 1");
  const std::string half = folder.write("half.json", "{\"entry_point\":");
  expect_failure(run_program({"check", half}), half + ": is not valid JSON at line 1, column 16");
  EXPECT_THAT(folder.names(), ElementsAre("broken", "half.json"));
}

TEST(Prefill, FromMadeCaseToComparedResult) {
  const TemporaryFolder folder;
  const std::string call = folder.path("call.safetensors");
  EXPECT_EQ(run_program(small_prefill(call)).code, 0);
  EXPECT_EQ(run_program({"check", call}).out, call + ": sparse_mla_q8kv8_prefill_fwd, no broken rule\n");

  const std::string out = folder.path("out.safetensors");
  const Outcome ran = run_program({"prefill", call, "-o", out, "--backend", "cpu"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_THAT(ran.out, StartsWith(out + ": 3 rows on cpu in "));
  const files::SafetensorsFile result = files::read_result(out);
  EXPECT_EQ(shape_string(*result.find("out")), "(3, 64, 512)");
  EXPECT_EQ(result.find("out")->dtype, DType::kBFloat16);
  EXPECT_EQ(shape_string(*result.find("max_logits")), "(3, 64)");
  EXPECT_EQ(shape_string(*result.find("lse")), "(3, 64)");

  const std::string general = folder.path("general.safetensors");
  EXPECT_EQ(run_program({"prefill", call, "-o", general, "--general"}).code, 0);
  const Outcome same = run_program({"compare", out, general, "--tol", "0", "--json"});
  EXPECT_EQ(same.code, 0);
  EXPECT_EQ(json::parse(same.out).at("ok"), true);
  EXPECT_EQ(json::parse(same.out).at("tensors").size(), 3u);
  EXPECT_THAT(folder.names(), ElementsAre("call.safetensors", "general.safetensors", "out.safetensors"));
}

TEST(Decode, FromMadeCaseToComparedResult) {
  const TemporaryFolder folder;
  const std::string call = folder.path("call");
  EXPECT_EQ(run_program(small_decode(call)).code, 0);
  EXPECT_EQ(run_program({"check", call}).code, 0);
  EXPECT_EQ(run_program({"decode", call, "-o", folder.path("out")}).code, 0);
  EXPECT_THAT(files::read_result(folder.path("out")).names(), ElementsAre("out"));
  EXPECT_EQ(run_program({"decode", call, "-o", folder.path("general"), "--general"}).code, 0);
  EXPECT_NE(files::read_result(folder.path("general")).find("lse"), nullptr);
  expect_failure(run_program({"compare", folder.path("out"), folder.path("general")}),
                 folder.path("out") + ": lacks the tensor lse; found out");
}

TEST(Decode, ResultMatchesWhateverThePoolsFormat) {
  const TemporaryFolder folder;
  for (const char* q_dtype : {"bf16", "fp16"}) {
    const std::string call = folder.path("call");
    EXPECT_EQ(run_program({"make-case", "decode", "-o", call, "--n", "2", "--h", "8", "--pages", "64", "--tokens", "32",
                           "--q-dtype", q_dtype, "--kv-dtype", "q"})
                  .code,
              0);
    EXPECT_EQ(run_program({"check", call}).code, 0);
    EXPECT_EQ(run_program({"decode", call, "-o", folder.path("out")}).code, 0);
    EXPECT_EQ(files::read_result(folder.path("out")).find("out")->dtype,
              std::string_view(q_dtype) == "fp16" ? DType::kFloat16 : DType::kBFloat16);
  }
}

TEST(MakeCase, TheSameSeedGivesTheSameFile) {
  const TemporaryFolder folder;
  run_program(small_prefill(folder.path("a")));
  run_program(small_prefill(folder.path("b")));
  EXPECT_EQ(content_of(folder.path("a")), content_of(folder.path("b")));
  std::vector<std::string> other = small_prefill(folder.path("c"));
  other.back() = "8";
  run_program(other);
  EXPECT_NE(content_of(folder.path("a")), content_of(folder.path("c")));
}

TEST(MakeCase, AShapeThatTheContractRefusesIsNotWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.path("call");
  const Outcome refused =
      run_program({"make-case", "prefill", "-o", path, "--s-q", "1", "--s-kv", "9", "--topk", "100"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err,
            "sparse-mla: Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got 100 "
            "[prefill-topk-multiple-of-128]\n");
  EXPECT_THAT(folder.names(), IsEmpty());
  EXPECT_EQ(
      run_program({"make-case", "prefill", "-o", path, "--s-q", "1", "--s-kv", "9", "--topk", "100", "--general"}).code,
      0);
  const Outcome contract = run_program({"prefill", path, "-o", folder.path("out")});
  EXPECT_EQ(contract.code, 2);
  EXPECT_EQ(contract.err, refused.err);
  EXPECT_EQ(run_program({"check", path, "--general"}).code, 0);
  EXPECT_EQ(run_program({"prefill", path, "-o", folder.path("out"), "--general"}).code, 0);
}

TEST(MakeCase, ImpossibleSizesAreOneLine) {
  const TemporaryFolder folder;
  expect_failure(run_program({"make-case", "prefill", "-o", folder.path("x"), "--s-q", "-1"}),
                 "a size must be at least 0, got -1");
  expect_failure(run_program({"make-case", "decode", "-o", folder.path("x"), "--pages", "99999999999999"}),
                 "the shape has a tensor of over 2^33 elements");
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(Check, JsonNamesEveryBrokenRuleInTheContractsOrder) {
  const TemporaryFolder folder;
  const Outcome checked = run_program({"check", folder.write("call.json", kDescription), "--json"});
  EXPECT_EQ(checked.code, 2);
  EXPECT_EQ(checked.err, "");
  const json report = json::parse(checked.out);
  EXPECT_EQ(report.at("ok"), false);
  EXPECT_EQ(report.at("entry_point"), "sparse_mla_q8kv8_prefill_fwd");
  std::vector<std::string> messages;
  for (const json& violation : report.at("violations")) {
    messages.push_back(violation.at("message"));
    EXPECT_EQ(violation.at("error_class"), "ValueError");
    EXPECT_FALSE(violation.at("slug").get<std::string>().empty());
    EXPECT_FALSE(violation.at("fix").get<std::string>().empty());
  }
  EXPECT_THAT(messages,
              ElementsAre("kv must be a CUDA tensor", "topk_length values must satisfy 0 <= topk_length <= topk (128)",
                          "q_scale must be a torch.Tensor"));
}

TEST(Check, ADescriptionCannotBeRun) {
  const TemporaryFolder folder;
  const std::string path = folder.write("call.json", kDescription);
  expect_failure(run_program({"prefill", path, "-o", folder.path("out")}),
                 path + ": is a description of a call, without its data: it can be checked, not run");
  EXPECT_THAT(folder.names(), ElementsAre("call.json"));
}

TEST(Check, TextTellsWhatWasExpectedWhatCameAndTheFix) {
  const TemporaryFolder folder;
  const std::string path = folder.write("call.json", kDescription);
  const Outcome checked = run_program({"check", path});
  EXPECT_EQ(checked.code, 2);
  EXPECT_THAT(checked.out, StartsWith(path + ": sparse_mla_q8kv8_prefill_fwd, 3 broken rules\n"));
  EXPECT_THAT(checked.out,
              HasSubstr("ValueError: q_scale must be a torch.Tensor\n  rule      prefill-q-scale-tensor\n"));
  for (const char* label : {"  expected  ", "  got       ", "  fix       "}) EXPECT_THAT(checked.out, HasSubstr(label));
}

// A file is data that has left its device: no device rule, but every value rule.
TEST(Check, ACapturedCallIsCheckedByValueAndNotByDevice) {
  const TemporaryFolder folder;
  run_program(small_prefill(folder.path("call")));
  files::CapturedCall captured = files::read_captured_call(folder.path("call"));
  auto& call = std::get<PrefillCall>(captured.call);
  std::vector<std::int32_t> lengths = {1, 129, 5};
  call.topk_length = Tensor(lengths.data(), DType::kInt32, {3});
  files::write_captured_call(folder.path("wrong"), captured.call);
  const json report = json::parse(run_program({"check", folder.path("wrong"), "--json"}).out);
  ASSERT_EQ(report.at("violations").size(), 1u) << report;
  EXPECT_EQ(report.at("violations")[0].at("message"), "topk_length values must satisfy 0 <= topk_length <= topk (128)");
  const Outcome ran = run_program({"prefill", folder.path("wrong"), "-o", folder.path("out")});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(folder.names(), ElementsAre("call", "wrong"));
}

TEST(Run, TheOtherEntryPointsCallIsRefused) {
  const TemporaryFolder folder;
  const std::string call = folder.path("call");
  run_program(small_decode(call));
  expect_failure(run_program({"prefill", call, "-o", folder.path("out")}),
                 call + ": is a call of sparse_attn_v4_paged_decode, not of sparse_mla_q8kv8_prefill_fwd");
}

TEST(Run, UnwritableOutputsLeaveNothing) {
  const TemporaryFolder folder;
  const std::string call = folder.path("call");
  run_program(small_prefill(call));
  const std::string nowhere = folder.path("missing/out");
  expect_failure(run_program({"prefill", call, "-o", nowhere}),
                 nowhere + ": cannot be written: No such file or directory");
  expect_failure(run_program({"prefill", call, "-o", folder.path()}), folder.path() + ": is not a regular file");
  expect_failure(run_program({"prefill", call, "-o", "/dev/full"}), "/dev/full: is not a regular file");
  expect_failure(run_program(small_prefill(nowhere)), nowhere + ": cannot be written: No such file or directory");
  EXPECT_THAT(folder.names(), ElementsAre("call"));
}

TEST(Run, ADiskThatFillsUpLeavesTheOldFileAndNoHalfOne) {
  const TemporaryFolder folder;
  const std::string call = folder.path("call");
  run_program(small_prefill(call));
  const std::string out = folder.write("out", "old");
  expect_failure(run_program({"prefill", call, "-o", out}, {.file_size_limit = 50'000, .stdout_path = {}}),
                 out + ": cannot be written: File too large");
  EXPECT_EQ(content_of(out), "old");
  EXPECT_THAT(folder.names(), ElementsAre("call", "out"));
}

TEST(Run, AnOutputStreamThatCannotBeWrittenIsAFailure) {
  const Outcome full = run_program({"info"}, {.file_size_limit = {}, .stdout_path = "/dev/full"});
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.err, "sparse-mla: standard output cannot be written\n");
}

TEST(Compare, TellsHowFarAndExitsTwoPastTheTolerance) {
  const TemporaryFolder folder;
  std::vector<float> a = {3, 4, 0, INFINITY}, b = {3, 4, 0.5, INFINITY};
  const auto write = [&folder](const char* name, std::vector<float>& values,
                               std::initializer_list<std::int64_t> shape) {
    const std::vector<files::NamedTensor> tensors = {{"out", Tensor(values.data(), DType::kFloat32, shape)}};
    files::write_safetensors(folder.path(name), tensors, {});
  };
  write("a", a, {4});
  write("b", b, {4});
  const Outcome far = run_program({"compare", folder.path("b"), folder.path("a"), "--json"});
  EXPECT_EQ(far.code, 2);
  const json out = json::parse(far.out).at("tensors").at(0);
  EXPECT_DOUBLE_EQ(out.at("relative").get<double>(), 0.1);
  EXPECT_DOUBLE_EQ(out.at("max_abs").get<double>(), 0.5);
  EXPECT_NEAR(out.at("cosine").get<double>(), 0.995037, 1e-6);
  EXPECT_EQ(run_program({"compare", folder.path("b"), folder.path("a"), "--tol", "0.11"}).code, 0);
  EXPECT_EQ(run_program({"compare", folder.path("a"), folder.path("a")}).code, 0);

  b[3] = -INFINITY;  // the finite values agree well; the infinity does not
  write("b", b, {4});
  EXPECT_EQ(run_program({"compare", folder.path("b"), folder.path("a"), "--tol", "0.11"}).code, 2);
  b[3] = NAN;
  write("b", b, {4});
  EXPECT_EQ(run_program({"compare", folder.path("b"), folder.path("a"), "--tol", "0.11"}).code, 2);

  write("flat", a, {2, 2});
  expect_failure(run_program({"compare", folder.path("a"), folder.path("flat")}),
                 folder.path("a") + ": out has shape (4,), the other file's has (2, 2)");
  expect_failure(run_program({"compare", folder.path("a"), folder.path("b"), "--tol", "-1"}),
                 "--tol: must be a number of at least 0, got -1 (sparse-mla --help tells more)");
}

TEST(Demo, EveryVerdictIsOk) {
  const Outcome demo = run_program({"demo", "--json", "--backend", "cpu"});
  EXPECT_EQ(demo.code, 0) << demo.err;
  const json report = json::parse(demo.out);
  EXPECT_EQ(report.at("ok"), true);
  ASSERT_EQ(report.at("cases").size(), 2u);
  for (const json& one : report.at("cases")) {
    EXPECT_EQ(one.at("verdict"), "ok");
    EXPECT_EQ(one.at("backend"), "cpu");
    EXPECT_GT(one.at("error").get<double>(), 0);  // bf16 outputs are rounded: exactly 0 would mean nothing was compared
    EXPECT_LT(one.at("error").get<double>(), 3e-3);
    EXPECT_GT(one.at("ms").get<double>(), 0);
  }
}

TEST(Info, IsJsonOnRequest) {
  const json info = json::parse(run_program({"info", "--json"}).out);
  EXPECT_FALSE(info.at("cpu").at("simd_target").get<std::string>().empty());
  EXPECT_EQ(info.at("cuda").at("available").get<bool>(), info.at("cuda").at("unavailable_reason") == "");
  EXPECT_THAT(run_program({"info"}).out, StartsWith("version"));
}

}  // namespace
}  // namespace sparse_mla
