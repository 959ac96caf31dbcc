// Compares device memory where it lies: 200 results of half a gigabyte are too much to copy back.
#pragma once

#include <cstddef>

namespace sparse_mla::test {

// How many 4-byte words of the two buffers differ. `counter` is 8 bytes of device memory; `bytes` a multiple of 4.
unsigned long long device_differences(const void* a, const void* b, std::size_t bytes, void* counter, void* stream);

}  // namespace sparse_mla::test
