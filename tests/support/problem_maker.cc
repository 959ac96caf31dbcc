#include "support/problem_maker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>

#include "base/float_formats.h"

namespace sparse_mla::test {
namespace {

using Data = ProblemName::Data;
using EntryPoint = ProblemName::EntryPoint;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kGap = 32;  // elements between strided rows: 16-byte alignment in every format

// std::mt19937_64 is the same everywhere; the standard distributions are not, so these are spelled out.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t below(std::int64_t bound) { return bound <= 0 ? 0 : static_cast<std::int64_t>(engine_() % bound); }
  bool chance(double probability) { return unit() < probability; }
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  float between(double low, double high) { return static_cast<float>(low + (high - low) * unit()); }
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - unit()));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * unit()));
  }

 private:
  std::mt19937_64 engine_;
};

struct Format {
  DType dtype;
  int bytes() const { return static_cast<int>(bytes_per_element(dtype)); }
  void put(std::uint8_t* to, std::int64_t i, float value) const {
    if (dtype == DType::kFloat8E4M3FN) {
      to[i] = std::isfinite(value) ? e4m3fn_from_float(value) : 0x7F;  // e4m3fn has no infinity
      return;
    }
    const std::uint16_t bits = dtype == DType::kBFloat16 ? bf16_from_float(value) : f16_from_float(value);
    std::memcpy(to + 2 * i, &bits, 2);
  }
};

float poison(std::int64_t i) { return i % 3 == 0 ? kNaN : i % 3 == 1 ? kInfinity : -kInfinity; }

// The direction that queries share and the hot row lies on, in peaked data.
float peak_sign(int i) { return i * 7 % 5 < 2 ? 1.0f : -1.0f; }

float query_value(const ProblemName& name, int i, Random& random) {
  return name.data == Data::kPeak ? peak_sign(i) + 0.25f * random.normal() : random.normal();
}

// [rows][heads][d] in `format`, with gaps where the name says so; returns bytes.
std::vector<std::uint8_t> make_queries(const ProblemName& name, Format format, std::int64_t& row_stride,
                                       std::int64_t& head_stride, Random& random) {
  const int gap = name.strided ? kGap : 0;
  head_stride = name.d + gap;
  row_stride = head_stride * name.heads + gap;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(row_stride * name.rows * format.bytes()));
  for (std::int64_t i = 0; i < row_stride * name.rows; ++i) format.put(bytes.data(), i, kNaN);
  for (std::int64_t row = 0; row < name.rows; ++row) {
    for (int head = 0; head < name.heads; ++head) {
      const std::int64_t at = row * row_stride + head * head_stride;
      for (int i = 0; i < name.d; ++i) format.put(bytes.data(), at + i, query_value(name, i, random));
    }
  }
  return bytes;
}

// `rows` kv rows; those that are not named hold NaN and Inf. Row rows / 2 is the hot one of peaked data.
std::vector<std::uint8_t> make_kv(const ProblemName& name, Format format, std::int64_t rows, std::int64_t& row_stride,
                                  const std::vector<bool>& named, Random& random) {
  row_stride = name.d + (name.strided ? kGap : 0);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(row_stride * rows * format.bytes()));
  std::vector<float> shared(name.d);
  for (float& value : shared) value = random.normal();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < row_stride; ++i) {
      float value = poison(row + i);
      if (named[row] && i < name.d) {
        const bool hot = name.data == Data::kPeak && row == rows / 2;
        value = name.data == Data::kEqual ? shared[i] : hot ? 4.0f * peak_sign(static_cast<int>(i)) : random.normal();
      }
      format.put(bytes.data(), row * row_stride + i, value);
    }
  }
  return bytes;
}

std::int32_t invalid_index(std::int64_t rows, Random& random) {
  const std::int64_t choices[] = {-1, -1, std::numeric_limits<std::int32_t>::min(), -123456, rows, rows + 7,
                                  std::numeric_limits<std::int32_t>::max()};
  return static_cast<std::int32_t>(choices[random.below(std::size(choices))]);
}

