// What a kernel's launcher needs beside the problem.
#pragma once

#include <cstddef>

namespace sparse_mla::cuda {

struct LaunchContext {
  int multiprocessors = 0;
  void* stream = nullptr;     // cudaStream_t
  void* workspace = nullptr;  // device memory, 256-byte aligned
  std::size_t workspace_bytes = 0;
  bool batch_invariant = false;
};

}  // namespace sparse_mla::cuda
