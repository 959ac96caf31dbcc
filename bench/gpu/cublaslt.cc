#include "gpu/cublaslt.h"

#include <cstdlib>
#include <stdexcept>

#include <dlfcn.h>

namespace sparse_mla::bench {
namespace {

constexpr int kCompute32F = 68;
constexpr int kDescTransA = 3;
constexpr int kDescAScalePointer = 17;
constexpr int kDescBScalePointer = 18;
constexpr int kDescFastAccumulation = 25;
constexpr int kPreferenceMaxWorkspaceBytes = 1;
constexpr int kOperationTranspose = 1;

struct HeuristicResult {
  std::uint64_t algorithm[8];
  std::size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

void check(int status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string(what) + " failed with cuBLAS status " + std::to_string(status));
}

}  // namespace

template <class Function>
void CublasLt::load(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library_, name));
  if (function == nullptr) throw std::runtime_error(path_ + " has no " + name);
}

CublasLt::CublasLt() {
  const char* given = std::getenv("SPARSE_MLA_CUBLASLT");
  for (const char* candidate : {given, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    if (candidate == nullptr) continue;
    library_ = dlopen(candidate, RTLD_NOW | RTLD_LOCAL);
    path_ = candidate;
    if (library_ != nullptr) break;
  }
  if (library_ == nullptr) throw std::runtime_error("libcublasLt was not found (SPARSE_MLA_CUBLASLT can name its path)");
  load(create_, "cublasLtCreate");
  load(destroy_, "cublasLtDestroy");
  load(description_create_, "cublasLtMatmulDescCreate");
  load(description_set_, "cublasLtMatmulDescSetAttribute");
  load(description_destroy_, "cublasLtMatmulDescDestroy");
  load(layout_create_, "cublasLtMatrixLayoutCreate");
  load(layout_destroy_, "cublasLtMatrixLayoutDestroy");
  load(preference_create_, "cublasLtMatmulPreferenceCreate");
  load(preference_set_, "cublasLtMatmulPreferenceSetAttribute");
  load(preference_destroy_, "cublasLtMatmulPreferenceDestroy");
  load(heuristic_, "cublasLtMatmulAlgoGetHeuristic");
  load(matmul_, "cublasLtMatmul");
  check(create_(&handle_), "cublasLtCreate");
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) destroy_(handle_);
}

CublasLt::Product::Product(CublasLt& library, cudaDataType_t type, int size, const void* a, const void* b, void* d,
                           const float* scale, void* workspace, std::size_t workspace_bytes)
    : library_(library), a_(a), b_(b), d_(d), workspace_(workspace), workspace_bytes_(workspace_bytes) {
  check(library.description_create_(&description_, kCompute32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const int transpose = kOperationTranspose;
  check(library.description_set_(description_, kDescTransA, &transpose, sizeof(transpose)), "transposing A");
  if (type == CUDA_R_8F_E4M3) {
    check(library.description_set_(description_, kDescAScalePointer, &scale, sizeof(scale)), "A's scale");
    check(library.description_set_(description_, kDescBScalePointer, &scale, sizeof(scale)), "B's scale");
    const std::int8_t fast = 1;
    check(library.description_set_(description_, kDescFastAccumulation, &fast, sizeof(fast)), "fast accumulation");
  }
  const auto n = static_cast<std::uint64_t>(size);
  check(library.layout_create_(&layout_ab_, type, n, n, size), "cublasLtMatrixLayoutCreate");
  check(library.layout_create_(&layout_d_, CUDA_R_16BF, n, n, size), "cublasLtMatrixLayoutCreate");
  void* preference = nullptr;
  check(library.preference_create_(&preference), "cublasLtMatmulPreferenceCreate");
  check(library.preference_set_(preference, kPreferenceMaxWorkspaceBytes, &workspace_bytes_, sizeof(workspace_bytes_)),
        "the workspace preference");
  HeuristicResult best{};
  int found = 0;
  const int status = library.heuristic_(library.handle_, description_, layout_ab_, layout_ab_, layout_d_, layout_d_,
                                        preference, 1, &best, &found);
  library.preference_destroy_(preference);
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0) throw std::runtime_error("cuBLASLt has no algorithm for this product");
  for (int i = 0; i < 8; ++i) algorithm_[i] = best.algorithm[i];
}

CublasLt::Product::~Product() {
  library_.layout_destroy_(layout_ab_);
  library_.layout_destroy_(layout_d_);
  library_.description_destroy_(description_);
}

void CublasLt::Product::enqueue(cudaStream_t stream) const {
  const float alpha = 1.0f;
  const float beta = 0.0f;
  check(library_.matmul_(library_.handle_, description_, &alpha, a_, layout_ab_, b_, layout_ab_, &beta, d_, layout_d_,
                         d_, layout_d_, algorithm_, workspace_, workspace_bytes_, stream),
        "cublasLtMatmul");
}

}  // namespace sparse_mla::bench
