// A ring of slots that a producer fills and consumers empty, block after block.
#pragma once

#include <cstdint>

#include "cuda/host_device.h"

namespace sparse_mla::cuda {

// Where block `block` (0, 1, 2, ... over a CTA's whole life) lives, and the parities its waiters give to mbarrier waits.
template <int kSlots>
struct RingPosition {
  static_assert(kSlots >= 1, "a ring needs at least one slot");
  std::uint32_t slot;
  std::uint32_t lap;

  SPARSE_MLA_HOST_DEVICE constexpr explicit RingPosition(std::uint32_t block)
      : slot(block % kSlots), lap(block / kSlots) {}
  // The parity that a reader of the block waits for on the slot's "full" barrier.
  SPARSE_MLA_HOST_DEVICE constexpr std::uint32_t full_parity() const { return lap & 1; }
  // The parity that the writer of the block waits for on the slot's "empty" barrier; the first lap passes at once.
  SPARSE_MLA_HOST_DEVICE constexpr std::uint32_t empty_parity() const { return (lap & 1) ^ 1; }
};

}  // namespace sparse_mla::cuda
