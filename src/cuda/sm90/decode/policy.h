// What distinguishes one instance of the decode kernel from another, and what follows from it. Host and device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SPARSE_MLA_HD __host__ __device__
#else
#define SPARSE_MLA_HD
#endif

namespace sparse_mla::cuda::sm90::decode {

enum class KvFormat : std::uint8_t {
  kE4M3,  // products in f16 of the dequantised values
  kBF16,
  kF16,
};

struct Policy {
  KvFormat format = KvFormat::kE4M3;
  int heads = 64;        // head tile: heads of one CTA (8, 16, 32 or 64)
  int key_groups = 8;    // groups of 64 values in a row as it lies in shared memory
  int value_groups = 8;  // groups of 64 values that are weighed
  int slots = 4;         // blocks of KV rows in flight
  friend bool operator==(const Policy&, const Policy&) = default;

  // Wide: two warpgroups score alternate blocks and each weighs half of the value dims of every block.
  // Narrow: two warpgroups score, two others weigh.
  SPARSE_MLA_HD constexpr bool is_wide() const { return heads == 64; }
  SPARSE_MLA_HD constexpr int mma_warpgroups() const { return is_wide() ? 2 : 4; }
  SPARSE_MLA_HD constexpr int mma_threads() const { return 128 * mma_warpgroups(); }
  // Each gathers every so many-th block.
  SPARSE_MLA_HD constexpr int gather_warpgroups() const { return 1; }
  SPARSE_MLA_HD constexpr int threads() const { return mma_threads() + 128 * gather_warpgroups(); }
  SPARSE_MLA_HD constexpr int element_bytes() const { return format == KvFormat::kE4M3 ? 1 : 2; }
  SPARSE_MLA_HD constexpr bool has_scales() const { return format == KvFormat::kE4M3; }
  // 16 bytes more than the values: ldmatrix reads eight rows at once, and an odd multiple of 16 spreads them over all
  // banks.
  SPARSE_MLA_HD constexpr int row_bytes() const { return 64 * key_groups * element_bytes() + 16; }
  // m64 tiles of one weighing warpgroup.
  SPARSE_MLA_HD constexpr int value_tiles() const { return (value_groups + 1) / 2; }
  SPARSE_MLA_HD constexpr int p_buffers() const { return is_wide() ? 2 : 4; }
};

inline constexpr int kBlock = 64;          // tokens of a block: the M of one wgmma of S^T = K Q^T
inline constexpr int kGroup = 64;          // values under one scale
inline constexpr int kFrames = 4;          // generations of frames kept: see softmax.cuh
inline constexpr float kHeadroom = 8.0f;   // a score may exceed the frame by 2^8 before the frame moves
inline constexpr float kNoFrame = -1e30f;  // frame of a head that has seen no valid token

}  // namespace sparse_mla::cuda::sm90::decode
