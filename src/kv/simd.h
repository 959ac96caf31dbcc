// Rows of a cache to float32 and back: the widest vectors that the CPU has, chosen at run time.
#pragma once

#include <cstdint>

#include "base/kv_transfer.h"

namespace sparse_mla::kv {

// The `width` values of slot `slot`: code times scale, rounded to float32.
void load_row(const KvPlaces& places, std::int64_t slot, int width, float* to);

// Rounds a row into slot `slot`, with the scales that `scaling` makes. kGiven: `given` has the scales of the row; of a
// cache with one scale for all rows that one is used, whatever `scaling` says.
void store_row(const float* row, int width, const KvPlaces& places, std::int64_t slot, KvScaling scaling,
               const float* given);

// The largest finite magnitude; NaN and Inf are left out. `count` is a multiple of 64.
float finite_amax(const float* values, int count);

}  // namespace sparse_mla::kv
