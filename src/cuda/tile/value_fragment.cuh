// O^T = V^T P^T: the A fragment of V^T (16 dims x 32 tokens of e4m3) out of row-major V in shared memory.
//
// ldmatrix.x4.trans, lane = token of the 32, each lane giving the 16 bytes (16 dims) of its token, leaves in register i
// of thread (g, c) = (lane / 4, lane % 4) the bytes {dim 2g, dim 2g + 1} of tokens 8i + 2c and 8i + 2c + 1. Two PRMT per
// pair of registers separate even from odd dims. So row j of the m16 slice is dim 2j (j < 8) or 2(j - 8) + 1, and the k
// order inside 16 tokens is 4c + {0, 1, 2, 3} = tokens {2c, 2c + 1, 8 + 2c, 8 + 2c + 1}, which is the order in which the
// accumulator of S = Q K^T packs to e4m3 without a shuffle (probability_chunk).
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"

namespace sparse_mla::cuda {

__device__ inline void value_fragment(std::uint32_t (&a)[4], const std::uint32_t (&x)[4]) {
  a[0] = ptx::prmt(x[0], x[1], 0x6420);
  a[1] = ptx::prmt(x[0], x[1], 0x7531);
  a[2] = ptx::prmt(x[2], x[3], 0x6420);
  a[3] = ptx::prmt(x[2], x[3], 0x7531);
}

}  // namespace sparse_mla::cuda
