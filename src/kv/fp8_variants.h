// The 8-bit floats that are not e4m3fn, as a table from each code to the e4m3fn code that stands for it.
#pragma once

#include <array>
#include <cstdint>

#include "sparse_mla/tensor.h"

namespace sparse_mla::kv {

bool is_float8(DType dtype) noexcept;  // a float8 with a sign: e4m3fn, e4m3fnuz, e5m2, e5m2fnuz

// The number that `code` is in a float8 with a sign; NaN and infinities included.
double float8_value(DType dtype, std::uint8_t code) noexcept;

// table[code]: that number divided by `scale` in float32, rounded to the nearest even e4m3fn, saturating; NaN stays NaN.
using CodeTable = std::array<std::uint8_t, 256>;
CodeTable e4m3fn_codes(DType from, float scale);

void translate(const CodeTable& table, const std::uint8_t* from, std::uint8_t* to, std::int64_t count, int threads);

}  // namespace sparse_mla::kv
