// What the examples of the error records run in: each is a change to a valid call or file.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "contract/valid_calls.h"

namespace sparse_mla::catalog_test {

template <class Base>
struct Example {
  using Make = std::unique_ptr<Base> (*)();

  std::string_view slug;
  typename Base::How how;
  Make before;  // null where a record says why there is no such example
  Make after;
};

template <class Base, class Derived>
std::unique_ptr<Base> made() {
  return std::make_unique<Derived>();
}

inline constexpr Device gpu = Device::cuda(0);
inline constexpr Device other_gpu = Device::cuda(1);

}  // namespace sparse_mla::catalog_test
