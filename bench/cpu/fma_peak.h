// The float32 multiply-add rate of this machine, as the yardstick beside a kernel's rate in the same run.
#pragma once

namespace sparse_mla::bench {

// FLOP/s of `threads` threads that do nothing but multiply-adds on registers for about `seconds`, each at its best.
double float32_fma_peak(int threads, double seconds);

}  // namespace sparse_mla::bench
