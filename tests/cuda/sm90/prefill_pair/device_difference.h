// Compares device memory where it lies: 200 results of half a gigabyte are too much to copy back.
#pragma once

#include <cstddef>

namespace sparse_mla::test {

// How many 4-byte words of `large` differ from `small`, repeated. Sizes are multiples of 4 bytes; `counter` is 8 bytes
// of device memory. All ones where CUDA fails.
unsigned long long device_differences(const void* large, std::size_t large_bytes, const void* small,
                                      std::size_t small_bytes, void* counter, void* stream);

}  // namespace sparse_mla::test