// `count` distinct rows (as far as there are so many), then holes, duplicates and the hot row as the name says.
std::vector<std::int32_t> make_list(const ProblemName& name, std::int64_t count, std::int64_t rows, bool all_invalid,
                                    Random& random) {
  std::vector<std::int32_t> list(count);
  const std::int64_t start = random.below(rows), step = 2 * random.below(rows) + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    // A walk with an odd step: distinct where `rows` is a power of two, nearly so otherwise.
    list[i] = rows == 0 ? -1 : static_cast<std::int32_t>((start + i * step) % rows);
  }
  for (std::int64_t i = count - 1; i > 0; --i) std::swap(list[i], list[random.below(i + 1)]);
  if (name.data == Data::kPeak && count > 0) list[random.below(count)] = static_cast<std::int32_t>(rows / 2);
  if (name.duplicates) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (random.chance(0.3)) list[i] = list[random.below(count)];
    }
  }
  if (name.holes) {
    const std::int64_t leading = random.chance(0.3) ? random.below(count + 1) : 0;  // a list that opens with holes
    for (std::int64_t i = 0; i < count; ++i) {
      if (all_invalid || i < leading || random.chance(0.2)) list[i] = invalid_index(rows, random);
    }
  }
  return list;
}

void name_rows(const std::int32_t* list, std::int64_t count, std::vector<bool>& named) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (list[i] >= 0 && list[i] < static_cast<std::int64_t>(named.size())) named[list[i]] = true;
  }
}

float make_scale(const ProblemName& name) {
  const double d = std::max(name.d, 1);
  if (name.data == Data::kWide) return static_cast<float>(33.0 / std::sqrt(d));  // six deviations span 200
  return static_cast<float>(1.0 / std::sqrt(d));
}

std::vector<float> make_sink(const ProblemName& name, Random& random) {
  std::vector<float> sink(name.sink ? name.heads : 0);
  const float near = std::log(static_cast<float>(std::max<std::int64_t>(name.topk, 1))) + 0.5f;
  for (std::size_t head = 0; head < sink.size(); ++head) {
    switch (random.below(8)) {
      case 0: sink[head] = kInfinity; break;
      case 1: sink[head] = -kInfinity; break;
      case 2: sink[head] = 1e4f; break;
      case 3: sink[head] = -1e30f; break;
      case 4: sink[head] = near + 30.0f; break;
      default: sink[head] = near + 2.0f * random.normal(); break;
    }
  }
  return sink;
}

std::int32_t make_length(std::int64_t topk, Random& random) {
  switch (random.below(8)) {
    case 0: return 0;
    case 1: return -5;
    case 2: return static_cast<std::int32_t>(topk + 1 + random.below(1000));
    case 3: return std::numeric_limits<std::int32_t>::max();
    case 4: return static_cast<std::int32_t>(topk);
    default: return static_cast<std::int32_t>(random.below(topk + 1));
  }
}

// Tokens of one pool of a decode problem, `longest` a row.
MadePool make_pool(const ProblemName& name, DType dtype, bool scaled, std::int64_t longest, Random& random) {
  MadePool pool;
  pool.pages = name.kv_rows;
  pool.dtype = dtype;
  pool.indptr.push_back(0);
  std::vector<bool> named(pool.pages);
  const std::int64_t invalid_row = random.below(name.rows);
  for (std::int64_t row = 0; row < name.rows; ++row) {
    const std::int64_t count = !name.lengths ? longest : random.chance(0.15) ? 0 : random.below(longest + 1);
    const std::vector<std::int32_t> list = make_list(name, count, pool.pages, row == invalid_row, random);
    pool.indices.insert(pool.indices.end(), list.begin(), list.end());
    pool.indptr.push_back(static_cast<std::int32_t>(pool.indices.size()));
    name_rows(list.data(), count, named);
  }
  pool.kv = make_kv(name, Format{dtype}, pool.pages, pool.kv_row_stride, named, random);
  if (!scaled) return pool;
  const int groups = name.d / 64;
  pool.scales_row_stride = groups + (name.strided ? 3 : 0);
  for (std::int64_t i = 0; i < pool.pages * pool.scales_row_stride; ++i) {
    const bool used = named[i / pool.scales_row_stride] && i % pool.scales_row_stride < groups;
    const double exponent = name.scale_spread ? random.between(-20, 20) : random.between(-1, 1);
    const float scale = name.data == Data::kEqual ? 0.7f : std::exp2(static_cast<float>(exponent));
    pool.scales.push_back(used ? scale : poison(i));
  }
  return pool;
}

