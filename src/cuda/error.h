// CUDA's error codes as exceptions.
#pragma once

#include <string>

#include <cuda_runtime_api.h>

namespace sparse_mla::cuda {

// Throws std::runtime_error "{what}: {name}: {CUDA's text}" unless `status` is cudaSuccess.
void throw_on_error(cudaError_t status, const std::string& what);

// Throws where an error was pending on this device before `what` did anything, and says that it is an earlier one.
void throw_on_earlier_error(const std::string& what);

// Makes `device` current and gives the caller's back.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace sparse_mla::cuda
