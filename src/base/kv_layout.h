// What a caller's KvRows hold, read off their shape.
#pragma once

#include <cstdint>
#include <optional>

#include "sparse_mla/kv_cache.h"

namespace sparse_mla {

struct KvExtent {
  std::int64_t rows = 0;
  std::int64_t width = 0;  // D
};

// Rows of a page of v4_584: what the caller says, or what the shape does; 0 where neither makes sense.
std::int64_t v4_rows_per_page(const KvRows& rows) noexcept;
// The width of a row, or nothing where the rank or the row's bytes are not the format's.
std::optional<std::int64_t> kv_width(const KvRows& rows) noexcept;
// Nothing where the shape is not one that the format has.
std::optional<KvExtent> kv_extent(const KvRows& rows) noexcept;
// Whether the shape has a rank that the format has.
bool has_kv_rank(const KvRows& rows) noexcept;
// Elements of a slot list or 0 for None.
std::int64_t kv_slot_count(const Argument& slots) noexcept;
// Rows of a transfer: one for each slot of a list, else one for each row of the source.
std::int64_t kv_transfer_rows(const KvCall& call) noexcept;

}  // namespace sparse_mla
