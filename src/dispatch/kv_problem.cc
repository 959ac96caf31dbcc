#include "dispatch/kv_problem.h"

#include "base/kv_layout.h"

namespace sparse_mla::dispatch {
namespace {

// [rows, n] or [pages, page_size, n].
void place_rows(KvPlaces& places, const Tensor& data) {
  const auto element = static_cast<std::int64_t>(bytes_per_element(data.dtype));
  places.page_bytes = data.strides[0] * element;
  if (data.rank == 3) {
    places.page_size = data.shape[1] > 0 ? data.shape[1] : 1;
    places.row_bytes = data.strides[1] * element;
    // Evenly spaced rows need no division to be found.
    if (places.page_bytes == places.page_size * places.row_bytes) {
      places.page_size = 1;
      places.page_bytes = places.row_bytes;
    }
  }
}

void place_scales(KvPlaces& places, const KvRows& rows, const KvFormatInfo& info) {
  places.group = info.group;
  places.tail = info.tail;
  places.tail_offset = info.width - info.tail;
  const Tensor* scales = rows.scales.tensor();
  switch (info.scale_place) {
    case KvScalePlace::kNone:
      break;
    case KvScalePlace::kCache:
      places.scales = scales->as<std::byte>();
      break;
    case KvScalePlace::kTensor: {
      const std::int64_t step = scales->strides[0] * std::int64_t{sizeof(float)};
      places.scales = scales->as<std::byte>();
      places.scale_row_bytes = step;
      places.scale_page_bytes = places.page_size * step;
      break;
    }
    case KvScalePlace::kRow:
      places.scales = places.data + places.tail_offset;
      places.tail_offset += static_cast<int>(kv_row_scales(info, info.width) * std::int64_t{sizeof(float)});
      places.scale_page_bytes = places.page_bytes;
      places.scale_row_bytes = places.row_bytes;
      break;
    case KvScalePlace::kPageEnd:
      places.page_size = v4_rows_per_page(rows);
      places.row_bytes = kv_value_bytes(info, info.width);
      places.scales = places.data + places.page_size * places.row_bytes;
      places.scale_page_bytes = places.page_bytes;
      places.scale_row_bytes = kv_row_scales(info, info.width) + 1;
      places.scales_are_exponents = true;
      places.scales_have_pad = true;
      break;
  }
}

KvPlaces places_of(const KvRows& rows) {
  KvPlaces places;
  places.dtype = rows.format ? kv_format_info(*rows.format).values : rows.data.dtype;
  places.data = rows.data.as<std::byte>();
  places.rows = kv_extent(rows)->rows;
  place_rows(places, rows.data);
  if (rows.format) place_scales(places, rows, kv_format_info(*rows.format));
  return places;
}

KvSlots slots_of(const Argument& argument) {
  const Tensor* slots = argument.tensor();
  if (slots == nullptr) return {};
  return {slots->data, slots->dtype == DType::kInt64};
}

}  // namespace

KvTransferProblem kv_transfer_problem(const KvCall& call) {
  KvTransferProblem problem;
  problem.count = kv_transfer_rows(call);
  problem.width = static_cast<int>(kv_extent(call.source)->width);
  problem.source = places_of(call.source);
  problem.target = places_of(call.target);
  problem.source_slots = slots_of(call.source_slots);
  problem.target_slots = slots_of(call.target_slots);
  problem.first_row = call.first_row;
  if (const Tensor* remapped = call.remapped.tensor()) problem.remapped = remapped->as<std::int32_t>();
  problem.unique_target_slots = call.unique_target_slots;
  if (const std::optional<KvFormat> format = call.target.format) {
    problem.scaling = call.scaling.value_or(default_kv_scaling(*format));
    problem.copies_codes = !call.scaling && call.source.format == format && kv_format_info(*format).has_row_scales();
  }
  if (const Tensor* scales = call.scales.tensor()) {
    problem.given_scales = scales->as<const float>();
    problem.given_row_stride = scales->strides[0];
  }
  return problem;
}

}  // namespace sparse_mla::dispatch
