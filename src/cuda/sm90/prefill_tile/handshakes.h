// Every edge between roles: who arrives, how often, who waits, what is protected. Offsets are in shared.h.
#pragma once

namespace sparse_mla::cuda::sm90::prefill_tile {

// mbarriers
inline constexpr int kFullArrivals = 128 + 4;  // loader -> MMA: kv slot landed (one asynchronous arrival a thread), and
                                               // its valid bits are written (one a warp)
inline constexpr int kEmptyArrivals = 8;       // MMA -> loader: every MMA warp has its value fragments of the slot
inline constexpr int kQFullArrivals = 128;     // loader -> MMA: Q landed
inline constexpr int kQEmptyArrivals = 8;      // MMA -> loader: every MMA warp's last product with Q is complete
inline constexpr int kPFullArrivals = 4;       // warpgroup -> both: P, alpha and moved of a block are written and fenced
inline constexpr int kPEmptyArrivals = 8;      // both -> warpgroup: every MMA warp's product with P is complete
inline constexpr int kChainArrivals = 1;       // warp w of one warpgroup -> warp w of the other: frames of a block
inline constexpr int kSumsFullArrivals = 8;    // both -> both: sums, frames and maxima of a row are written

// named barriers: id, threads
inline constexpr int kWeightReady = 3;   // 256: split rows: the weights of the parts are written
inline constexpr int kFactorReady = 1;  // 1, 2 (by warpgroup), 128: output factors are written

}  // namespace sparse_mla::cuda::sm90::prefill_tile
