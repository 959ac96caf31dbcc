#include "cli/run_file.h"

namespace sparse_mla::cli {

std::unique_ptr<Command> make_decode(CLI::App& root) {
  return make_run_file(*root.add_subcommand("decode", "run a captured sparse_attn_v4_paged_decode call"),
                       EntryPoint::kDecode);
}

}  // namespace sparse_mla::cli
