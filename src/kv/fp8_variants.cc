#include "kv/fp8_variants.h"

#include <cmath>
#include <limits>

#include "base/float_formats.h"
#include "kv/threads.h"

namespace sparse_mla::kv {
namespace {

struct Float8 {
  int mantissa_bits;
  int bias;
  bool has_negative_zero;  // without it ("uz") the code of -0 is the NaN, and the only one
  bool has_infinity;
};

Float8 layout_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat8E4M3FNUZ:
      return {3, 8, false, false};
    case DType::kFloat8E5M2:
      return {2, 15, true, true};
    case DType::kFloat8E5M2FNUZ:
      return {2, 16, false, false};
    default:
      return {3, 7, true, false};
  }
}

}  // namespace

bool is_float8(DType dtype) noexcept {
  return dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E4M3FNUZ || dtype == DType::kFloat8E5M2 ||
         dtype == DType::kFloat8E5M2FNUZ;
}

double float8_value(DType dtype, std::uint8_t code) noexcept {
  const Float8 f = layout_of(dtype);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const int magnitude = code & 0x7F;
  const int mantissa = magnitude & ((1 << f.mantissa_bits) - 1);
  const int exponent = magnitude >> f.mantissa_bits;
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  if (!f.has_negative_zero && code == 0x80) return kNaN;
  if (f.has_infinity && exponent == 31) return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : kNaN;
  if (f.has_negative_zero && !f.has_infinity && magnitude == 0x7F) return kNaN;
  const double fraction = std::ldexp(mantissa, -f.mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - f.bias) : std::ldexp(1.0 + fraction, exponent - f.bias));
}

CodeTable e4m3fn_codes(DType from, float scale) {
  CodeTable table;
  for (int code = 0; code < 256; ++code) {
    const auto value = static_cast<float>(float8_value(from, static_cast<std::uint8_t>(code)));  // exact
    table[code] = e4m3fn_from_float(value / scale);
  }
  return table;
}

void translate(const CodeTable& table, const std::uint8_t* from, std::uint8_t* to, std::int64_t count, int threads) {
  constexpr std::int64_t kChunk = 1 << 16;
  for_each_chunk(count, kChunk, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = table[from[i]];
  });
}

}  // namespace sparse_mla::kv
