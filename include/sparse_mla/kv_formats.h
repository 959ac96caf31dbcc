// The formats of a KV cache: what a row is made of, where its scales are, and which entry points read it as it is.
// Byte layouts, drawn: docs/kv-formats.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "sparse_mla/tensor.h"

namespace sparse_mla {

enum class KvFormat : std::uint8_t {
  kQ8Kv8_576,
  kQ8Kv8_512,
  kUnifiedBf16,
  kUnifiedFp16,
  kUnifiedFp8_1x64,
  kV32_656,
  kV4_584,
};
inline constexpr int kKvFormatCount = 7;
// Rows have a multiple of 64 values, up to this many.
inline constexpr int kKvWidthMultiple = 64;
inline constexpr int kMaxKvWidth = 1024;

// Where the scales of e4m3 values are.
enum class KvScalePlace : std::uint8_t {
  kNone,     // the values are not scaled
  kCache,    // one float32 for the whole cache
  kTensor,   // a float32 tensor of its own, [rows, D / 64]
  kRow,      // in the row, behind its e4m3 values
  kPageEnd,  // behind the values of all of a page's rows
};

struct KvFormatInfo {
  KvFormat format;
  std::string_view name;
  DType values;  // of the row's front; the `tail` values behind them are bfloat16
  int width;     // D, the values of a row; 0 where the cache chooses a multiple of 64
  int tail;      // unscaled bfloat16 values at the end of a row, of the D
  int group;     // values under one scale; 0 where there is none, or one for all
  KvScalePlace scale_place;
  DType scale_dtype;  // float32, or float8_e8m0fnu: a power of two as its exponent byte, bias 127
  bool prefill;       // sparse_mla_q8kv8_prefill_fwd and prefill() take it
  bool decode;        // sparse_attn_v4_paged_decode and decode() take it

