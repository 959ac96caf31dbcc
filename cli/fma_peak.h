// The machine's ceiling for float32 arithmetic, measured.
#pragma once

namespace sparse_mla::cli {

// float32 multiply-adds per second, two operations each, in GFLOP/s: independent chains in registers, the widest vectors
// that the CPU has, `threads` threads at once for about a fifth of a second.
double fma_peak_gflops(int threads);

}  // namespace sparse_mla::cli
