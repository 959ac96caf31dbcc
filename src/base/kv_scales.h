// The scales of quantised rows (docs/kv-formats.md, "Scales"). a is the largest finite magnitude under the scale.
#pragma once

#include <bit>
#include <cstdint>

namespace sparse_mla {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kLeastKvScale = 0x1p-126f;

// a / 448, rounded to float32.
constexpr float amax_kv_scale(float a) noexcept {
  if (a == 0) return 1.0f;
  const float scale = a / kE4m3Max;
  return scale < kLeastKvScale ? kLeastKvScale : scale;
}

// The least power of two s >= 2^-126 with a <= 448 s. 448 is 1.75 * 2^8, so it is a's exponent less 8, or less 7 where
// a's fraction is past 1.75.
constexpr float power_of_two_kv_scale(float a) noexcept {
  if (a == 0) return 1.0f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(a);
  const int exponent = static_cast<int>(bits >> 23) - 8 + ((bits & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent < 1 ? 1 : exponent) << 23);
}

// UE8M0: the exponent byte of a power of two, bias 127; 255 is NaN.
constexpr float float_from_e8m0(std::uint8_t exponent) noexcept {
  if (exponent == 0) return 0x1p-127f;
  if (exponent == 255) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}

// The power of two that is stored for a given scale: itself, or the next one up; 2^-126 to 2^127.
constexpr float rounded_up_to_power_of_two(float scale) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
  const std::uint32_t exponent = ((bits >> 23) & 0xFFu) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  const std::uint32_t held = exponent < 1 ? 1u : exponent > 254 ? 254u : exponent;
  return std::bit_cast<float>(held << 23);
}
constexpr std::uint8_t e8m0_from_power_of_two(float scale) noexcept {
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(scale) >> 23);
}

}  // namespace sparse_mla
