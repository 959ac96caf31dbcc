// The only file of this room that knows Highway. It compiles itself once per instruction set; HWY_DYNAMIC_DISPATCH
// picks one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kv/simd.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "base/kv_scales.h"
#include "kv/simd.h"

HWY_BEFORE_NAMESPACE();
namespace sparse_mla::kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that they divide a scale group and a row, which are multiples of 64.
using F32 = hn::CappedTag<float, 16>;
using U32 = hn::Rebind<std::uint32_t, F32>;
using I32 = hn::Rebind<std::int32_t, F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using U8 = hn::Rebind<std::uint8_t, F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;

// ---- float formats: the formulas of base/float_formats.h, a vector at a time ----------------------------------------

// A float of `mantissa` bits under an exponent of this bias, sign at bit `sign`; codes from `special` up are Inf or NaN.
struct E4m3 {
  static constexpr int mantissa = 3, bias = 7, sign = 7;
  static constexpr std::uint32_t special = 0x7F;
  static constexpr std::uint32_t overflow = 0x43E00000u;  // float32 magnitudes from here up (448) become `largest`
  static constexpr std::uint32_t largest = 0x7E, nan = 0x7F;
};
struct F16 {
  static constexpr int mantissa = 10, bias = 15, sign = 15;
  static constexpr std::uint32_t special = 0x7C00;
  static constexpr std::uint32_t overflow = 0x477FF000u;  // 65520
  static constexpr std::uint32_t largest = 0x7C00, nan = 0x7E00;
};

template <class Format>
HWY_INLINE VF Widen(VU bits) {
  const F32 f;
  const U32 u;
  constexpr std::uint32_t kMask = (1u << Format::sign) - 1;
  const VU magnitude = hn::And(bits, hn::Set(u, kMask));
  const VU sign = hn::ShiftLeft<31 - Format::sign>(hn::AndNot(hn::Set(u, kMask), bits));
  const VU shifted = hn::ShiftLeft<23 - Format::mantissa>(magnitude);
  const VU normal = hn::Add(shifted, hn::Set(u, std::uint32_t{127 - Format::bias} << 23));
  const float smallest = 1.0f / static_cast<float>(1 << (Format::bias - 1 + Format::mantissa));
  const VU subnormal = hn::BitCast(u, hn::Mul(hn::ConvertTo(f, hn::BitCast(I32(), magnitude)), hn::Set(f, smallest)));
  VU value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u, 1u << Format::mantissa)), subnormal, normal);
  // Inf where the format has one (its code is the first special one), NaN above.
  const VU special = hn::Or(shifted, hn::Set(u, Format::special == Format::nan ? 0x7FC00000u : 0x7F800000u));
  value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u, Format::special)), value, special);
  return hn::BitCast(f, hn::Or(value, sign));
}

// To nearest even.
template <class Format>
HWY_INLINE VU Narrow(VF value) {
  const F32 f;
  const U32 u;
  constexpr int kShift = 23 - Format::mantissa;
  constexpr std::uint32_t kRebias = std::uint32_t{127 - Format::bias} << 23;
  const VU bits = hn::BitCast(u, value);
  const VU magnitude = hn::And(bits, hn::Set(u, 0x7FFFFFFFu));
  const VU sign = hn::ShiftLeft<Format::sign>(hn::ShiftRight<31>(bits));
  // Below the format's least normal number, adding this leaves the multiple of its least subnormal in the low bits.
  const float magic = static_cast<float>(1 << kShift) / static_cast<float>(1 << (Format::bias - 1));
  const VU low = hn::Sub(hn::BitCast(u, hn::Add(hn::BitCast(f, magnitude), hn::Set(f, magic))),
                         hn::BitCast(u, hn::Set(f, magic)));
  const VU odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(u, 1u));
  const VU rounding = hn::Sub(hn::Add(magnitude, odd), hn::Set(u, kRebias - (1u << (kShift - 1)) + 1u));
  VU code = hn::ShiftRight<kShift>(rounding);
  code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u, kRebias + (1u << 23))), low, code);
  code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u, Format::overflow)), code, hn::Set(u, Format::largest));
  code = hn::IfThenElse(hn::Gt(magnitude, hn::Set(u, 0x7F800000u)), hn::Set(u, Format::nan), code);
  return hn::Or(code, sign);
}

