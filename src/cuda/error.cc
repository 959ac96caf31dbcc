#include "cuda/error.h"

#include <stdexcept>

namespace sparse_mla::cuda {

void throw_on_error(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(what + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

void throw_on_earlier_error(const std::string& what) {
  const cudaError_t status = cudaPeekAtLastError();
  if (status == cudaSuccess) return;
  throw std::runtime_error(what + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status) +
                           " (this error was pending before the call: earlier work on the device caused it)");
}

DeviceGuard::DeviceGuard(int device) {
  throw_on_error(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != device) {
    throw_on_error(cudaSetDevice(device), "cudaSetDevice(" + std::to_string(device) + ")");
    changed_ = true;
  }
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(previous_);
}

}  // namespace sparse_mla::cuda
