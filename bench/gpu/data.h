// Seeded random inputs made on the device.
#pragma once

#include <cstdint>

namespace sparse_mla::bench {

// Standard-normal values times `scale`, rounded to the format. `seed` picks the sequence.
void fill_normal_e4m3(std::uint8_t* device, std::int64_t count, float scale, std::uint64_t seed);
void fill_normal_bf16(std::uint16_t* device, std::int64_t count, float scale, std::uint64_t seed);
// Uniform in [low, high].
void fill_uniform(float* device, std::int64_t count, float low, float high, std::uint64_t seed);
// [rows, width] int32: every row holds `width` different values of [0, range), in random order. width <= range.
void fill_unique_indices(std::int32_t* device, std::int64_t rows, std::int64_t width, std::int64_t range,
                         std::uint64_t seed);
// 0, step, 2 * step, ... (count values).
void fill_steps(std::int32_t* device, std::int64_t count, std::int32_t step);
// Bytes that are NaN in every format used here.
void fill_nan(void* device, std::int64_t bytes);

}  // namespace sparse_mla::bench
