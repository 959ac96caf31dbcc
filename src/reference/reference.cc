#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sparse_mla::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// sign * 2^exponent * mantissa from the fields of a small float format (no NaN, no infinity).
double from_fields(int sign, int exponent, int mantissa, int mantissa_bits, int bias) {
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  return sign != 0 ? -magnitude : magnitude;
}

double decode_e4m3fn(int bits) {
  if ((bits & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  return from_fields(bits >> 7, (bits >> 3) & 15, bits & 7, 3, 7);
}

// A 16-bit IEEE-like format: all ones in the exponent is infinity or NaN.
double decode_16(int bits, int exponent_bits, int mantissa_bits) {
  const int largest = (1 << exponent_bits) - 1;
  const int exponent = (bits >> mantissa_bits) & largest;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent != largest) return from_fields(bits >> 15, exponent, mantissa, mantissa_bits, largest / 2);
  if (mantissa != 0) return std::numeric_limits<double>::quiet_NaN();
  return bits >> 15 != 0 ? -kInfinity : kInfinity;
}

// Element i of an array of `dtype` [6].
double element(const void* data, DType dtype, std::int64_t i) {
  if (dtype == DType::kFloat8E4M3FN) return decode_e4m3fn(static_cast<const std::uint8_t*>(data)[i]);
  const int bits = static_cast<const std::uint16_t*>(data)[i];
  return dtype == DType::kBFloat16 ? decode_16(bits, 8, 7) : decode_16(bits, 5, 10);
}

// Nearest e4m3 number of 0 <= value <= 448, ties to even.
double round_e4m3(double value) {
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(value / step) * step;
}

double exact_p(double p) { return p; }
double e4m3_p(double p) { return round_e4m3(256.0 * p) / 256.0; }

using Row = std::vector<double>;  // d values

struct Attention {
  double max_logit = -kInfinity;
  double lse = kInfinity;
};

// One head of one row, lines 10 to 16. `sink` is -inf where there is none; out has d_v values.
Attention attend(const Row& query, const std::vector<Row>& keys, double sm_scale, double sink, int d_v,
                 double (*round_p)(double), double* out) {
  std::fill(out, out + d_v, 0.0);
  if (keys.empty()) return {};  // [16]
  std::vector<double> s;
  for (const Row& key : keys) {
    double sum = 0;
    for (std::size_t i = 0; i < query.size(); ++i) sum += query[i] * key[i];
    s.push_back(sm_scale * sum);  // [10]
  }
  const double m = *std::max_element(s.begin(), s.end());  // [11]
  double l = 0;
  for (std::size_t t = 0; t < keys.size(); ++t) {
    const double p = std::exp(s[t] - m);
    l += p;  // [12]
    for (int j = 0; j < d_v; ++j) out[j] += round_p(p) * keys[t][j];  // [9]
  }
  const double denominator = l + (sink == -kInfinity ? 0.0 : std::exp(sink - m));        // [14]
  for (int j = 0; j < d_v; ++j) out[j] = sink == kInfinity ? 0.0 : out[j] / denominator;  // [15]
  return {m, m + std::log(l)};                                                            // [13]
}

PrefillResult prefill_rounding_p(const PrefillProblem& p, std::int64_t first_row, std::int64_t row_count,
                                 double (*round_p)(double)) {
  if (row_count < 0) row_count = p.s_q - first_row;
  PrefillResult result;
  result.out.resize(row_count * p.h_q * p.d_v);
  const double q_scale = p.q_scale != nullptr ? *p.q_scale : 1.0;  // [7]
  const double kv_scale = p.kv_scale != nullptr ? *p.kv_scale : 1.0;
  double* out = result.out.data();
  for (std::int64_t row = first_row; row < first_row + row_count; ++row) {
    std::int64_t length = p.topk;
    if (p.topk_length != nullptr) length = std::clamp<std::int64_t>(p.topk_length[row], 0, p.topk);  // [1]
    std::vector<Row> keys;
    for (std::int64_t slot = 0; slot < length; ++slot) {
      const std::int64_t token = p.indices[row * p.indices_row_stride + slot];
      if (token < 0 || token >= p.s_kv) continue;  // [1] [5]
      const std::uint8_t* kv = p.kv + token * p.kv_row_stride;
      Row key;
      for (int i = 0; i < p.d_qk; ++i) key.push_back(decode_e4m3fn(kv[i]) * kv_scale);  // [7]
      keys.push_back(key);
    }
    for (int head = 0; head < p.h_q; ++head, out += p.d_v) {
      const std::uint8_t* q = p.q + row * p.q_row_stride + head * p.q_head_stride;
      Row query;
      for (int i = 0; i < p.d_qk; ++i) query.push_back(decode_e4m3fn(q[i]) * q_scale);  // [7]
      const double sink = p.attn_sink != nullptr ? p.attn_sink[head] : -kInfinity;
      const Attention a = attend(query, keys, p.sm_scale, sink, p.d_v, round_p, out);
      result.max_logits.push_back(a.max_logit);
      result.lse.push_back(a.lse);
    }
  }
  return result;
}

// The tokens of `row` in one pool, lines 2 to 5 and 8.
void append_keys(const PoolProblem& pool, std::int64_t row, int d, std::vector<Row>& keys) {
  if (pool.indptr == nullptr) return;  // [3]
  const std::int64_t begin = std::clamp<std::int64_t>(pool.indptr[row], 0, pool.total_indices);
  const std::int64_t end = std::clamp<std::int64_t>(pool.indptr[row + 1], 0, pool.total_indices);
  for (std::int64_t slot = begin; slot < end; ++slot) {  // [2]
    const std::int64_t page = pool.indices[slot];
    if (page < 0 || page >= pool.total_pages) continue;  // [2] [5]
    Row key;
    for (int i = 0; i < d; ++i) {
      const double scale = pool.kv_scales != nullptr ? pool.kv_scales[page * pool.kv_scales_row_stride + i / 64] : 1.0;
      key.push_back(element(pool.kv, pool.kv_dtype, page * pool.kv_row_stride + i) * scale);  // [8]
    }
    keys.push_back(key);
  }
}

}  // namespace

PrefillResult prefill(const PrefillProblem& problem, std::int64_t first_row, std::int64_t row_count) {
  return prefill_rounding_p(problem, first_row, row_count, exact_p);
}

PrefillResult prefill_with_e4m3_p(const PrefillProblem& problem, std::int64_t first_row, std::int64_t row_count) {
  return prefill_rounding_p(problem, first_row, row_count, e4m3_p);
}

DecodeResult decode(const DecodeProblem& p, std::int64_t first_row, std::int64_t row_count) {
  if (row_count < 0) row_count = p.n - first_row;
  DecodeResult result;
  result.out.resize(row_count * p.h * p.d_v);
  double* out = result.out.data();
  for (std::int64_t row = first_row; row < first_row + row_count; ++row) {
    std::vector<Row> keys;
    append_keys(p.pool, row, p.d, keys);
    append_keys(p.second_pool, row, p.d, keys);  // [3]
    for (int head = 0; head < p.h; ++head, out += p.d_v) {
      Row query;
      for (int i = 0; i < p.d; ++i) {
        query.push_back(element(p.q, p.q_dtype, row * p.q_row_stride + head * p.q_head_stride + i));
      }
      const double sink = p.attn_sink != nullptr ? p.attn_sink[head] : -kInfinity;
      const Attention a = attend(query, keys, p.softmax_scale, sink, p.d_v, exact_p, out);
      result.lse.push_back(a.lse);
    }
  }
  return result;
}

}  // namespace sparse_mla::reference
