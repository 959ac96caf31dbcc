#include "kv/caches.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_formats.h"

namespace sparse_mla::kv_test {
namespace {

double from_fields(bool negative, int exponent, int mantissa, int mantissa_bits, int bias) {
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  return negative ? -magnitude : magnitude;
}

double half_value(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int largest = (1 << exponent_bits) - 1;
  const int exponent = (bits >> mantissa_bits) & largest;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == largest) {
    if (mantissa != 0) return std::numeric_limits<double>::quiet_NaN();
    return bits >> 15 != 0 ? -HUGE_VAL : HUGE_VAL;
  }
  return from_fields(bits >> 15 != 0, exponent, mantissa, mantissa_bits, largest / 2);
}

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

std::uint8_t code(const std::byte* from) { return static_cast<std::uint8_t>(*from); }

const std::byte* row_start(const KvRows& rows, std::int64_t slot) {
  const Tensor& data = rows.data;
  const auto element = static_cast<std::int64_t>(bytes_per_element(data.dtype));
  if (data.rank == 2) return data.as<std::byte>() + slot * data.strides[0] * element;
  const std::int64_t page = slot / data.shape[1];
  return data.as<std::byte>() + (page * data.strides[0] + slot % data.shape[1] * data.strides[1]) * element;
}

// v4_584: a page, the row in it, and the page's rows.
struct V4Place {
  const std::byte* page;
  std::int64_t row;
  std::int64_t page_size;
};
V4Place v4_place(const KvRows& rows, std::int64_t slot) {
  return {rows.data.as<std::byte>() + slot / rows.page_size * rows.data.strides[0], slot % rows.page_size,
          rows.page_size};
}

double plain_value(DType dtype, const std::byte* row, int i) {
  if (dtype == DType::kBFloat16) return bf16_value(read<std::uint16_t>(row + 2 * i));
  if (dtype == DType::kFloat16) return f16_value(read<std::uint16_t>(row + 2 * i));
  return read<float>(row + 4 * i);
}

}  // namespace

double e4m3_value(std::uint8_t code) {
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  return from_fields((code & 0x80) != 0, (code >> 3) & 15, code & 7, 3, 7);
}
double bf16_value(std::uint16_t bits) { return half_value(bits, 8, 7); }
double f16_value(std::uint16_t bits) { return half_value(bits, 5, 10); }

std::uint8_t nearest_e4m3(double value) {
  static const std::vector<double> kMagnitudes = [] {
    std::vector<double> magnitudes;
    for (int c = 0; c < 0x7F; ++c) magnitudes.push_back(e4m3_value(static_cast<std::uint8_t>(c)));
    return magnitudes;
  }();
  if (std::isnan(value)) return 0x7F;
  const double magnitude = std::fabs(value);
  int best = 0;
  for (int c = 1; c < 0x7F; ++c) {
    const double here = std::fabs(kMagnitudes[c] - magnitude);
    const double there = std::fabs(kMagnitudes[best] - magnitude);
    if (here < there || (here == there && c % 2 == 0)) best = c;
  }
  if (magnitude >= 448) best = 0x7E;  // also where the distances are infinite
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

std::uint16_t nearest_bf16(float value) {
  // Between a float's two bf16 neighbours: the truncated one and the next away from zero.
  const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  if (std::isnan(value)) return 0x7FC0;
  if (std::isinf(value)) return low;
  const auto high = static_cast<std::uint16_t>(low + 1);
  const double to_low = std::fabs(double{value} - bf16_value(low));
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(value == 0 ? 1e-40f : value), -126) - 7);
  const double to_high = ulp - to_low;
  if (to_low == to_high) return low % 2 == 0 ? low : high;
  return to_low < to_high ? low : high;
}