HWY_INLINE VU Bf16Bits(VF value) {
  const U32 u;
  const VU bits = hn::BitCast(u, value);
  const VU high = hn::ShiftRight<16>(bits);
  const VU rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(u, 0x7FFFu), hn::And(high, hn::Set(u, 1u)))));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(u, 0x7FFFFFFFu)), hn::Set(u, 0x7F800000u));
  return hn::IfThenElse(is_nan, hn::Or(high, hn::Set(u, 0x40u)), rounded);
}

// ---- spans of values ------------------------------------------------------------------------------------------------

HWY_INLINE void LoadBf16(const std::uint16_t* from, int count, float* to) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  for (int i = 0; i < count; i += lanes) {
    hn::StoreU(hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), from + i)))), f, to + i);
  }
}

HWY_INLINE void LoadF16(const std::uint16_t* from, int count, float* to) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  for (int i = 0; i < count; i += lanes) {
    hn::StoreU(Widen<F16>(hn::PromoteTo(U32(), hn::LoadU(U16(), from + i))), f, to + i);
  }
}

HWY_INLINE void LoadE4m3(const std::uint8_t* from, int count, float scale, float* to) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  const VF multiplier = hn::Set(f, scale);
  for (int i = 0; i < count; i += lanes) {
    const VF value = Widen<E4m3>(hn::PromoteTo(U32(), hn::LoadU(U8(), from + i)));
    hn::StoreU(hn::Mul(value, multiplier), f, to + i);
  }
}

HWY_INLINE void StoreBf16(const float* from, int count, std::uint16_t* to) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  for (int i = 0; i < count; i += lanes) {
    hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), Bf16Bits(hn::LoadU(f, from + i)))), U16(), to + i);
  }
}

HWY_INLINE void StoreF16(const float* from, int count, std::uint16_t* to) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  for (int i = 0; i < count; i += lanes) {
    hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), Narrow<F16>(hn::LoadU(f, from + i)))), U16(), to + i);
  }
}

HWY_INLINE void StoreE4m3(const float* from, int count, float scale, std::uint8_t* to) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  const VF divisor = hn::Set(f, scale);
  for (int i = 0; i < count; i += lanes) {
    const VU codes = Narrow<E4m3>(hn::Div(hn::LoadU(f, from + i), divisor));
    hn::StoreU(hn::DemoteTo(U8(), hn::BitCast(I32(), codes)), U8(), to + i);
  }
}

float FiniteAmax(const float* values, int count) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  VF largest = hn::Zero(f);
  for (int i = 0; i < count; i += lanes) {
    const VF magnitude = hn::Abs(hn::LoadU(f, values + i));
    largest = hn::Max(largest, hn::IfThenElseZero(hn::Le(magnitude, hn::Set(f, 3.402823466e38f)), magnitude));
  }
  return hn::GetLane(hn::MaxOfLanes(f, largest));
}

// ---- rows -----------------------------------------------------------------------------------------------------------

HWY_INLINE float ScaleAt(const KvPlaces& places, const std::byte* scales, int k) {
  if (places.scales_are_exponents) return float_from_e8m0(static_cast<std::uint8_t>(scales[k]));
  return reinterpret_cast<const float*>(scales)[k];
}

