// What the card can do in this run: the rates that kernels are compared with.
#pragma once

#include <string>

namespace sparse_mla::bench {

struct Ceilings {
  double e4m3_tflops = 0;        // cuBLASLt 8192^3, e4m3 in, bf16 out, fast accumulation; 0 where cuBLASLt is absent
  double bf16_tflops = 0;        // cuBLASLt 8192^3, bf16
  double copy_bytes_per_s = 0;   // device to device, bytes read plus bytes written
  std::string cublaslt;          // the library that was used, or why there is none
};

// cuBLASLt is loaded at run time (libcublasLt.so.13 or .12, or the path in SPARSE_MLA_CUBLASLT): the build needs none.
Ceilings measure_ceilings();

}  // namespace sparse_mla::bench
