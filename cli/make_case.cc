#include <iostream>

#include "cli/case.h"
#include "cli/command.h"
#include "cli/runner.h"
#include "files/captured_call.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::cli {
namespace {

class MakeCase final : public Command {
 public:
  explicit MakeCase(CLI::App& app)
      : Command(app),
        prefill_(*app.add_subcommand("prefill", "a call of sparse_mla_q8kv8_prefill_fwd")),
        decode_(*app.add_subcommand("decode", "a call of sparse_attn_v4_paged_decode")) {
    app.require_subcommand(1);
    add_prefill_options();
    add_decode_options();
    for (CLI::App* kind : {&prefill_, &decode_}) {
      kind->add_option("-o,--output", output_, "file to write (.safetensors)")->required();
      add_seed_option(*kind, seed_, "the same seed gives the same call");
      kind->add_flag("--general", general_, "let the shape be any that the general API takes");
    }
  }

  int run() override {
    if (prefill_.parsed()) {
      write(PrefillCase(prefill_shape_, seed_).call());
    } else {
      decode_shape_.q_dtype = q_dtype_ == "fp16" ? DType::kFloat16 : DType::kBFloat16;
      decode_shape_.fp8 = kv_dtype_ == "fp8";
      write(DecodeCase(decode_shape_, seed_).call());
    }
    return 0;
  }

 private:
  void add_prefill_options() {
    prefill_.add_option("--s-q", prefill_shape_.s_q, "queries")->capture_default_str();
    prefill_.add_option("--s-kv", prefill_shape_.s_kv, "tokens in kv")->capture_default_str();
    prefill_.add_option("--h-q", prefill_shape_.h_q, "heads")->capture_default_str();
    prefill_.add_option("--d-qk", prefill_shape_.d_qk, "values of a q or kv row")->capture_default_str();
    prefill_.add_option("--topk", prefill_shape_.topk, "indices of a query")->capture_default_str();
    prefill_.add_option("--d-v", prefill_shape_.d_v, "value width")->capture_default_str();
    prefill_.add_flag("--sink", prefill_shape_.sink, "with attn_sink and topk_length");
    prefill_.add_flag("--lengths", prefill_shape_.lengths, "with random topk_length");
  }

  void add_decode_options() {
    decode_.add_option("--n", decode_shape_.n, "queries")->capture_default_str();
    decode_.add_option("--h", decode_shape_.h, "heads")->capture_default_str();
    decode_.add_option("--d", decode_shape_.d, "values of a q or kv row")->capture_default_str();
    decode_.add_option("--pages", decode_shape_.pages, "rows of the pool")->capture_default_str();
    decode_.add_option("--tokens", decode_shape_.tokens, "slots of a query")->capture_default_str();
    decode_.add_flag("--ragged", decode_shape_.ragged, "random segment lengths from 0 to --tokens");
    decode_.add_option("--q-dtype", q_dtype_, "bf16 or fp16")
        ->check(CLI::IsMember({"bf16", "fp16"}))
        ->capture_default_str();
    decode_.add_option("--kv-dtype", kv_dtype_, "fp8 (with kv_scales), or q for q's dtype")
        ->check(CLI::IsMember({"fp8", "q"}))
        ->capture_default_str();
  }

  template <class Call>
  void write(const Call& call) const {
    enforce(call, CheckOptions{.contract = !general_, .device_rules = false, .values = true});
    files::write_captured_call(output_, call);
    std::cout << output_ << ": " << shape_text(call) << ", seed " << seed_ << '\n';
  }

  CLI::App& prefill_;
  CLI::App& decode_;
  PrefillShape prefill_shape_;
  DecodeShape decode_shape_;
  std::string output_, q_dtype_ = "bf16", kv_dtype_ = "fp8";
  std::uint64_t seed_ = 1;
  bool general_ = false;
};

}  // namespace

std::unique_ptr<Command> make_make_case(CLI::App& root) {
  return std::make_unique<MakeCase>(*root.add_subcommand("make-case", "write a valid captured call"));
}

}  // namespace sparse_mla::cli