constexpr std::uint16_t kPoison16 = 0x7FC1;  // NaN in bfloat16 and in float16

}  // namespace

MadePrefill::MadePrefill(const ProblemName& wanted) : name(wanted) {
  Random random(name.seed * 2 + 1);
  const Format fp8{DType::kFloat8E4M3FN};
  q = make_queries(name, fp8, q_row_stride, q_head_stride, random);
  indices_row_stride = name.topk + (name.strided ? 5 : 0);
  std::vector<bool> named(name.kv_rows);
  const std::int64_t invalid_row = random.below(name.rows);
  for (std::int64_t row = 0; row < name.rows; ++row) {
    std::vector<std::int32_t> list = make_list(name, name.topk, name.kv_rows, row == invalid_row, random);
    std::int64_t length = name.topk;
    if (name.lengths) {
      topk_length.push_back(make_length(name.topk, random));
      length = std::clamp<std::int64_t>(topk_length.back(), 0, name.topk);
    }
    name_rows(list.data(), length, named);
    list.resize(indices_row_stride, name.kv_rows > 0 ? static_cast<std::int32_t>(name.kv_rows - 1) : -1);
    indices.insert(indices.end(), list.begin(), list.end());
  }
  kv = make_kv(name, fp8, name.kv_rows, kv_row_stride, named, random);
  attn_sink = make_sink(name, random);
  q_scale = random.between(0.5, 2);
  kv_scale = random.between(0.5, 2);
  sm_scale = make_scale(name) / (q_scale * kv_scale);
  out.resize(name.rows * name.heads * name.value_width());
  max_logits.resize(name.rows * name.heads);
  lse.resize(name.rows * name.heads);
  poison_outputs();
}

void MadePrefill::poison_outputs() {
  std::fill(out.begin(), out.end(), kPoison16);
  std::fill(max_logits.begin(), max_logits.end(), kNaN);
  std::fill(lse.begin(), lse.end(), kNaN);
}

PrefillProblem MadePrefill::problem() {
  PrefillProblem p;
  p.s_q = name.rows;
  p.s_kv = name.kv_rows;
  p.topk = name.topk;
  p.h_q = name.heads;
  p.d_qk = name.d;
  p.d_v = name.value_width();
  p.q = q.data();
  p.q_row_stride = q_row_stride;
  p.q_head_stride = q_head_stride;
  p.kv = kv.data();
  p.kv_row_stride = kv_row_stride;
  p.indices = indices.data();
  p.indices_row_stride = indices_row_stride;
  p.topk_length = name.lengths ? topk_length.data() : nullptr;
  p.attn_sink = name.sink ? attn_sink.data() : nullptr;
  p.q_scale = &q_scale;
  p.kv_scale = &kv_scale;
  p.sm_scale = sm_scale;
  p.out = out.data();
  p.max_logits = max_logits.data();
  p.lse = lse.data();
  return p;
}

PoolProblem MadePool::problem() const {
  PoolProblem p;
  p.total_pages = pages;
  p.kv_dtype = dtype;
  p.kv = kv.data();
  p.kv_row_stride = kv_row_stride;
  p.kv_scales = scales.empty() ? nullptr : scales.data();
  p.kv_scales_row_stride = scales_row_stride;
  p.indices = indices.data();
  p.total_indices = static_cast<std::int64_t>(indices.size());
  p.indptr = indptr.data();
  return p;
}

