#include "dispatch/options.h"

#include <cstdlib>
#include <string_view>

namespace sparse_mla::dispatch {
namespace {

bool values_asked_for(const RunOptions& options) {
  static const bool from_environment = [] {
    const char* value = std::getenv("SPARSE_MLA_CHECK");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return options.check_values || from_environment;
}

}  // namespace

CheckOptions check_options(bool on_cpu, bool contract, const RunOptions& options) {
  return {.contract = contract,
          .device_rules = true,
          .values = on_cpu || values_asked_for(options),
          .value_source = on_cpu ? &host_values() : &cuda::device_values(),
          .run_rules = true};
}

cuda::Launch cuda_launch(Device device, const RunOptions& options) {
  return {.device = device.index,
          .stream = options.stream,
          .workspace = options.workspace,
          .workspace_bytes = options.workspace_bytes,
          .batch_invariant = options.batch_invariant};
}

}  // namespace sparse_mla::dispatch
