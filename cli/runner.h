// Runs a call whose tensors are host memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/progress.h"
#include "files/captured_call.h"
#include "sparse_mla/attention.h"

namespace sparse_mla::cli {

// A call together with memory for its results: prefill's out, max_logits and lse; decode's out, and lse where asked.
// The inputs stay the caller's.
class CallWithOutputs {
 public:
  // The call must have passed its checks. Outputs that it came with are left alone and not written to.
  CallWithOutputs(const files::AnyCall& call, bool decode_lse);
  CallWithOutputs(const CallWithOutputs&) = delete;
  CallWithOutputs& operator=(const CallWithOutputs&) = delete;

  const files::AnyCall& call() const { return call_; }
  std::int64_t rows() const;

 private:
  void add_outputs(PrefillCall& call);
  void add_outputs(DecodeCall& call, bool with_lse);

  files::AnyCall call_;
  std::vector<std::uint16_t> out_;
  std::vector<float> max_logits_, lse_;
};

// Runs it all; in steps of some rows where the progress is watched.
void run_call(const files::AnyCall& call, Backend backend, Progress* progress = nullptr);

// Rows [begin, begin + count) of a call as a call of its own, on the same memory.
files::AnyCall rows_of(const files::AnyCall& call, std::int64_t begin, std::int64_t count);
std::int64_t row_count(const files::AnyCall& call);
// One line that names the call's shape, such as "prefill:sq8:skv8192:hq128:dqk576:topk2048". The call has passed its
// checks.
std::string shape_text(const files::AnyCall& call);

}  // namespace sparse_mla::cli
