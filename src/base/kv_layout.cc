#include "base/kv_layout.h"

namespace sparse_mla {
namespace {

bool is_row_width(std::int64_t values) noexcept {
  return values > 0 && values % kKvWidthMultiple == 0 && values <= kMaxKvWidth;
}

bool is_v4(const KvRows& rows) noexcept { return rows.format && kv_format_info(*rows.format).is_paged(); }

}  // namespace

bool has_kv_rank(const KvRows& rows) noexcept {
  const int rank = rows.data.rank;
  return rank == 2 || (rank == 3 && rows.format && !is_v4(rows));
}

std::int64_t v4_rows_per_page(const KvRows& rows) noexcept {
  if (rows.data.rank != 2) return 0;
  const std::int64_t bytes = rows.data.shape[1];
  if (rows.page_size == 0) return v4_page_size(bytes);
  const KvFormatInfo& v4 = kv_format_info(KvFormat::kV4_584);
  const bool fits = rows.page_size > 0 && rows.page_size <= bytes / kv_row_bytes(v4, v4.width) &&
                    kv_page_bytes(v4, v4.width, rows.page_size) <= bytes;
  return fits ? rows.page_size : 0;
}

std::optional<std::int64_t> kv_width(const KvRows& rows) noexcept {
  if (!has_kv_rank(rows)) return std::nullopt;
  const std::int64_t last = rows.data.shape[rows.data.rank - 1];
  if (!rows.format || kv_format_info(*rows.format).width == 0) {
    return is_row_width(last) ? std::optional(last) : std::nullopt;
  }
  const KvFormatInfo& info = kv_format_info(*rows.format);
  if (info.is_paged() || last == kv_row_bytes(info, info.width)) return info.width;
  return std::nullopt;
}

std::optional<KvExtent> kv_extent(const KvRows& rows) noexcept {
  const std::optional<std::int64_t> width = kv_width(rows);
  if (!width) return std::nullopt;
  std::int64_t per_page = 1;
  if (is_v4(rows)) {
    per_page = v4_rows_per_page(rows);
    if (per_page == 0) return std::nullopt;
  } else if (rows.data.rank == 3) {
    per_page = rows.data.shape[1];
  }
  std::int64_t count = 0;
  if (__builtin_mul_overflow(rows.data.shape[0], per_page, &count) || count < 0) return std::nullopt;
  return KvExtent{count, *width};
}

std::int64_t kv_slot_count(const Argument& slots) noexcept {
  const Tensor* tensor = slots.tensor();
  return tensor == nullptr ? 0 : tensor->elements();
}

std::int64_t kv_transfer_rows(const KvCall& call) noexcept {
  if (call.source_slots.tensor() != nullptr) return kv_slot_count(call.source_slots);
  if (call.target_slots.tensor() != nullptr) return kv_slot_count(call.target_slots);
  const std::optional<KvExtent> source = kv_extent(call.source);
  return source ? source->rows : 0;
}

}  // namespace sparse_mla
