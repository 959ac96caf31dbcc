// What the tests of the KV cache share: float formats straight from their formulas, in double; the bytes of every format
// read by literal offsets, as docs/kv-formats.md draws them; caches in host memory with views of every shape.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "sparse_mla/kv_cache.h"

namespace sparse_mla::kv_test {

// ---- formulas -------------------------------------------------------------------------------------------------------

double e4m3_value(std::uint8_t code);
double bf16_value(std::uint16_t bits);
double f16_value(std::uint16_t bits);
// The code whose value is nearest, of two the even one; found by looking at all of them. NaN gives 0x7F.
std::uint8_t nearest_e4m3(double value);
std::uint16_t nearest_bf16(float value);

// ---- rows -----------------------------------------------------------------------------------------------------------

// Value i of a slot, whatever the format; plain rows too. Host memory.
double value_at(const KvRows& rows, std::int64_t slot, int i);
// The scale that value i of a slot has; 1 where it has none.
double scale_at(const KvRows& rows, std::int64_t slot, int i);

// A cache of `rows` rows in memory of its own, with a view as awkward as the format allows: rows or pages further apart
// than they need be, and pages of `page_size` rows. All bytes are `fill` at first.
struct Cache {
  Cache(KvFormat format, std::int64_t rows, int width, std::int64_t page_size = 1, std::uint8_t fill = 0xFF);
  std::vector<std::byte> data;
  std::vector<float> scales;
  KvRows rows;
  std::int64_t count;  // rows, whole pages of them
  int width;
};

// Plain rows of one dtype; `gap` elements between rows.
struct Plain {
  Plain(DType dtype, std::int64_t rows, int width, std::int64_t gap = 0);
  // Standard-normal values times 2^U(low, high), one exponent a row and block of 64.
  void fill(std::mt19937_64& random, int low, int high);
  void set(std::int64_t row, int i, float value);
  double get(std::int64_t row, int i) const { return value_at(rows, row, i); }
  std::vector<std::byte> data;
  KvRows rows;
};

Tensor slots_tensor(std::vector<std::int32_t>& slots);
Tensor slots_tensor(std::vector<std::int64_t>& slots);

// The error that quantising may make of a value x under scale s: half a step of e4m3 there, times s, or what is past
// 448 s; for 16-bit rows half a step of those. `front` tells a scaled value from one of the bf16 tail.
double quantisation_bound(const KvRows& rows, double x, double s, bool front);
// True for the values of a row that e4m3 holds.
bool is_front(const KvRows& rows, int i);

// Formats whose rows have `width` values.
std::vector<KvFormat> formats_of_width(int width);
std::string name_of(const KvRows& rows);

}  // namespace sparse_mla::kv_test
