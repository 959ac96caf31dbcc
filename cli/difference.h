// How far a result is from what it should be, and whether that is near enough.
#pragma once

#include <cstdint>
#include <string_view>

#include "sparse_mla/attention.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::cli {

// The value `index` elements from the start of float64, float32, bfloat16 or float16 memory. Throws std::runtime_error,
// with the tensor's name, for another dtype.
double value_at(const Tensor& tensor, std::int64_t index, std::string_view name);

// Grows one value at a time. NaN and infinity are compared by position: they count as special and stay out of the sums.
class Difference {
 public:
  void add(double got, double expected);
  void add(const Difference& other);

  std::int64_t count() const { return count_; }
  // Positions where one side is NaN or infinite and the other side is not the same.
  std::int64_t special_mismatches() const { return special_mismatches_; }
  // ||got - expected|| / ||expected|| over the finite values; infinite where only `expected` is all zero.
  double relative() const;
  double max_abs() const { return max_abs_; }
  // Of the angle between the two; 1 where both are zero, 0 where one is.
  double cosine() const;
  // True where there is anything to judge by, positions agree and relative() is at most `tolerance`. A result of zeros
  // or of NaN is never within: an expectation of nothing but zeros and specials judges nothing.
  bool within(double tolerance) const;
  // The same for values whose absolute error counts, such as lse.
  bool within_absolute(double tolerance) const;

 private:
  std::int64_t count_ = 0;
  std::int64_t special_mismatches_ = 0;
  double squared_error_ = 0, squared_got_ = 0, squared_expected_ = 0, product_ = 0, max_abs_ = 0;
};

// ||out - reference|| / ||reference|| that the contract (part C) allows on standard-normal data.
struct Tolerance {
  double out;
  double lse;  // absolute
};
Tolerance prefill_tolerance(Backend backend, std::int64_t d_qk, std::int64_t topk);
Tolerance decode_tolerance();

}  // namespace sparse_mla::cli
