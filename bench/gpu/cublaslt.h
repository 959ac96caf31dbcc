// The few functions of cuBLASLt that the ceilings need, loaded at run time so that no build depends on it. Types and
// numbers follow NVIDIA's cuBLAS documentation, section "Using the cuBLASLt API" (ABI of versions 12 and 13).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>
#include <library_types.h>

namespace sparse_mla::bench {

class CublasLt {
 public:
  // Throws std::runtime_error where no library is found.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  const std::string& path() const noexcept { return path_; }

  // D = A^T B of size^3, both inputs K-major of `type`, D in bf16, float32 accumulation. A product that can be
  // enqueued many times; scale pointers are device float32 (fp8 inputs only).
  class Product {
   public:
    Product(CublasLt& library, cudaDataType_t type, int size, const void* a, const void* b, void* d, const float* scale,
            void* workspace, std::size_t workspace_bytes);
    ~Product();
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;
    void enqueue(cudaStream_t stream) const;

   private:
    CublasLt& library_;
    void* description_ = nullptr;
    void* layout_ab_ = nullptr;
    void* layout_d_ = nullptr;
    const void* a_;
    const void* b_;
    void* d_;
    void* workspace_;
    std::size_t workspace_bytes_;
    std::uint64_t algorithm_[8] = {};
  };

 private:
  template <class Function>
  void load(Function& function, const char* name);

  std::string path_;
  void* library_ = nullptr;
  void* handle_ = nullptr;
  int (*create_)(void**) = nullptr;
  int (*destroy_)(void*) = nullptr;
  int (*description_create_)(void**, int compute_type, int scale_type) = nullptr;
  int (*description_set_)(void*, int attribute, const void*, std::size_t) = nullptr;
  int (*description_destroy_)(void*) = nullptr;
  int (*layout_create_)(void**, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t leading) = nullptr;
  int (*layout_destroy_)(void*) = nullptr;
  int (*preference_create_)(void**) = nullptr;
  int (*preference_set_)(void*, int attribute, const void*, std::size_t) = nullptr;
  int (*preference_destroy_)(void*) = nullptr;
  int (*heuristic_)(void*, void*, void*, void*, void*, void*, void*, int, void*, int*) = nullptr;
  int (*matmul_)(void* handle, void* description, const void* alpha, const void* a, void* layout_a, const void* b,
                 void* layout_b, const void* beta, const void* c, void* layout_c, void* d, void* layout_d,
                 const void* algorithm, void* workspace, std::size_t workspace_bytes, cudaStream_t stream) = nullptr;
};

}  // namespace sparse_mla::bench
