// Device memory that frees itself. For tools, tests and the value pass; the entry points allocate nothing.
#pragma once

#include <cstddef>
#include <utility>

#include "cuda/error.h"

namespace sparse_mla::cuda {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) throw_on_error(cudaMalloc(&data_, bytes), "cudaMalloc(" + std::to_string(bytes) + ")");
  }
  // A copy of host memory.
  DeviceBuffer(const void* host, std::size_t bytes) : DeviceBuffer(bytes) {
    if (bytes > 0) throw_on_error(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  void copy_to_host(void* host) const {
    if (bytes_ > 0) {
      throw_on_error(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
    }
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sparse_mla::cuda