void LoadRow(const KvPlaces& places, std::int64_t slot, int width, float* to) {
  const std::byte* data = places.data + places.offset_of(slot);
  if (places.dtype == DType::kBFloat16) return LoadBf16(reinterpret_cast<const std::uint16_t*>(data), width, to);
  if (places.dtype == DType::kFloat16) return LoadF16(reinterpret_cast<const std::uint16_t*>(data), width, to);
  if (places.dtype == DType::kFloat32) {
    const F32 f;
    const int lanes = static_cast<int>(hn::Lanes(f));
    const auto* from = reinterpret_cast<const float*>(data);
    for (int i = 0; i < width; i += lanes) hn::StoreU(hn::LoadU(f, from + i), f, to + i);
    return;
  }
  const int front = width - places.tail;
  const int group = places.group != 0 ? places.group : front;
  const std::byte* scales = places.scales == nullptr ? nullptr : places.scales + places.scale_offset_of(slot);
  for (int i = 0; i < front; i += group) {
    const float scale = scales == nullptr ? 1.0f : ScaleAt(places, scales, i / group);
    LoadE4m3(reinterpret_cast<const std::uint8_t*>(data) + i, group, scale, to + i);
  }
  LoadBf16(reinterpret_cast<const std::uint16_t*>(data + places.tail_offset), places.tail, to + front);
}

HWY_INLINE float MakeScale(KvScaling scaling, const float* values, int count, const float* given, bool power_of_two) {
  if (scaling == KvScaling::kGiven) return power_of_two ? rounded_up_to_power_of_two(*given) : *given;
  const float a = FiniteAmax(values, count);
  return scaling == KvScaling::kAmax && !power_of_two ? amax_kv_scale(a) : power_of_two_kv_scale(a);
}

void StoreRow(const float* row, int width, const KvPlaces& places, std::int64_t slot, KvScaling scaling,
              const float* given) {
  std::byte* data = places.data + places.offset_of(slot);
  if (places.dtype == DType::kBFloat16) return StoreBf16(row, width, reinterpret_cast<std::uint16_t*>(data));
  if (places.dtype == DType::kFloat16) return StoreF16(row, width, reinterpret_cast<std::uint16_t*>(data));
  if (places.dtype == DType::kFloat32) {
    const F32 f;
    const int lanes = static_cast<int>(hn::Lanes(f));
    auto* to = reinterpret_cast<float*>(data);
    for (int i = 0; i < width; i += lanes) hn::StoreU(hn::LoadU(f, row + i), f, to + i);
    return;
  }
  const int front = width - places.tail;
  auto* codes = reinterpret_cast<std::uint8_t*>(data);
  if (places.group == 0) {
    const float scale = places.scales == nullptr ? 1.0f : *reinterpret_cast<const float*>(places.scales);
    return StoreE4m3(row, front, scale, codes);
  }
  std::byte* scales = places.scales + places.scale_offset_of(slot);
  const int groups = front / places.group;
  for (int k = 0; k < groups; ++k) {
    const float* values = row + k * places.group;
    const float scale = MakeScale(scaling, values, places.group, given == nullptr ? nullptr : given + k,
                                  places.scales_are_exponents);
    StoreE4m3(values, places.group, scale, codes + k * places.group);
    if (places.scales_are_exponents) {
      scales[k] = std::byte{e8m0_from_power_of_two(scale)};
    } else {
      reinterpret_cast<float*>(scales)[k] = scale;
    }
  }
  if (places.scales_have_pad) scales[groups] = std::byte{0};
  StoreBf16(row + front, places.tail, reinterpret_cast<std::uint16_t*>(data + places.tail_offset));
}

}  // namespace HWY_NAMESPACE
}  // namespace sparse_mla::kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparse_mla::kv {

HWY_EXPORT(LoadRow);
HWY_EXPORT(StoreRow);
HWY_EXPORT(FiniteAmax);

void load_row(const KvPlaces& places, std::int64_t slot, int width, float* to) {
  HWY_DYNAMIC_DISPATCH(LoadRow)(places, slot, width, to);
}

void store_row(const float* row, int width, const KvPlaces& places, std::int64_t slot, KvScaling scaling,
               const float* given) {
  HWY_DYNAMIC_DISPATCH(StoreRow)(row, width, places, slot, scaling, given);
}

float finite_amax(const float* values, int count) { return HWY_DYNAMIC_DISPATCH(FiniteAmax)(values, count); }

}  // namespace sparse_mla::kv
#endif  // HWY_ONCE