MadeDecode::MadeDecode(const ProblemName& wanted) : name(wanted) {
  Random random(name.seed * 2);
  const Format q_format{name.float16 ? DType::kFloat16 : DType::kBFloat16};
  const std::vector<std::uint8_t> bytes = make_queries(name, q_format, q_row_stride, q_head_stride, random);
  q.resize(bytes.size() / 2);
  if (!bytes.empty()) std::memcpy(q.data(), bytes.data(), bytes.size());
  const bool fp8 = name.kv_format == ProblemName::KvFormat::kFp8;
  const DType kv_dtype = fp8 ? DType::kFloat8E4M3FN : q_format.dtype;
  pool = make_pool(name, kv_dtype, fp8, name.topk, random);
  if (name.second_pool) second_pool = make_pool(name, kv_dtype, fp8, name.topk / 2, random);
  attn_sink = make_sink(name, random);
  // With spread scales the largest of them sets the size of the logits: keep these of order 10.
  softmax_scale = make_scale(name) * (fp8 && name.scale_spread ? 0x1.0p-17f : 1.0f);
  out.resize(name.rows * name.heads * name.value_width());
  lse.resize(name.rows * name.heads);
  poison_outputs();
}

void MadeDecode::poison_outputs() {
  std::fill(out.begin(), out.end(), kPoison16);
  std::fill(lse.begin(), lse.end(), kNaN);
}

DecodeProblem MadeDecode::problem() {
  DecodeProblem p;
  p.n = name.rows;
  p.h = name.heads;
  p.d = name.d;
  p.d_v = name.value_width();
  p.q_dtype = name.float16 ? DType::kFloat16 : DType::kBFloat16;
  p.q = q.data();
  p.q_row_stride = q_row_stride;
  p.q_head_stride = q_head_stride;
  p.pool = pool.problem();
  if (name.second_pool) p.second_pool = second_pool.problem();
  p.attn_sink = name.sink ? attn_sink.data() : nullptr;
  p.softmax_scale = softmax_scale;
  p.out = out.data();
  p.lse = lse.data();
  return p;
}

namespace {

void random_flags(ProblemName& name, Random& random) {
  name.sink = random.chance(0.5);
  name.lengths = random.chance(0.5);
  name.holes = random.chance(0.5);
  name.duplicates = random.chance(0.3);
  name.strided = random.chance(0.4);
  const Data data[] = {Data::kNormal, Data::kNormal, Data::kNormal, Data::kWide, Data::kPeak, Data::kEqual};
  name.data = data[random.below(std::size(data))];
  name.rows = 1 + random.below(4);
  name.kv_rows = random.chance(0.2) ? 1 + random.below(20) : 20 + random.below(400);
  name.topk = random.chance(0.3) ? 1 + random.below(40) : 1 + random.below(300);
  const int heads[] = {1, 2, 3, 7, 8, 16, 17, 31, 32, 48, 64, 128};
  name.heads = heads[random.below(std::size(heads))];
}

}  // namespace

ProblemName random_prefill_name(std::uint64_t seed) {
  Random random(seed);
  ProblemName name;
  name.seed = seed;
  random_flags(name, random);
  const int widths[] = {512, 576, 576, 64, 128, 16, 1, 5, 33, 100, 321};
  name.d = widths[random.below(std::size(widths))];
  if (random.chance(0.3)) name.d_v = 1 + static_cast<int>(random.below(std::min(name.d, 512)));
  return name;
}

ProblemName random_decode_name(std::uint64_t seed) {
  Random random(seed);
  ProblemName name;
  name.entry_point = EntryPoint::kDecode;
  name.seed = seed;
  random_flags(name, random);
  name.float16 = random.chance(0.4);
  const bool fp8 = random.chance(0.5);
  name.kv_format = fp8 ? ProblemName::KvFormat::kFp8 : ProblemName::KvFormat::kLikeQ;
  name.scale_spread = fp8 && random.chance(0.3);
  name.second_pool = random.chance(0.3);
  const int widths[] = {64, 128, 192, 512, 576};
  const int odd_widths[] = {1, 8, 33, 100, 512};
  name.d = fp8 ? widths[random.below(std::size(widths))] : odd_widths[random.below(std::size(odd_widths))];
  if (random.chance(0.3)) name.d_v = 1 + static_cast<int>(random.below(name.d));
  return name;
}

}  // namespace sparse_mla::test
