// Times transfers of cache rows on the CPU and prints one JSON object: seconds and bytes per second, each byte counted once
// read and once written.
//
//   bench_kv [--threads N] [--repeats N] [--rows N]
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sparse_mla/kv_cache.h"

namespace sparse_mla::bench {
namespace {

using nlohmann::json;

struct Options {
  int threads = 0;  // one a core
  int repeats = 7;
  std::int64_t rows = 131072;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const long long value = std::stoll(argv[i + 1]);
    if (word == "--threads") {
      options.threads = static_cast<int>(value);
    } else if (word == "--repeats") {
      options.repeats = static_cast<int>(value);
    } else if (word == "--rows") {
      options.rows = value;
    } else {
      throw std::invalid_argument("unknown option " + word);
    }
  }
  return options;
}

// Plain bf16 rows of standard-normal values: one row's worth of random numbers, shifted from row to row.
std::vector<std::uint16_t> normal_rows(std::int64_t rows, int width) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> numbers(8191);
  for (auto& bits : numbers) {
    const float value = normal(random);
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    bits = static_cast<std::uint16_t>(word >> 16);
  }
  std::vector<std::uint16_t> all(static_cast<std::size_t>(rows * width));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = numbers[i % numbers.size()];
  return all;
}

json timed(const std::string& name, double bytes, const Options& options, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < options.repeats + 1; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  seconds.erase(seconds.begin());
  std::sort(seconds.begin(), seconds.end());
  return {{"name", name},
          {"seconds_best", seconds.front()},
          {"seconds_median", seconds[seconds.size() / 2]},
          {"bytes_per_s", bytes / seconds.front()}};
}

// Append, dequantise and gather of one format.
void bench_format(KvFormat format, int width, const Options& options, json& results) {
  const std::int64_t n = options.rows;
  const KvFormatInfo& info = kv_format_info(format);
  std::vector<std::uint16_t> values = normal_rows(n, width);
  const Tensor plain(values.data(), DType::kBFloat16, {n, width});
  std::vector<std::int32_t> slots(static_cast<std::size_t>(n)), remapped(slots.size());
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(2));
  const Tensor order(slots.data(), DType::kInt32, {n});
  const KvCache cache({.format = format, .rows = n, .width = width});
  const KvCache workspace({.format = *q8kv8_format(width), .rows = n});
  *workspace.view().scales.tensor()->as<float>() = 0.02f;
  const double scales = info.scale_place == KvScalePlace::kTensor ? width / 64 * 4 : 0;
  const double row = static_cast<double>(kv_row_bytes(info, width)) + scales;
  const RunOptions run{.threads = options.threads};
  const std::string name(info.name);
  const double rows = static_cast<double>(n);
  results.push_back(timed("append:" + name, rows * (2 * width + row + 4), options,
                          [&] { cache.append(plain, order, {}, run); }));
  results.push_back(timed("dequantise:" + name, rows * (2 * width + row), options,
                          [&] { cache.dequantise(std::nullopt, plain, run); }));
  const KvCall gather = kv_gather_call(cache.view(), order, workspace.view(),
                                       Tensor(remapped.data(), DType::kInt32, {n}));
  results.push_back(timed("gather:" + name, rows * (row + width + 8), options, [&] { kv_transfer(gather, run); }));
}

}  // namespace
}  // namespace sparse_mla::bench

int main(int argc, char** argv) {
  using namespace sparse_mla;
  try {
    const bench::Options options = bench::parse(argc, argv);
    nlohmann::json results = nlohmann::json::array();
    bench::bench_format(KvFormat::kUnifiedFp8_1x64, 512, options, results);
    bench::bench_format(KvFormat::kV32_656, 576, options, results);
    bench::bench_format(KvFormat::kV4_584, 512, options, results);
    std::cout << nlohmann::json{{"rows", options.rows}, {"results", results}} << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