double value_at(const KvRows& rows, std::int64_t slot, int i) {
  if (!rows.format) return plain_value(rows.data.dtype, row_start(rows, slot), i);
  switch (*rows.format) {
    case KvFormat::kUnifiedBf16:
    case KvFormat::kUnifiedFp16:
      return plain_value(rows.data.dtype, row_start(rows, slot), i);
    case KvFormat::kV32_656:
      if (i >= 512) return bf16_value(read<std::uint16_t>(row_start(rows, slot) + 528 + 2 * (i - 512)));
      break;
    case KvFormat::kV4_584: {
      const V4Place at = v4_place(rows, slot);
      if (i >= 448) return bf16_value(read<std::uint16_t>(at.page + at.row * 576 + 448 + 2 * (i - 448)));
      return e4m3_value(code(at.page + at.row * 576 + i)) * scale_at(rows, slot, i);
    }
    default:
      break;
  }
  return e4m3_value(code(row_start(rows, slot) + i)) * scale_at(rows, slot, i);
}

double scale_at(const KvRows& rows, std::int64_t slot, int i) {
  if (!rows.format || !is_front(rows, i)) return 1.0;
  switch (*rows.format) {
    case KvFormat::kQ8Kv8_576:
    case KvFormat::kQ8Kv8_512:
      return *rows.scales.tensor()->as<float>();
    case KvFormat::kUnifiedFp8_1x64: {
      const Tensor& scales = *rows.scales.tensor();
      return scales.as<float>()[slot * scales.strides[0] + i / 64];
    }
    case KvFormat::kV32_656:
      return read<float>(row_start(rows, slot) + 512 + 4 * (i / 128));
    case KvFormat::kV4_584: {
      const V4Place at = v4_place(rows, slot);
      return std::ldexp(1.0, code(at.page + at.page_size * 576 + at.row * 8 + i / 64) - 127);
    }
    default:
      return 1.0;
  }
}

Cache::Cache(KvFormat format, std::int64_t wanted, int row_width, std::int64_t page_size, std::uint8_t fill)
    : width(row_width) {
  const std::int64_t pages = (wanted + page_size - 1) / page_size;
  count = pages * page_size;
  rows.format = format;
  constexpr std::int64_t kGap = 32;  // bytes
  auto place = [&](std::int64_t bytes, DType dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    data.assign(static_cast<std::size_t>(bytes) + 16, std::byte{fill});
    auto address = reinterpret_cast<std::uintptr_t>(data.data());
    rows.data = Tensor(data.data() + (16 - address % 16) % 16, dtype, shape, strides, Device::cpu());
  };
  if (format == KvFormat::kV4_584) {
    const std::int64_t page_bytes = (584 * page_size + 575) / 576 * 576;
    rows.page_size = page_size;
    place(pages * (page_bytes + 576), DType::kUInt8, {pages, page_bytes}, {page_bytes + 576, 1});
    return;
  }
  const bool is_half = format == KvFormat::kUnifiedBf16 || format == KvFormat::kUnifiedFp16;
  const std::int64_t element = is_half ? 2 : 1;
  const std::int64_t values = format == KvFormat::kV32_656 ? 656 : width;
  const DType dtype = format == KvFormat::kUnifiedBf16   ? DType::kBFloat16
                      : format == KvFormat::kUnifiedFp16 ? DType::kFloat16
                      : format == KvFormat::kV32_656     ? DType::kUInt8
                                                         : DType::kFloat8E4M3FN;
  const std::int64_t row_step = values + kGap / element;
  const std::int64_t page_step = row_step * page_size + kGap / element;
  if (page_size == 1) {
    place(count * row_step * element, dtype, {count, values}, {row_step, 1});
  } else {
    place(pages * page_step * element, dtype, {pages, page_size, values}, {page_step, row_step, 1});
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (format == KvFormat::kUnifiedFp8_1x64) {
    const std::int64_t groups = width / 64;
    scales.assign(static_cast<std::size_t>(count * (groups + 3)), nan);
    const std::vector<std::int64_t> shape{count, groups}, strides{groups + 3, 1};
    rows.scales = Tensor(scales.data(), DType::kFloat32, shape, strides, Device::cpu());
  } else if (!is_half && format != KvFormat::kV32_656) {
    scales.assign(1, 1.0f);
    rows.scales = Tensor(scales.data(), DType::kFloat32, {1});
  }
}

Plain::Plain(DType dtype, std::int64_t count, int width, std::int64_t gap) {
  const auto element = static_cast<std::int64_t>(bytes_per_element(dtype));
  data.assign(static_cast<std::size_t>(count * (width + gap) * element) + 16, std::byte{0xFF});
  const auto address = reinterpret_cast<std::uintptr_t>(data.data());
  const std::vector<std::int64_t> shape{count, width}, strides{width + gap, 1};
  rows.data = Tensor(data.data() + (16 - address % 16) % 16, dtype, shape, strides, Device::cpu());
}

void Plain::set(std::int64_t row, int i, float value) {
  std::byte* at = rows.data.as<std::byte>() +
                  (row * rows.data.strides[0] + i) * static_cast<std::int64_t>(bytes_per_element(rows.data.dtype));
  if (rows.data.dtype == DType::kFloat32) {
    std::memcpy(at, &value, 4);
    return;
  }
  const std::uint16_t bits = rows.data.dtype == DType::kBFloat16 ? bf16_from_float(value) : f16_from_float(value);
  std::memcpy(at, &bits, 2);
}

void Plain::fill(std::mt19937_64& random, int low, int high) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(static_cast<float>(low), static_cast<float>(high));
  for (std::int64_t row = 0; row < rows.data.shape[0]; ++row) {
    float factor = 1.0f;
    for (int i = 0; i < rows.data.shape[1]; ++i) {
      if (i % 64 == 0) factor = std::exp2(exponent(random));
      set(row, i, factor * normal(random));
    }
  }
}

