#include "cli/run_file.h"

namespace sparse_mla::cli {

std::unique_ptr<Command> make_prefill(CLI::App& root) {
  return make_run_file(*root.add_subcommand("prefill", "run a captured sparse_mla_q8kv8_prefill_fwd call"),
                       EntryPoint::kPrefill);
}

}  // namespace sparse_mla::cli
