// Stands in for the CUDA backend where the library is built without nvcc.
#include <stdexcept>

#include "cuda/cuda.h"
#include "cuda/from_host.h"
#include "cuda/kv_cache.h"

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
std::shared_ptr<void> allocate(int, std::size_t) { refuse(); }
void copy_to_device(int, void*, const void*, std::size_t) { refuse(); }
std::size_t kv_transfer_workspace_bytes(const KvTransferProblem&) noexcept { return 0; }
void kv_transfer(const KvTransferProblem&, const Launch&) { refuse(); }
void translate_codes(const std::array<std::uint8_t, 256>&, const std::uint8_t*, std::uint8_t*, std::int64_t,
                     const Launch&) {
  refuse();
}

}  // namespace sparse_mla::cuda
