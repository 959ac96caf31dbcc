// The numbers of the KV cache kernels.
#pragma once

namespace sparse_mla::cuda::sm90::kv {

// A row belongs to 8 lanes; a lane holds 8 of the 64 values of a block, 16 bytes of them in bf16. So a warp touches four
// rows, 128 bytes of each at a time, and a scale group of 64 is one block.
inline constexpr int kLanesPerRow = 8;
inline constexpr int kValuesPerLane = 8;
inline constexpr int kBlockValues = kLanesPerRow * kValuesPerLane;
inline constexpr int kRowsPerWarp = 32 / kLanesPerRow;
inline constexpr int kThreads = 256;
inline constexpr int kRowsPerCta = kThreads / kLanesPerRow;
// At least, for sources of 8 and 16 bits (80 registers a thread) and of float32 (128), whose rows take twice the registers.
inline constexpr int kCtasPerSm = 3;
inline constexpr int kCtasPerSmFloat32 = 2;

// Up to this many rows a row finds out by itself whether a later one has its target slot; more rows leave their numbers
// in a table first (two more launches and 4 bytes of workspace a cache row).
inline constexpr int kScanRows = 1024;

// A scale outside of these bounds, and with it the values under it, is moved inside by kScaleShift (scales.cuh).
inline constexpr float kLeastFastScale = 0x1p-80f;
inline constexpr float kLargestFastScale = 0x1p80f;
inline constexpr float kScaleShift = 0x1p80f;

static_assert(kThreads % 32 == 0 && kRowsPerCta * kLanesPerRow == kThreads);

}  // namespace sparse_mla::cuda::sm90::kv