  constexpr bool is_quantised() const noexcept { return values == DType::kFloat8E4M3FN; }
  // Scales that each row has of its own.
  constexpr bool has_row_scales() const noexcept { return group != 0; }
  constexpr bool has_scale_tensor() const noexcept {
    return scale_place == KvScalePlace::kCache || scale_place == KvScalePlace::kTensor;
  }
  constexpr bool is_paged() const noexcept { return scale_place == KvScalePlace::kPageEnd; }
};

// Indexed by KvFormat.
inline constexpr std::array<KvFormatInfo, kKvFormatCount> kKvFormats{{
    {KvFormat::kQ8Kv8_576, "q8kv8_576", DType::kFloat8E4M3FN, 576, 0, 0, KvScalePlace::kCache, DType::kFloat32, true,
     false},
    {KvFormat::kQ8Kv8_512, "q8kv8_512", DType::kFloat8E4M3FN, 512, 0, 0, KvScalePlace::kCache, DType::kFloat32, true,
     false},
    {KvFormat::kUnifiedBf16, "unified_bf16", DType::kBFloat16, 0, 0, 0, KvScalePlace::kNone, DType::kFloat32, false,
     true},
    {KvFormat::kUnifiedFp16, "unified_fp16", DType::kFloat16, 0, 0, 0, KvScalePlace::kNone, DType::kFloat32, false,
     true},
    {KvFormat::kUnifiedFp8_1x64, "unified_fp8_1x64", DType::kFloat8E4M3FN, 0, 0, 64, KvScalePlace::kTensor,
     DType::kFloat32, false, true},
    {KvFormat::kV32_656, "v32_656", DType::kFloat8E4M3FN, 576, 64, 128, KvScalePlace::kRow, DType::kFloat32, false,
     false},
    {KvFormat::kV4_584, "v4_584", DType::kFloat8E4M3FN, 512, 64, 64, KvScalePlace::kPageEnd, DType::kFloat8E8M0FNU,
     false, false},
}};

constexpr const KvFormatInfo& kv_format_info(KvFormat format) noexcept {
  return kKvFormats[static_cast<std::size_t>(format)];
}
constexpr std::string_view kv_format_name(KvFormat format) noexcept { return kv_format_info(format).name; }
// The inverse. Throws std::invalid_argument.
constexpr KvFormat kv_format_from_name(std::string_view name) {
  for (const KvFormatInfo& info : kKvFormats) {
    if (info.name == name) return info.format;
  }
  throw std::invalid_argument("unknown KV cache format \"" + std::string(name) + "\"");
}

// The one that gives rows of `width` values to the prefill kernels. Nothing where `width` is neither 512 nor 576.
constexpr std::optional<KvFormat> q8kv8_format(int width) noexcept {
  if (width == 576) return KvFormat::kQ8Kv8_576;
  if (width == 512) return KvFormat::kQ8Kv8_512;
  return std::nullopt;
}

// ---- bytes --------------------------------------------------------------------------------------------------------

inline constexpr std::int64_t kKvPageMultiple = 576;  // v4_584: a page's bytes are a multiple of it

// Bytes of the values of a row of D = `width` values, tail included.
constexpr std::int64_t kv_value_bytes(const KvFormatInfo& info, std::int64_t width) noexcept {
  const std::int64_t front = info.is_quantised() ? 1 : 2;
  return (width - info.tail) * front + info.tail * 2;
}
// Scales of a row; of v4_584 without the pad byte.
constexpr std::int64_t kv_row_scales(const KvFormatInfo& info, std::int64_t width) noexcept {
  return info.has_row_scales() ? (width - info.tail) / info.group : 0;
}
// Bytes that a row takes in the cache's data: its values and, where they are stored with them, its scales and pad.
constexpr std::int64_t kv_row_bytes(const KvFormatInfo& info, std::int64_t width) noexcept {
  const std::int64_t values = kv_value_bytes(info, width);
  if (info.scale_place == KvScalePlace::kRow) return values + kv_row_scales(info, width) * 4;
  if (info.scale_place == KvScalePlace::kPageEnd) return values + kv_row_scales(info, width) + 1;
  return values;
}
// Bytes of a page of `page_size` rows.
constexpr std::int64_t kv_page_bytes(const KvFormatInfo& info, std::int64_t width, std::int64_t page_size) noexcept {
  const std::int64_t bytes = page_size * kv_row_bytes(info, width);
  if (!info.is_paged()) return bytes;
  return (bytes + kKvPageMultiple - 1) / kKvPageMultiple * kKvPageMultiple;
}
// The page size of v4_584 whose pages take `page_bytes`; 0 where there is none. There is at most one, since one more
// row adds at least 576 bytes.
constexpr std::int64_t v4_page_size(std::int64_t page_bytes) noexcept {
  const KvFormatInfo& v4 = kv_format_info(KvFormat::kV4_584);
  const std::int64_t rows = page_bytes / kv_row_bytes(v4, v4.width);
  return rows > 0 && kv_page_bytes(v4, v4.width, rows) == page_bytes ? rows : 0;
}

static_assert(kv_row_bytes(kv_format_info(KvFormat::kQ8Kv8_576), 576) == 576);
static_assert(kv_row_bytes(kv_format_info(KvFormat::kV32_656), 576) == 656);
static_assert(kv_row_bytes(kv_format_info(KvFormat::kV4_584), 512) == 584);
static_assert(kv_page_bytes(kv_format_info(KvFormat::kV4_584), 512, 64) == 37440 && v4_page_size(37440) == 64);

// ---- scales -------------------------------------------------------------------------------------------------------

// How a quantised row gets its scales. With a the largest finite magnitude under a scale (NaN and Inf are left out):
enum class KvScaling : std::uint8_t {
  kAmax,            // a / 448, rounded to float32, at least 2^-126; 1 where a = 0
  kAmaxPowerOfTwo,  // the least power of two s, at least 2^-126, with a <= 448 s; 1 where a = 0
  kGiven,           // q8kv8_*: the scale that the cache has. Elsewhere: the scales that the call brings
};
// What a call does that does not say: a q8kv8_* cache keeps its scale, since other rows depend on it; v4_584 stores
// exponents only; the others take a / 448.
constexpr KvScaling default_kv_scaling(KvFormat format) noexcept {
  if (format == KvFormat::kV4_584) return KvScaling::kAmaxPowerOfTwo;
  return kv_format_info(format).scale_place == KvScalePlace::kCache ? KvScaling::kGiven : KvScaling::kAmax;
}

}  // namespace sparse_mla
