// The rules of kv_transfer, for append, dequantise, convert and gather alike: what the source and the target hold, then
// the slots, the scaling, and what concerns both sides at once.
#include <limits>

#include "base/kv_layout.h"
#include "contract/families.h"

namespace sparse_mla::contract {
namespace {

using KvRule = Rule<KvCall>;
using In = Input<KvCall>;
using Broken = std::optional<Facts>;

struct Source {
  static constexpr Text kPrefix = "source";
  static constexpr std::uint32_t kKnown = kSourceRows;
  static const KvRows& of(const KvCall& call) { return call.source; }
};
struct Target {
  static constexpr Text kPrefix = "target";
  static constexpr std::uint32_t kKnown = kTargetRows;
  static const KvRows& of(const KvCall& call) { return call.target; }
};

template <class Side>
struct Data {
  using Call = KvCall;
  static constexpr auto kName = Side::kPrefix;
  static const Tensor* tensor(const KvCall& call) { return &Side::of(call).data; }
  static const Argument* argument(const KvCall&) { return nullptr; }
};
template <class Side>
struct Scales {
  using Call = KvCall;
  static constexpr auto kName = join(Side::kPrefix, Text(".scales"));
  static const Tensor* tensor(const KvCall& call) { return Side::of(call).scales.tensor(); }
  static const Argument* argument(const KvCall& call) { return &Side::of(call).scales; }
};
template <Text kText, auto kMember>
struct Arg {
  using Call = KvCall;
  static constexpr auto kName = kText;
  static const Tensor* tensor(const KvCall& call) { return (call.*kMember).tensor(); }
  static const Argument* argument(const KvCall& call) { return &(call.*kMember); }
};
using SourceSlots = Arg<"source_slots", &KvCall::source_slots>;
using TargetSlots = Arg<"target_slots", &KvCall::target_slots>;
using Remapped = Arg<"remapped", &KvCall::remapped>;
using GivenScales = Arg<"scales", &KvCall::scales>;
using All = Tensors<KvCall, Data<Source>, Scales<Source>, Data<Target>, Scales<Target>, SourceSlots, TargetSlots,
                    Remapped, GivenScales>;

const KvFormatInfo* info_of(const KvRows& rows) { return rows.format ? &kv_format_info(*rows.format) : nullptr; }
std::string format_of(const KvRows& rows) { return rows.format ? std::string(kv_format_name(*rows.format)) : "plain"; }
bool is_mixed_row(const KvRows& rows) {
  const KvFormatInfo* info = info_of(rows);
  return info != nullptr && info->is_quantised() && !info->has_scale_tensor();
}

// With {format}, {expected} and {found} filled.
Facts facts_of(const KvRows& rows, std::string expected, std::string got) {
  return {.expected = expected,
          .got = got,
          .tensor = &rows.data,
          .fields = {{"format", format_of(rows)}, {"expected", expected}, {"found", got}}};
}

// ---- one side -------------------------------------------------------------------------------------------------------

Broken wrong_rank(const KvRows& rows) {
  if (has_kv_rank(rows)) return std::nullopt;
  const KvFormatInfo* info = info_of(rows);
  std::string expected = "(rows, D)";
  if (info != nullptr) {
    std::string row = info->width == 0 ? "D" : std::to_string(kv_row_bytes(*info, info->width));
    row += ")";
    expected = info->is_paged() ? "(pages, page bytes)" : "(rows, ";
    if (!info->is_paged()) expected.append(row).append(" or (pages, page_size, ").append(row);
  }
  return facts_of(rows, expected, shape_string(rows.data));
}

bool holds_values_of(const KvRows& rows) {
  const DType dtype = rows.data.dtype;
  if (!rows.format) return dtype == DType::kBFloat16 || dtype == DType::kFloat16 || dtype == DType::kFloat32;
  if (is_mixed_row(rows)) return dtype == DType::kUInt8 || dtype == DType::kInt8 || dtype == DType::kFloat8E4M3FN;
  return dtype == info_of(rows)->values;
}

// Another float8 than the one that the format stores.
bool holds_other_float8(const KvRows& rows) {
  const DType dtype = rows.data.dtype;
  const bool is_variant = dtype == DType::kFloat8E4M3FNUZ || dtype == DType::kFloat8E5M2 || dtype == DType::kFloat8E5M2FNUZ;
  return is_variant && rows.format && info_of(rows)->is_quantised();
}

Broken other_float8(const KvRows& rows) {
  if (!holds_other_float8(rows)) return std::nullopt;
  Facts facts = facts_of(rows, "torch.float8_e4m3fn", dtype_string(rows.data));
  const bool has_e4m3_fields = rows.data.dtype == DType::kFloat8E4M3FNUZ;
  facts.fields.push_back({"why", has_e4m3_fields ? "whose exponent bias is 8, not 7: its codes mean half as much"
                                                 : "which has 5 exponent and 2 mantissa bits, not 4 and 3"});
  facts.fields.push_back({"factor", has_e4m3_fields ? "0.5" : "scale"});
  return facts;
}

Broken wrong_dtype(const KvRows& rows) {
  if (holds_values_of(rows) || holds_other_float8(rows)) return std::nullopt;
  std::string expected = "torch.bfloat16, torch.float16 or torch.float32";
  if (rows.format) expected = std::string(torch_name(info_of(rows)->values));
  if (is_mixed_row(rows)) expected = "torch.uint8, torch.int8 or torch.float8_e4m3fn";
  return facts_of(rows, expected, dtype_string(rows.data));
}

Broken wrong_width(const KvRows& rows) {
  if (!has_kv_rank(rows) || kv_width(rows)) return std::nullopt;
  const KvFormatInfo* info = info_of(rows);
  std::string expected = "a multiple of 64 up to " + std::to_string(kMaxKvWidth);
  if (info != nullptr && info->width != 0) expected = std::to_string(kv_row_bytes(*info, info->width));
  return facts_of(rows, expected, std::to_string(rows.data.shape[rows.data.rank - 1]));
}

Broken wrong_page(const KvRows& rows) {
  const KvFormatInfo* info = info_of(rows);
  if (info == nullptr || !info->is_paged() || !has_kv_rank(rows) || v4_rows_per_page(rows) != 0) return std::nullopt;
  const std::int64_t page_size = rows.page_size > 0 ? rows.page_size : rows.data.shape[1] / 584;
  const bool is_sane = page_size > 0 && page_size < std::numeric_limits<std::int32_t>::max();
  std::string expected = is_sane ? std::to_string(kv_page_bytes(*info, info->width, page_size)) : "at least 1152";
  Facts facts = facts_of(rows, expected, std::to_string(rows.data.shape[1]));
  facts.fields.push_back({"page_size", std::to_string(page_size)});
  return facts;
}

Broken absent_scales(const KvRows& rows) {
  const KvFormatInfo* info = info_of(rows);
  if (info == nullptr || !info->has_scale_tensor() || rows.scales.tensor() != nullptr) return std::nullopt;
  const NotATensor* other = rows.scales.not_a_tensor();
  return facts_of(rows, "a float32 tensor", other == nullptr ? "None" : other->what);
}

Broken needless_scales(const KvRows& rows) {
  const KvFormatInfo* info = info_of(rows);
  if ((info != nullptr && info->has_scale_tensor()) || rows.scales.is_none()) return std::nullopt;
  return facts_of(rows, "None", rows.scales.tensor() != nullptr ? shape_string(*rows.scales.tensor()) : "no tensor");
}

Broken wrong_scale_shape(const KvRows& rows) {
  const KvFormatInfo* info = info_of(rows);
  const Tensor* scales = rows.scales.tensor();
  if (info == nullptr || scales == nullptr || !info->has_scale_tensor()) return std::nullopt;
  const KvExtent extent = *kv_extent(rows);
  if (info->scale_place == KvScalePlace::kCache) {
    if (scales->elements() == 1) return std::nullopt;
    return facts_of(rows, "(1,)", shape_string(*scales));
  }
  const std::int64_t groups = kv_row_scales(*info, extent.width);
  if (has_shape(*scales, {extent.rows, groups})) return std::nullopt;
  return facts_of(rows, tuple({extent.rows, groups}), shape_string(*scales));
}

template <class Side, Text kWhat>
constexpr std::string_view side_slug = joined<Text("kv-"), Side::kPrefix, Text("-"), Text(kWhat)>;

template <class Side, Broken (*kTest)(const KvRows&)>
Broken of_side(const In& in) {
  return kTest(Side::of(in.call));
}

template <class Side>
constexpr std::array<KvRule, 9> side_rules() {
  constexpr std::string_view kName = Side::kPrefix.view();
  return {KvRule{.id = "KV",
                 .slug = side_slug<Side, "rank">,
                 .argument = kName,
                 .message = about<Data<Side>, " ({format}) must have shape {expected}, got {shape}">,
                 .fix = "view its memory as {expected}",
                 .check = of_side<Side, wrong_rank>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "float8-variant">,
                 .argument = kName,
                 .message = about<Data<Side>, " ({format}) must be torch.float8_e4m3fn, got {dtype}, {why}">,
                 .fix = "convert it: kv_to_e4m3fn(from, to, {factor}), and multiply its scales by {factor}",
                 .check = of_side<Side, other_float8>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "dtype">,
                 .argument = kName,
                 .message = about<Data<Side>, " ({format}) must be {expected}, got {dtype}">,
                 .fix = "name the format that {dtype} rows have (inspect lists them), or convert them first",
                 .check = of_side<Side, wrong_dtype>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "row-width">,
                 .argument = kName,
                 .message = about<Data<Side>, " ({format}) must have rows of {expected} elements, got {found}">,
                 .fix = "name the format that rows of {found} have (inspect lists them)",
                 .check = of_side<Side, wrong_width>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "page-bytes">,
                 .argument = kName,
                 .message = about<Data<Side>, " ({format}) with pages of {page_size} rows must have {expected} bytes a "
                                              "page, got {found}">,
                 .fix = "pages of p rows take 584 p bytes, rounded up to a multiple of 576",
                 .check = of_side<Side, wrong_page>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "scales-absent">,
                 .argument = Scales<Side>::kName.view(),
                 .message = about<Scales<Side>, " must be a float32 tensor for {format}, got {found}">,
                 .fix = "pass the scales that were allocated with the data",
                 .check = of_side<Side, absent_scales>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "scales-needless">,
                 .argument = Scales<Side>::kName.view(),
                 .message = about<Scales<Side>, " must be None for {format} rows">,
                 .fix = "leave them out: {format} rows have no scales, or have them inside",
                 .check = of_side<Side, needless_scales>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "scales-shape">,
                 .argument = Scales<Side>::kName.view(),
                 .needs = Side::kKnown,
                 .message = about<Scales<Side>, " must have shape {expected} for {format}, got {found}">,
                 .fix = "pass the scales of the same rows as the data",
                 .check = of_side<Side, wrong_scale_shape>},
          KvRule{.id = "KV",
                 .slug = side_slug<Side, "rows-int32">,
                 .argument = kName,
                 .needs = Side::kKnown,
                 .message = about<Data<Side>, " must have fewer than 2**31 rows, got {found}">,
                 .fix = "split the cache, or check its shape",
                 .check = [](const In& in) -> Broken {
                   const std::int64_t rows = kv_extent(Side::of(in.call))->rows;
                   if (rows < std::numeric_limits<std::int32_t>::max()) return std::nullopt;
                   return facts_of(Side::of(in.call), "below 2**31", std::to_string(rows));
                 }}};
}

// ---- devices --------------------------------------------------------------------------------------------------------

template <class A>
constexpr KvRule on_source_device() {
  return {.id = "KV",
          .slug = slug<A, "device">,
          .argument = A::kName.view(),
          .stage = RuleStage::kDevice,
          .message = about<A, " must be on source's device {source_device}, got {device}">,
          .fix = joined<Text("move it: "), A::kName, Text(".to(\"{source_device}\")")>,
          .check = [](const In& in) -> Broken {
            const Tensor* tensor = A::tensor(in.call);
            const Device device = in.call.source.data.device;
            if (tensor == nullptr || tensor->device == device) return std::nullopt;
            return Facts{.expected = to_string(device), .got = to_string(tensor->device), .tensor = tensor};
          }};
}

constexpr KvRule kSourceComputes{.id = "KV",
                                 .slug = "kv-source-computes",
                                 .argument = "source",
                                 .stage = RuleStage::kDevice,
                                 .message = "source must be a CPU or CUDA tensor, got {device}",
                                 .fix = "give it memory on a device that computes",
                                 .check = [](const In& in) -> Broken {
                                   const Tensor& data = in.call.source.data;
                                   if (data.device.is_cpu() || data.device.is_cuda()) return std::nullopt;
                                   return Facts{.expected = "cpu or cuda", .got = to_string(data.device), .tensor = &data};
                                 }};

// Rows are read and written 16 bytes at a time, on every device.
template <class Side>
constexpr KvRule rows_at_16() {
  return {.id = "KV",
          .slug = side_slug<Side, "row-alignment">,
          .argument = Side::kPrefix.view(),
          .message = about<Data<Side>, " must have rows that start at multiples of 16 bytes, got address {address} and "
                                       "strides {strides} of {dtype}">,
          .fix = "copy it into memory of its own",
          .check = [](const In& in) -> Broken {
            return Tensors<KvCall, Data<Side>>::first(in, "rows at multiples of 16 bytes", [](const Tensor& tensor) {
              return !rows_start_at_multiples(tensor, 16);
            });
          }};
}
template <class A>
constexpr KvRule floats_at_4() {
  return {.id = "KV",
          .slug = slug<A, "alignment">,
          .argument = A::kName.view(),
          .message = about<A, " must start at a multiple of 4 bytes, got address {address}">,
          .fix = "copy it into memory of its own",
          .check = [](const In& in) -> Broken {
            return Tensors<KvCall, A>::first(in, "an address that is a multiple of 4", [](const Tensor& tensor) {
              return !rows_start_at_multiples(tensor, 4);
            });
          }};
}

// ---- slots ----------------------------------------------------------------------------------------------------------

bool is_slot_dtype(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

template <class A>
constexpr KvRule is_slot_list() {
  return {.id = "KV",
          .slug = slug<A, "dtype">,
          .argument = A::kName.view(),
          .message = about<A, " must be int32 or int64, got {dtype}">,
          .fix = joined<Text("convert it: "), A::kName, Text(".to(torch.int32)")>,
          .check = [](const In& in) -> Broken {
            const Tensor* slots = A::tensor(in.call);
            if (slots == nullptr || is_slot_dtype(slots->dtype)) return std::nullopt;
            return Facts{.expected = "torch.int32 or torch.int64", .got = dtype_string(*slots), .tensor = slots};
          }};
}

// -1 is "no row"; the side's rows end below 2^31, so that one rule serves both slot dtypes.
template <class A, class Side>
constexpr KvRule slots_in_range() {
  return {.id = "KV",
          .slug = slug<A, "range">,
          .argument = A::kName.view(),
          .stage = RuleStage::kValues,
          .needs = Side::kKnown,
          .message = about<A, " values must be -1 or a row of the cache (0 to {last}), got {value} at {position}">,
          .fix = "write -1 for a row that is to be skipped",
          .check = [](const In& in) -> Broken {
            const Tensor* slots = A::tensor(in.call);
            if (slots == nullptr || !is_slot_dtype(slots->dtype) || span_bytes(*slots) == std::nullopt) {
              return std::nullopt;
            }
            if (in.options.device_rules && slots->device != in.call.source.data.device) return std::nullopt;
            const std::int64_t last = kv_extent(Side::of(in.call))->rows - 1;
            const auto offender = in.values.first_outside(A::kName.view(), *slots, -1, last);
            if (!offender) return std::nullopt;
            Facts facts = offender_facts(A::kName.view(), *slots, *offender, "-1 to " + std::to_string(last));
            facts.fields.push_back({"last", std::to_string(last)});
            return facts;
          }};
}

Facts counts(std::int64_t expected, std::int64_t got) {
  return {.expected = std::to_string(expected),
          .got = std::to_string(got),
          .fields = {{"expected", std::to_string(expected)}, {"found", std::to_string(got)}}};
}

constexpr auto kSlotCountRules = std::to_array<KvRule>({
    {.id = "KV",
     .slug = "kv-slot-counts-match",
     .argument = "target_slots",
     .message = "target_slots must have as many values as source_slots ({expected}), got {found}",
     .fix = "give each row of the transfer one slot on either side",
     .check = [](const In& in) -> Broken {
       if (in.call.source_slots.tensor() == nullptr || in.call.target_slots.tensor() == nullptr) return std::nullopt;
       const std::int64_t expected = kv_slot_count(in.call.source_slots);
       const std::int64_t got = kv_slot_count(in.call.target_slots);
       if (expected == got) return std::nullopt;
       return counts(expected, got);
     }},
    {.id = "KV",
     .slug = "kv-transfer-int32",
     .argument = "source_slots",
     .message = "a transfer must have fewer than 2**31 rows, got {found}",
     .fix = "split the slot lists",
     .check = [](const In& in) -> Broken {
       constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
       const std::int64_t got = kv_transfer_rows(in.call);
       if (got < kLimit) return std::nullopt;
       return counts(kLimit, got);
     }},
    {.id = "KV",
     .slug = "kv-source-row-per-slot",
     .argument = "source",
     .needs = kSourceRows,
     .message = "source must have a row for each of the {expected} target_slots, got {found} rows",
     .fix = "pass one slot a row, or source_slots",
     .check = [](const In& in) -> Broken {
       if (in.call.source_slots.tensor() != nullptr || in.call.target_slots.tensor() == nullptr) return std::nullopt;
       const std::int64_t expected = kv_slot_count(in.call.target_slots);
       const std::int64_t got = kv_extent(in.call.source)->rows;
       if (expected == got) return std::nullopt;
       return counts(expected, got);
     }},
    {.id = "KV",
     .slug = "kv-target-short",
     .argument = "target",
     .needs = kSourceRows | kTargetRows,
     .message = "target has {found} rows, {expected} are needed from row {first_row} on",
     .fix = "give it room for first_row + {expected} rows",
     .check = [](const In& in) -> Broken {
       if (in.call.target_slots.tensor() != nullptr) return std::nullopt;
       const std::int64_t rows = kv_extent(in.call.target)->rows;
       const std::int64_t needed = kv_transfer_rows(in.call);
       const bool fits = in.call.first_row >= 0 && in.call.first_row <= rows && needed <= rows - in.call.first_row;
       if (fits) return std::nullopt;
       return counts(needed, rows);
     }},
    {.id = "KV",
     .slug = "kv-first-row-with-slots",
     .argument = "first_row",
     .message = "first_row must be 0 with target_slots, which name the rows, got {first_row}",
     .fix = "leave out one of the two",
     .check = [](const In& in) -> Broken {
       if (in.call.target_slots.tensor() == nullptr || in.call.first_row == 0) return std::nullopt;
       return Facts{.expected = "0", .got = std::to_string(in.call.first_row)};
     }},
    {.id = "KV",
     .slug = "kv-remapped-alone",
     .argument = "remapped",
     .message = "remapped needs source_slots and no target_slots",
     .fix = "leave it out: the target's slots are known already",
     .check = [](const In& in) -> Broken {
       if (in.call.remapped.tensor() == nullptr) return std::nullopt;
       if (in.call.source_slots.tensor() != nullptr && in.call.target_slots.tensor() == nullptr) return std::nullopt;
       return Facts{.expected = "None", .got = "remapped"};
     }},
    {.id = "KV",
     .slug = "kv-remapped-shape",
     .argument = "remapped",
     .message = "remapped must be int32 with source_slots' shape {expected}, got {shape}/{dtype}",
     .fix = "pass torch.empty_like(source_slots, dtype=torch.int32)",
     .check = [](const In& in) -> Broken {
       const Tensor* remapped = in.call.remapped.tensor();
       const Tensor* slots = in.call.source_slots.tensor();
       if (remapped == nullptr || slots == nullptr) return std::nullopt;
       if (remapped->dtype == DType::kInt32 && has_shape(*remapped, slots->sizes())) return std::nullopt;
       const std::string expected = shape_string(*slots);
       return Facts{.expected = expected + "/torch.int32",
                    .got = shape_and_dtype(*remapped),
                    .tensor = remapped,
                    .fields = {{"expected", expected}}};
     }},
});

// ---- both sides, and the scaling ------------------------------------------------------------------------------------

bool takes_given_scales(const KvCall& call) {
  return call.target.format && kv_format_info(*call.target.format).has_row_scales() &&
         call.scaling == KvScaling::kGiven;
}

constexpr auto kBothSides = std::to_array<KvRule>({
    {.id = "KV",
     .slug = "kv-widths-match",
     .argument = "target",
     .needs = kSourceRows | kTargetRows,
     .message = "target must have source's {expected} values a row, got {found}",
     .fix = "576 values: q8kv8_576, v32_656; 512: q8kv8_512, v4_584; unified_* rows and plain ones take either",
     .check = [](const In& in) -> Broken {
       const std::int64_t expected = kv_extent(in.call.source)->width;
       const std::int64_t got = kv_extent(in.call.target)->width;
       if (expected == got) return std::nullopt;
       return counts(expected, got);
     }},
    {.id = "KV",
     .slug = "kv-sides-overlap",
     .argument = "target",
     .message = "{pair} must not share memory",
     .fix = "write to a cache of its own: rows change their place and size",
     .check = [](const In& in) -> Broken {
       using Sources = std::array<std::pair<const Tensor*, std::string_view>, 2>;
       const Sources sources{{{&in.call.source.data, "source"}, {in.call.source.scales.tensor(), "source.scales"}}};
       const Sources targets{{{&in.call.target.data, "target"}, {in.call.target.scales.tensor(), "target.scales"}}};
       for (const auto& [source, source_name] : sources) {
         for (const auto& [target, target_name] : targets) {
           if (source == nullptr || target == nullptr || !overlap(*source, *target)) continue;
           const std::string pair = std::string(source_name) + " and " + std::string(target_name);
           return Facts{.expected = "memory of its own", .got = pair + " overlap", .fields = {{"pair", pair}}};
         }
       }
       return std::nullopt;
     }},
    {.id = "KV",
     .slug = "kv-scaling-exponents",
     .argument = "scaling",
     .message = "v4_584 stores scales as exponents, got the scaling a / 448",
     .fix = "ask for powers of two, or for none: that is the format's default",
     .check = [](const In& in) -> Broken {
       if (in.call.target.format != KvFormat::kV4_584 || in.call.scaling != KvScaling::kAmax) return std::nullopt;
       return Facts{.expected = "powers of two", .got = "a / 448"};
     }},
    {.id = "KV",
     .slug = "kv-scaling-unscaled",
     .argument = "scaling",
     .message = "target ({format}) has no scales to make",
     .fix = "leave scaling out",
     .check = [](const In& in) -> Broken {
       const KvFormatInfo* info = info_of(in.call.target);
       if (!in.call.scaling || (info != nullptr && info->is_quantised())) return std::nullopt;
       return facts_of(in.call.target, "no scaling", "a scaling");
     }},
    {.id = "KV",
     .slug = "kv-scales-given",
     .argument = "scales",
     .message = "scales must be {expected}, got {found}",
     .fix = "with given scales pass one for each group of each row; otherwise leave them out",
     .check = [](const In& in) -> Broken {
       const bool wanted = takes_given_scales(in.call);
       if (wanted == (in.call.scales.tensor() != nullptr) && in.call.scales.not_a_tensor() == nullptr) return std::nullopt;
       const std::string expected = wanted ? "a float32 tensor" : "None";
       const NotATensor* other = in.call.scales.not_a_tensor();
       const std::string got = other != nullptr ? other->what : in.call.scales.is_none() ? "None" : "a tensor";
       return Facts{.expected = expected, .got = got, .fields = {{"expected", expected}, {"found", got}}};
     }},
    {.id = "KV",
     .slug = "kv-scales-shape",
     .argument = "scales",
     .needs = kSourceRows | kTargetRows,
     .message = "scales must have shape {expected}, got {shape}",
     .fix = "pass one scale for each group of each row of the transfer",
     .check = [](const In& in) -> Broken {
       const Tensor* scales = in.call.scales.tensor();
       if (scales == nullptr || !takes_given_scales(in.call)) return std::nullopt;
       const std::int64_t groups = kv_row_scales(*info_of(in.call.target), kv_extent(in.call.target)->width);
       const std::int64_t rows = kv_transfer_rows(in.call);
       if (has_shape(*scales, {rows, groups})) return std::nullopt;
       const std::string expected = tuple({rows, groups});
       return Facts{
           .expected = expected, .got = shape_string(*scales), .tensor = scales, .fields = {{"expected", expected}}};
     }},
    {.id = "KV",
     .slug = "kv-scales-positive",
     .argument = "scales",
     .stage = RuleStage::kValues,
     .message = "scales must be finite and above 0, got {value} at {position}",
     .fix = "set a group of zeros to scale 1",
     .check = [](const In& in) -> Broken {
       const Tensor* scales = in.call.scales.tensor();
       if (scales == nullptr || scales->dtype != DType::kFloat32 || span_bytes(*scales) == std::nullopt) return std::nullopt;
       if (in.options.device_rules && scales->device != in.call.source.data.device) return std::nullopt;
       const auto offender = in.values.first_not_positive("scales", *scales);
       if (!offender) return std::nullopt;
       return offender_facts("scales", *scales, *offender, "finite values above 0");
     }},
});

// A family's rule, whose `argument` is what this table calls its first tensor.
constexpr KvRule about_source(KvRule rule) {
  rule.argument = "source";
  return rule;
}

constexpr auto kNumbers = std::to_array<KvRule>({
    about_source(no_negative_size<All>("KV")),
    about_source(no_negative_stride<All>("KV")),
    about_source(no_endless_span<All>("KV")),
});

constexpr auto kLayout = std::to_array<KvRule>({
    last_dim_contiguous<Data<Source>>("KV"),
    last_dim_contiguous<Data<Target>>("KV"),
    is_float32<Scales<Source>>("KV"),
    is_float32<Scales<Target>>("KV"),
    is_float32<GivenScales>("KV"),
    last_dim_contiguous<Scales<Source>>("KV"),
    last_dim_contiguous<Scales<Target>>("KV"),
    last_dim_contiguous<GivenScales>("KV"),
    is_a_tensor<SourceSlots, None::kAllowed>("KV"),
    is_a_tensor<TargetSlots, None::kAllowed>("KV"),
    is_a_tensor<Remapped, None::kAllowed>("KV"),
    is_slot_list<SourceSlots>(),
    is_slot_list<TargetSlots>(),
    is_contiguous<SourceSlots>("KV"),
    is_contiguous<TargetSlots>("KV"),
    is_contiguous<Remapped>("KV"),
    rows_at_16<Source>(),
    rows_at_16<Target>(),
    floats_at_4<Scales<Source>>(),
    floats_at_4<Scales<Target>>(),
    floats_at_4<GivenScales>(),
    floats_at_4<SourceSlots>(),
    floats_at_4<TargetSlots>(),
    floats_at_4<Remapped>(),
    kSourceComputes,
    on_source_device<Scales<Source>>(),
    on_source_device<Data<Target>>(),
    on_source_device<Scales<Target>>(),
    on_source_device<SourceSlots>(),
    on_source_device<TargetSlots>(),
    on_source_device<Remapped>(),
    on_source_device<GivenScales>(),
});

constexpr auto kValues = std::to_array<KvRule>({
    slots_in_range<SourceSlots, Source>(),
    slots_in_range<TargetSlots, Target>(),
    about_source(has_memory<All>("KV")),
});

constexpr auto kRules = concatenate(side_rules<Source>(), side_rules<Target>(), kNumbers, kLayout, kSlotCountRules,
                                    kBothSides, kValues);

}  // namespace

std::span<const Rule<KvCall>> Table<KvCall>::rules() noexcept { return kRules; }

std::uint32_t Table<KvCall>::known(const KvCall& call, const CheckOptions&) noexcept {
  std::uint32_t known = kNothing;
  if (kv_extent(call.source)) known |= kSourceRows;
  if (kv_extent(call.target)) known |= kTargetRows;
  return known;
}

std::optional<std::string> Table<KvCall>::named_value(const KvCall& call, std::string_view name) {
  if (name == "first_row") return std::to_string(call.first_row);
  if (name == "source_device") return to_string(call.source.data.device);
  return std::nullopt;
}

}  // namespace sparse_mla::contract
