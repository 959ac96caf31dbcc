// Stands in for the CUDA backend where the library is built without nvcc.
#include <stdexcept>

#include "cuda/cuda.h"
#include "cuda/from_host.h"

namespace sparse_mla::cuda {
namespace {
constexpr const char* kReason = "this build has no CUDA backend (nvcc was not found when it was built)";
[[noreturn]] void refuse() { throw std::runtime_error(std::string("backend cuda is not available: ") + kReason); }
}  // namespace

bool compiled_in() noexcept { return false; }
std::string unavailable_reason() { return kReason; }
std::vector<DeviceInfo> devices() { return {}; }
void prefill(const PrefillProblem&, const Launch&) { refuse(); }
void decode(const DecodeProblem&, const Launch&) { refuse(); }
std::size_t prefill_workspace_bytes(const PrefillProblem&, const Launch&) { refuse(); }
std::size_t decode_workspace_bytes(const DecodeProblem&, const Launch&) { refuse(); }
void synchronize(int, void*) { refuse(); }
std::vector<std::string> explain_choice(const PrefillProblem&) { return {kReason}; }
std::vector<std::string> explain_choice(const DecodeProblem&) { return {kReason}; }
const ValueSource& device_values() noexcept { return host_values(); }  // no CUDA tensor can exist here
void prefill_from_host(const PrefillProblem&, bool) { refuse(); }
void decode_from_host(const DecodeProblem&, bool) { refuse(); }

}  // namespace sparse_mla::cuda
