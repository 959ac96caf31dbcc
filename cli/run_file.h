// What `prefill` and `decode` share: a captured call in, a result file out.
#pragma once

#include <memory>

#include "cli/command.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::cli {

std::unique_ptr<Command> make_run_file(CLI::App& app, EntryPoint entry_point);

}  // namespace sparse_mla::cli
