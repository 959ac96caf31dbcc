// A transfer of cache rows as backends compute it: plain pointers and sizes, made from a call that has passed its checks.
// Row i is read from slot source_slots[i] (or i) and written to slot target_slots[i] (or first_row + i).
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparse_mla/kv_formats.h"
#include "sparse_mla/tensor.h"

namespace sparse_mla {

// Where the parts of each row are. Slot s is row s % page_size of page s / page_size.
struct KvPlaces {
  DType dtype = DType::kBFloat16;  // of the front: bf16, fp16, float32, or e4m3fn
  std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t page_size = 1;   // > 0; 1 where rows are evenly spaced
  std::int64_t page_bytes = 0;  // from page to page
  std::int64_t row_bytes = 0;   // from row to row of a page
  int tail = 0;                 // bf16 values of a row, besides its e4m3 ones
  int tail_offset = 0;          // bytes from a row's start to them

  // e4m3fn only. Scale k of slot s is at scales + page * scale_page_bytes + row * scale_row_bytes + k * its size, and
  // is that of values [k * group, (k + 1) * group).
  std::byte* scales = nullptr;  // null: every scale is 1
  std::int64_t scale_page_bytes = 0;
  std::int64_t scale_row_bytes = 0;
  int group = 0;                     // 64 or 128; 0: one scale for all rows
  bool scales_are_exponents = false;  // bytes, UE8M0; else float32
  bool scales_have_pad = false;       // a byte behind a row's scales, written as 0

  bool is_fp8() const noexcept { return dtype == DType::kFloat8E4M3FN; }
  // The target has one scale, and the rule makes it anew from the rows of the transfer.
  bool makes_one_scale(KvScaling scaling) const noexcept {
    return is_fp8() && group == 0 && scaling != KvScaling::kGiven;
  }
  std::int64_t offset_of(std::int64_t slot) const noexcept {
    return slot / page_size * page_bytes + slot % page_size * row_bytes;
  }
  std::int64_t scale_offset_of(std::int64_t slot) const noexcept {
    return slot / page_size * scale_page_bytes + slot % page_size * scale_row_bytes;
  }
};

struct KvSlots {
  const void* data = nullptr;  // int32 or int64; null: the identity
  bool wide = false;           // int64
};

struct KvTransferProblem {
  std::int64_t count = 0;  // rows of the transfer
  int width = 0;           // D, a multiple of 64
  KvPlaces source;
  KvPlaces target;
  KvSlots source_slots;
  KvSlots target_slots;
  std::int64_t first_row = 0;        // of the target, without target_slots
  std::int32_t* remapped = nullptr;  // [count] or null
  KvScaling scaling = KvScaling::kAmax;
  const float* given_scales = nullptr;  // [count, scales of a row], kGiven with a group
  std::int64_t given_row_stride = 0;
  bool copies_codes = false;  // both sides have one layout: codes and scales pass as they are
  bool unique_target_slots = false;
};

}  // namespace sparse_mla