Tensor slots_tensor(std::vector<std::int32_t>& slots) {
  return Tensor(slots.data(), DType::kInt32, {static_cast<std::int64_t>(slots.size())});
}
Tensor slots_tensor(std::vector<std::int64_t>& slots) {
  return Tensor(slots.data(), DType::kInt64, {static_cast<std::int64_t>(slots.size())});
}

bool is_front(const KvRows& rows, int i) {
  if (rows.format == KvFormat::kV32_656) return i < 512;
  if (rows.format == KvFormat::kV4_584) return i < 448;
  return rows.format && *rows.format != KvFormat::kUnifiedBf16 && *rows.format != KvFormat::kUnifiedFp16;
}

double quantisation_bound(const KvRows& rows, double x, double s, bool front) {
  if (!front) {
    const bool is_f16 = rows.data.dtype == DType::kFloat16;
    if (rows.data.dtype == DType::kFloat32) return std::fabs(x) * 0x1p-24;
    // Half of the least step below the normal numbers.
    return std::max(std::fabs(x) * (is_f16 ? 0x1p-11 : 0x1p-8), is_f16 ? 0x1p-25 : 0x1p-134);
  }
  const double scaled = std::fabs(x) / s;
  const double past_the_end = std::max(scaled - 448.0, 0.0);
  // Half a step is 2^-4 of a normal number and 2^-10 below; one float32 rounding of the quotient comes on top.
  return s * (std::max({scaled * 0x1p-4, 0x1p-10, past_the_end}) * (1 + 0x1p-20));
}

std::vector<KvFormat> formats_of_width(int width) {
  std::vector<KvFormat> formats;
  for (const KvFormatInfo& info : kKvFormats) {
    if (info.width == width || info.width == 0) formats.push_back(info.format);
  }
  return formats;
}

std::string name_of(const KvRows& rows) {
  return rows.format ? std::string(kv_format_name(*rows.format)) : std::string(torch_name(rows.data.dtype));
}

}  // namespace sparse_mla::kv_test
