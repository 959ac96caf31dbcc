#include "cli/case.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>

#include "base/float_formats.h"

namespace sparse_mla::cli {
namespace {

constexpr float kLargestE4M3 = 448.0f;
constexpr std::int64_t kGroup = 64;  // values that share a scale

// The same numbers from the same seed with every standard library. SplitMix64; Box-Muller.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound).
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(bound));
  }

  float normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const float radius = std::sqrt(-2.0f * std::log(unit()));
    const float angle = 2.0f * std::numbers::pi_v<float> * unit();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  float unit() { return (static_cast<float>(bits() >> 40) + 0.5f) * 0x1p-24f; }  // in (0, 1)

  std::uint64_t state_;
  float spare_ = 0;
  bool has_spare_ = false;
};

std::size_t elements(std::initializer_list<std::int64_t> sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 33;
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0) throw std::invalid_argument("a size must be at least 0, got " + std::to_string(size));
    if (size != 0 && count > kMost / size) throw std::invalid_argument("the shape has a tensor of over 2^33 elements");
    count *= size;
  }
  return static_cast<std::size_t>(count);
}

std::vector<float> normals(std::size_t count, Random& random) {
  std::vector<float> values(count);
  for (float& value : values) value = random.normal();
  return values;
}

// Codes of the values divided by the scale that puts the largest magnitude at 448, and that scale.
float quantise(std::span<const float> values, std::span<std::uint8_t> codes) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = largest > 0 ? largest / kLargestE4M3 : 1.0f;
  for (std::size_t i = 0; i < values.size(); ++i) codes[i] = e4m3fn_from_float(values[i] / scale);
  return scale;
}

std::uint16_t narrowed(float value, DType dtype) {
  return dtype == DType::kFloat16 ? f16_from_float(value) : bf16_from_float(value);
}

// Draws distinct numbers below `population`: a shuffle that stops early and is taken up again by the next row.
class Sampler {
 public:
  explicit Sampler(std::int64_t population) : order_(elements({population})) {
    if (population > std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument("an index is 32 bits wide: at most 2147483647 tokens, got " +
                                  std::to_string(population));
    }
    std::iota(order_.begin(), order_.end(), 0);
  }

  void draw(std::span<std::int32_t> out, Random& random) {
    const std::size_t distinct = std::min(out.size(), order_.size());
    for (std::size_t i = 0; i < distinct; ++i) {
      const auto other = i + static_cast<std::size_t>(random.below(static_cast<std::int64_t>(order_.size() - i)));
      std::swap(order_[i], order_[other]);
      out[i] = order_[i];
    }
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(distinct), out.end(), -1);
  }

 private:
  std::vector<std::int32_t> order_;
};

}  // namespace

PrefillCase::PrefillCase(const PrefillShape& s, std::uint64_t seed)
    : q_(elements({s.s_q, s.h_q, s.d_qk})), kv_(elements({s.s_kv, s.d_qk})), indices_(elements({s.s_q, s.topk})) {
  Random random(seed);
  q_scale_ = quantise(normals(q_.size(), random), q_);
  kv_scale_ = quantise(normals(kv_.size(), random), kv_);
  Sampler sampler(s.s_kv);
  const auto topk = static_cast<std::size_t>(s.topk);
  for (std::size_t begin = 0; begin < indices_.size(); begin += topk) {
    sampler.draw(std::span(indices_).subspan(begin, topk), random);
  }
  call_.q = Tensor(q_.data(), DType::kFloat8E4M3FN, {s.s_q, s.h_q, s.d_qk});
  call_.kv = Tensor(kv_.data(), DType::kFloat8E4M3FN, {s.s_kv, 1, s.d_qk});
  call_.indices = Tensor(indices_.data(), DType::kInt32, {s.s_q, 1, s.topk});
  call_.q_scale = Tensor(&q_scale_, DType::kFloat32, {1});
  call_.kv_scale = Tensor(&kv_scale_, DType::kFloat32, {1});
  call_.sm_scale = 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(s.d_qk, 1)));
  call_.d_v = s.d_v;
  if (s.lengths || s.sink) {
    for (std::int64_t row = 0; row < s.s_q; ++row) {
      topk_length_.push_back(static_cast<std::int32_t>(s.lengths ? random.below(s.topk + 1) : s.topk));
    }
    call_.topk_length = Tensor(topk_length_.data(), DType::kInt32, {s.s_q});
  }
  if (s.sink) {
    attn_sink_ = normals(elements({s.h_q}), random);
    call_.attn_sink = Tensor(attn_sink_.data(), DType::kFloat32, {s.h_q});
  }
}

DecodeCase::DecodeCase(const DecodeShape& s, std::uint64_t seed) : q_(elements({s.n, s.h, s.d})) {
  Random random(seed);
  for (std::uint16_t& value : q_) value = narrowed(random.normal(), s.q_dtype);
  const std::vector<float> pool = normals(elements({s.pages, s.d}), random);
  call_.q = Tensor(q_.data(), s.q_dtype, {s.n, s.h, s.d});
  if (s.fp8) {
    fp8_kv_.resize(pool.size());
    for (std::size_t begin = 0; begin < pool.size(); begin += kGroup) {
      const std::size_t size = std::min<std::size_t>(kGroup, pool.size() - begin);
      kv_scales_.push_back(quantise(std::span(pool).subspan(begin, size), std::span(fp8_kv_).subspan(begin, size)));
    }
    call_.pool.unified_kv = Tensor(fp8_kv_.data(), DType::kFloat8E4M3FN, {s.pages, s.d});
    call_.pool.kv_scales = Tensor(kv_scales_.data(), DType::kFloat32, {s.pages, s.d / kGroup});
  } else {
    for (const float value : pool) wide_kv_.push_back(narrowed(value, s.q_dtype));
    call_.pool.unified_kv = Tensor(wide_kv_.data(), s.q_dtype, {s.pages, s.d});
  }
  Sampler sampler(s.pages);
  if (elements({s.n, s.tokens}) > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw std::invalid_argument("kv_indptr is 32 bits wide: at most 2147483647 slots in all");
  }
  indptr_.push_back(0);
  for (std::int64_t row = 0; row < s.n; ++row) {
    const std::size_t begin = indices_.size();
    indices_.resize(begin + static_cast<std::size_t>(s.ragged ? random.below(s.tokens + 1) : s.tokens));
    sampler.draw(std::span(indices_).subspan(begin), random);
    indptr_.push_back(static_cast<std::int32_t>(indices_.size()));
  }
  attn_sink_ = normals(elements({s.h}), random);
  call_.pool.kv_indices = Tensor(indices_.data(), DType::kInt32, {static_cast<std::int64_t>(indices_.size())});
  call_.pool.kv_indptr = Tensor(indptr_.data(), DType::kInt32, {s.n + 1});
  call_.attn_sink = Tensor(attn_sink_.data(), DType::kFloat32, {s.h});
  call_.softmax_scale = 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(s.d, 1)));
}

}  // namespace sparse_mla::cli
