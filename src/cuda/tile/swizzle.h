// Byte offsets inside shared-memory tiles as wgmma reads them (K-major, rows of one swizzle width).
#pragma once

#include <cstdint>

#include "cuda/host_device.h"

namespace sparse_mla::cuda {

// 16-byte chunk `chunk` (0..7) of row `row` in a tile of 128-byte rows, SWIZZLE_128B. The tile is 1024-byte aligned.
SPARSE_MLA_HOST_DEVICE constexpr std::uint32_t swizzle_128b(std::uint32_t row, std::uint32_t chunk) {
  return row * 128 + ((chunk ^ (row & 7)) << 4);
}
// 16-byte chunk `chunk` (0..3) of row `row` in a tile of 64-byte rows, SWIZZLE_64B. The tile is 512-byte aligned.
SPARSE_MLA_HOST_DEVICE constexpr std::uint32_t swizzle_64b(std::uint32_t row, std::uint32_t chunk) {
  return row * 64 + ((chunk ^ ((row >> 1) & 3)) << 4);
}

}  // namespace sparse_mla::cuda
