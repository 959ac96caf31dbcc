#include "cuda/kv_cache.h"

#include <stdexcept>
#include <string>

#include "cuda/error.h"
#include "cuda/sm90/kv/launch.h"

namespace sparse_mla::cuda {
namespace {

struct FreeOnDevice {
  int device;
  void operator()(void* data) const {
    // A failure here has no one to go to: at process exit the driver may be gone already, with the memory.
    int previous = 0;
    if (data == nullptr || cudaGetDevice(&previous) != cudaSuccess) return;
    cudaSetDevice(device);
    cudaFree(data);
    cudaSetDevice(previous);
  }
};

template <class Enqueue>
void run(const Launch& launch, const std::string& what, Enqueue enqueue) {
  const DeviceGuard guard(launch.device);
  if (cudaPeekAtLastError() != cudaSuccess) throw_on_earlier_error(what);
  throw_on_error(static_cast<cudaError_t>(enqueue()), what);
}

}  // namespace

std::shared_ptr<void> allocate(int device, std::size_t bytes) {
  const DeviceGuard guard(device);
  void* data = nullptr;
  if (bytes == 0) return nullptr;
  throw_on_error(cudaMalloc(&data, bytes), "cudaMalloc(" + std::to_string(bytes) + ")");
  std::shared_ptr<void> owner(data, FreeOnDevice{device});
  throw_on_error(cudaMemset(data, 0, bytes), "zeroing a cache");
  throw_on_error(cudaDeviceSynchronize(), "zeroing a cache");
  return owner;
}

void copy_to_device(int device, void* to, const void* from, std::size_t bytes) {
  const DeviceGuard guard(device);
  throw_on_error(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

std::size_t kv_transfer_workspace_bytes(const KvTransferProblem& problem) noexcept {
  return sm90::kv::workspace_bytes(problem);
}

void kv_transfer(const KvTransferProblem& problem, const Launch& launch) {
  if (problem.count == 0) return;
  const std::size_t needed = kv_transfer_workspace_bytes(problem);
  if (needed > launch.workspace_bytes || (needed > 0 && launch.workspace == nullptr)) {
    throw std::invalid_argument("kv_transfer of " + std::to_string(problem.count) + " rows needs a workspace of " +
                                std::to_string(needed) + " bytes, got " + std::to_string(launch.workspace_bytes));
  }
  const LaunchContext context{.stream = launch.stream,
                              .workspace = launch.workspace,
                              .workspace_bytes = launch.workspace_bytes};
  run(launch, "sm90/kv: a transfer of " + std::to_string(problem.count) + " rows",
      [&] { return sm90::kv::launch(problem, context); });
}

void translate_codes(const std::array<std::uint8_t, 256>& table, const std::uint8_t* from, std::uint8_t* to,
                     std::int64_t count, const Launch& launch) {
  if (count == 0) return;
  run(launch, "sm90/kv: translating " + std::to_string(count) + " codes",
      [&] { return sm90::kv::launch_translation(table, from, to, count, launch.stream); });
}

}  // namespace sparse_mla::cuda
