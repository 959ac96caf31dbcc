// Any text as a description of a call: it is refused with a FileError, or every rule can be asked about it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "files/description.h"
#include "sparse_mla/contract.h"

namespace {

using namespace sparse_mla;

void describe_and_check(std::string_view text) {
  const files::DescribedCall described = files::parse_description(text, "fuzz");
  for (const bool contract : {true, false}) {
    for (const bool device_rules : {true, false}) {
      const CheckOptions rules = {.contract = contract,
                                  .device_rules = device_rules,
                                  .values = true,
                                  .value_source = &described.values,
                                  .run_rules = true};
      std::visit([&rules](const auto& call) { check(call, rules); }, described.call);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    describe_and_check({reinterpret_cast<const char*>(data), size});
  } catch (const sparse_mla::files::FileError&) {
  }
  return 0;
}
