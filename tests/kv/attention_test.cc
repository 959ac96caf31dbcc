// Attention over caches that were built here: exactly what the stored numbers give, and within the format's bound of what
// the float rows give.
#include <cmath>

#include <gtest/gtest.h>

#include "dispatch/problems.h"
#include "kv/caches.h"
#include "reference/reference.h"
#include "sparse_mla/attention.h"

namespace sparse_mla::kv_test {
namespace {

constexpr std::int64_t kRows = 300, kQueries = 6;
constexpr int kHeads = 16;

double relative(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

std::vector<double> bf16_values(const std::vector<std::uint16_t>& bits) {
  std::vector<double> values;
  for (std::uint16_t b : bits) values.push_back(bf16_value(b));
  return values;
}

// Attention over plain float64 rows: docs/math.md, with the rows that `keys` names.
std::vector<double> attend(const std::vector<std::vector<double>>& queries, const std::vector<std::vector<double>>& keys,
                           double scale, int d_v) {
  std::vector<double> out;
  for (const auto& query : queries) {
    std::vector<double> s;
    double m = -HUGE_VAL, l = 0;
    for (const auto& key : keys) {
      double sum = 0;
      for (std::size_t i = 0; i < key.size(); ++i) sum += query[i] * key[i];
      s.push_back(scale * sum);
      m = std::max(m, s.back());
    }
    std::vector<double> row(static_cast<std::size_t>(d_v));
    for (std::size_t t = 0; t < keys.size(); ++t) {
      const double p = std::exp(s[t] - m);
      l += p;
      for (int j = 0; j < d_v; ++j) row[j] += p * keys[t][j];
    }
    for (double& value : row) out.push_back(value / l);
  }
  return out;
}

// Rounding each value to e4m3 moves it by at most 2^-4 of it (and by 2^-5.8 of it in the root mean square): what the
// output of attention over many such rows can be off by. A cache that is misread is off by about 1.
constexpr double kFp8Bound = 0.04;
constexpr double kHalfBound = 4e-3;

TEST(AttentionOverCaches, DecodeGivesWhatTheFloatRowsGive) {
  std::mt19937_64 random(20);
  constexpr int kWidth = 512;
  Plain rows(DType::kFloat32, kRows, kWidth), q(DType::kBFloat16, kQueries * kHeads, kWidth);
  rows.fill(random, 0, 0);
  q.fill(random, 0, 0);
  std::vector<std::int32_t> slots(kRows), indptr{0};
  for (std::int64_t i = 0; i < kRows; ++i) slots[i] = static_cast<std::int32_t>(kRows - 1 - i);
  std::vector<std::int32_t> indices;
  for (int n = 0; n < kQueries; ++n) {
    for (int k = 0; k < 40 + 7 * n; ++k) indices.push_back(static_cast<std::int32_t>(random() % kRows));
    indptr.push_back(static_cast<std::int32_t>(indices.size()));
  }
  for (const KvFormat format : {KvFormat::kUnifiedBf16, KvFormat::kUnifiedFp8_1x64}) {
    const KvCache cache({.format = format, .rows = kRows, .width = kWidth});
    cache.append(rows.rows.data, slots_tensor(slots));
    std::vector<std::uint16_t> out(kQueries * kHeads * kWidth, 0x7FFF);
    DecodeCall call;
    call.q = Tensor(q.rows.data.data, DType::kBFloat16, {kQueries, kHeads, kWidth});
    set_decode_kv(call.pool, cache.view());
    call.pool.kv_indices = slots_tensor(indices);
    call.pool.kv_indptr = slots_tensor(indptr);
    call.softmax_scale = 1.0 / std::sqrt(512.0);
    call.out = Tensor(out.data(), DType::kBFloat16, {kQueries, kHeads, kWidth});
    decode(call);
    EXPECT_LT(relative(bf16_values(out), reference::decode(dispatch::decode_problem(call)).out), 3e-3);
    std::vector<double> want;
    for (int n = 0; n < kQueries; ++n) {
      std::vector<std::vector<double>> queries, keys;
      for (int h = 0; h < kHeads; ++h) {
        auto& query = queries.emplace_back();
        for (int i = 0; i < kWidth; ++i) query.push_back(q.get(n * kHeads + h, i));
      }
      for (int k = indptr[n]; k < indptr[n + 1]; ++k) {
        auto& key = keys.emplace_back();
        for (int i = 0; i < kWidth; ++i) key.push_back(rows.get(kRows - 1 - indices[k], i));
      }
      const std::vector<double> part = attend(queries, keys, call.softmax_scale, kWidth);
      want.insert(want.end(), part.begin(), part.end());
    }
    EXPECT_LT(relative(bf16_values(out), want), format == KvFormat::kUnifiedBf16 ? kHalfBound : kFp8Bound);
  }
}

// A paged pool of each format, gathered and requantised, then a prefill over the workspace.
TEST(AttentionOverCaches, PrefillOverAGatheredWorkspaceGivesWhatTheFloatRowsGive) {
  std::mt19937_64 random(21);
  constexpr std::int64_t kTopk = 64;
  for (const int width : {576, 512}) {
    Plain rows(DType::kFloat32, kRows, width), q_rows(DType::kFloat32, kQueries * kHeads, width);
    rows.fill(random, 0, 0);
    q_rows.fill(random, 0, 0);
    const KvFormat q8 = *q8kv8_format(width);
    const KvCache q({.format = q8, .rows = kQueries * kHeads});
    q.append(q_rows.rows.data, std::nullopt, {.scaling = KvScaling::kAmax, .given = {}});
    std::vector<std::int32_t> indices(kQueries * kTopk), remapped(kQueries * kTopk);
    for (auto& index : indices) index = static_cast<std::int32_t>(random() % (kRows + 20)) - 20;
    for (auto& index : indices) index = std::max(index, -1);
    for (const KvFormat format : formats_of_width(width)) {
      if (kv_format_info(format).prefill) continue;
      SCOPED_TRACE(kv_format_name(format));
      const KvCache pool({.format = format, .rows = kRows, .width = width, .page_size = 61});
      pool.append(rows.rows.data, [&] {
        static std::vector<std::int32_t> identity(kRows);
        for (std::int64_t i = 0; i < kRows; ++i) identity[i] = static_cast<std::int32_t>(i);
        return slots_tensor(identity);
      }());
      const KvCache workspace({.format = q8, .rows = kQueries * kTopk});
      *workspace.view().scales.tensor()->as<float>() = 0.01f;
      const Tensor indices_view(indices.data(), DType::kInt32, {kQueries, 1, kTopk});
      const Tensor remapped_view(remapped.data(), DType::kInt32, {kQueries, 1, kTopk});
      kv_transfer(kv_gather_call(pool.view(), indices_view, workspace.view(), remapped_view));
      std::vector<std::uint16_t> out(kQueries * kHeads * 512, 0x7FFF);
      std::vector<float> max_logits(kQueries * kHeads), lse(kQueries * kHeads);
      PrefillCall call;
      call.q = q.view().data;
      call.q = Tensor(call.q.data, call.q.dtype, {kQueries, kHeads, width});
      call.q_scale = q.view().scales;
      set_prefill_kv(call, workspace.view());
      call.indices = remapped_view;
      call.sm_scale = 1.0 / std::sqrt(576.0);
      call.out = Tensor(out.data(), DType::kBFloat16, {kQueries, kHeads, 512});
      call.max_logits = Tensor(max_logits.data(), DType::kFloat32, {kQueries, kHeads});
      call.lse = Tensor(lse.data(), DType::kFloat32, {kQueries, kHeads});
      prefill(call);
      EXPECT_LT(relative(bf16_values(out), reference::prefill(dispatch::prefill_problem(call)).out), 3e-3);
      std::vector<double> want;
      for (std::int64_t n = 0; n < kQueries; ++n) {
        std::vector<std::vector<double>> queries, keys;
        for (int h = 0; h < kHeads; ++h) {
          auto& query = queries.emplace_back();
          for (int i = 0; i < width; ++i) query.push_back(q_rows.get(n * kHeads + h, i));
        }
        for (std::int64_t k = n * kTopk; k < (n + 1) * kTopk; ++k) {
          if (indices[k] < 0) continue;
          auto& key = keys.emplace_back();
          for (int i = 0; i < width; ++i) key.push_back(rows.get(indices[k], i));
        }
        const std::vector<double> part = attend(queries, keys, call.sm_scale, 512);
        want.insert(want.end(), part.begin(), part.end());
      }
      EXPECT_LT(relative(bf16_values(out), want), 2 * kFp8Bound);  // q, the pool and the workspace are rounded
    }
  }
}

}  // namespace
}  // namespace sparse_mla::kv_test
