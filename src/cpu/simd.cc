// The only file that knows Highway. It compiles itself once per instruction set; HWY_DYNAMIC_DISPATCH picks one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "base/float_formats.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace sparse_mla::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kLaneHeads>;
using U32 = hn::Rebind<std::uint32_t, F32>;
using I32 = hn::Rebind<std::int32_t, F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;

// ---- conversions -------------------------------------------------------------------------------------------------

// A float format of `kMantissa` bits under an exponent of bias `kBias`, in the low `kMantissa + exponent` bits of each
// lane, sign bit at `kSign`. Every number is exact in float32. Codes from kSpecial up are infinity or NaN.
template <int kMantissa, int kBias, int kSign, std::uint32_t kSpecial, bool kHasInfinity>
HWY_INLINE VF FromSmallFloat(VU bits) {
  const F32 f;
  const U32 u;
  const VU magnitude = hn::And(bits, hn::Set(u, (1u << kSign) - 1));
  const VU sign = hn::ShiftLeft<31 - kSign>(hn::AndNot(hn::Set(u, (1u << kSign) - 1), bits));
  const VU shifted = hn::ShiftLeft<23 - kMantissa>(magnitude);
  const VU normal = hn::Add(shifted, hn::Set(u, std::uint32_t{127 - kBias} << 23));
  const float smallest = 1.0f / static_cast<float>(1 << (kBias - 1 + kMantissa));
  const VU subnormal = hn::BitCast(u, hn::Mul(hn::ConvertTo(f, hn::BitCast(I32(), magnitude)), hn::Set(f, smallest)));
  const VU special = kHasInfinity ? hn::Or(shifted, hn::Set(u, 0x7F800000u)) : hn::Set(u, 0x7FC00000u);
  VU value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u, 1u << kMantissa)), subnormal, normal);
  value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u, kSpecial)), value, special);
  return hn::BitCast(f, hn::Or(value, sign));
}

HWY_INLINE VF LoadE4m3(const std::uint8_t* from) {
  const hn::Rebind<std::uint8_t, F32> u8;
  return FromSmallFloat<3, 7, 7, 0x7F, false>(hn::PromoteTo(U32(), hn::LoadU(u8, from)));
}

HWY_INLINE VF LoadBf16(const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, F32> u16;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(u16, from))));
}

HWY_INLINE VF LoadF16(const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, F32> u16;
  return FromSmallFloat<10, 15, 15, 0x7C00, true>(hn::PromoteTo(U32(), hn::LoadU(u16, from)));
}

template <class Stored, class LoadVector, class LoadOne>
HWY_INLINE void ConvertValues(const Stored* from, int count, float* to, LoadVector load_vector, LoadOne load_one) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  int i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load_vector(from + i), f, to + i);
  for (; i < count; ++i) to[i] = load_one(from[i]);
}

static void ConvertRow(const void* from, DType dtype, int count, float* to) {
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return ConvertValues(static_cast<const std::uint8_t*>(from), count, to, LoadE4m3, float_from_e4m3fn);
    case DType::kBFloat16:
      return ConvertValues(static_cast<const std::uint16_t*>(from), count, to, LoadBf16, float_from_bf16);
    default:
      return ConvertValues(static_cast<const std::uint16_t*>(from), count, to, LoadF16, float_from_f16);
  }
}

static void ScaleGroups(const float* scales, int count, float* row) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));  // divides kScaleGroup, and count is a multiple of that
  for (int i = 0; i < count; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(f, row + i), hn::Set(f, scales[i / kScaleGroup])), f, row + i);
  }
}

// ---- float32 matrix product --------------------------------------------------------------------------------------

// C[m][n] (+)= sum over k of A[m * a_row + k * a_column] * B[k][n], for kM rows and kN vectors of columns.
struct Product {
  const float* a;
  std::ptrdiff_t a_row, a_column;
  const float* b;  // row stride is ld
  float* c;        // row stride is ld
  std::ptrdiff_t ld;
  int k;
  bool add_to_c;
};

template <int kM, int kN>
HWY_INLINE void MultiplyTile(const Product& p, int m, int n) {
  const F32 f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  VF c[kM][kN];
  float* to = p.c + m * p.ld + n;
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) c[i][j] = p.add_to_c ? hn::Load(f, to + i * p.ld + j * lanes) : hn::Zero(f);
  }
  const float* a = p.a + m * p.a_row;
  const float* b = p.b + n;
  for (int k = 0; k < p.k; ++k, a += p.a_column, b += p.ld) {
    VF right[kN];
    for (int j = 0; j < kN; ++j) right[j] = hn::Load(f, b + j * lanes);
    for (int i = 0; i < kM; ++i) {
      const VF left = hn::Set(f, a[i * p.a_row]);
      for (int j = 0; j < kN; ++j) c[i][j] = hn::MulAdd(left, right[j], c[i][j]);
    }
  }
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) hn::Store(c[i][j], f, to + i * p.ld + j * lanes);
  }
}

template <int kN>
HWY_INLINE void MultiplyColumns(const Product& p, int rows, int n) {
  int m = 0;
  for (; m + 6 <= rows; m += 6) MultiplyTile<6, kN>(p, m, n);
  for (; m + 2 <= rows; m += 2) MultiplyTile<2, kN>(p, m, n);
  for (; m < rows; ++m) MultiplyTile<1, kN>(p, m, n);
}

// 6 x 4 sums fill 24 of the 32 registers of AVX-512 and NEON, 6 x 2 fill 12 of the 16 of the older x86 sets. kDepth
// rows of B, 4 vectors wide, stay in L1 while all of A passes by.
static void Multiply(Product p, int rows, int columns) {
  constexpr int kWide = HWY_ARCH_X86 && HWY_MAX_BYTES < 64 ? 2 : 4;
  constexpr int kDepth = 128;
  const int lanes = static_cast<int>(hn::Lanes(F32()));
  for (int left = p.k; left > 0; left -= kDepth) {
    p.k = HWY_MIN(left, kDepth);
    int n = 0;
    for (; n + kWide * lanes <= columns; n += kWide * lanes) MultiplyColumns<kWide>(p, rows, n);
    for (; n < columns; n += lanes) MultiplyColumns<1>(p, rows, n);
    p.a += p.k * p.a_column;
    p.b += p.k * p.ld;
    p.add_to_c = true;
  }
}

// ---- the steps of a row ------------------------------------------------------------------------------------------

void LoadQueries(Workspace& w, const RowCall& call) {
  const std::size_t stride = w.extent.stride();
  float* row = w.rows.get();  // free until the first block is loaded
  for (int head = 0; head < call.heads; ++head) {
    const std::int64_t bytes = head * call.q_head_stride * static_cast<std::int64_t>(bytes_per_element(call.q_dtype));
    ConvertRow(static_cast<const char*>(call.q) + bytes, call.q_dtype, call.d, row);
    for (int i = 0; i < call.d; ++i) w.queries_t[i * stride + head] = row[i];
  }
}

void LoadTokens(Workspace& w, const Block& block) {
  for (int t = 0; t < block.count; ++t) {
    float* row = w.rows.get() + std::size_t(t) * w.extent.padded_d();
    ConvertRow(block.tokens[t].values, block.dtype, w.extent.d, row);
    if (block.scaled) ScaleGroups(block.tokens[t].scales, w.extent.d, row);
  }
}

void Score(Workspace& w, const Block& block) {
  const Product product{w.rows.get(),   w.extent.padded_d(), 1,           w.queries_t.get(),
                        w.logits.get(), w.extent.stride(),   w.extent.d, false};
  Multiply(product, block.count, w.extent.padded_heads());
}

void Accumulate(Workspace& w, const Block& block) {
  const Product product{w.rows.get(),  1,                 w.extent.padded_d(), w.logits.get(),
                        w.out_t.get(), w.extent.stride(), block.count,         true};
  Multiply(product, w.extent.d_v, w.extent.padded_heads());
}

// Scales S and takes its maximum over the block. Past the float32 range S is held at the largest finite number, so that
// S - max is never inf - inf; NaN stays NaN.
HWY_INLINE VF ScaleAndMaximum(float* logits, int count, std::ptrdiff_t stride, float scale, VF maximum) {
  const F32 f;
  const VF largest = hn::Set(f, 3.402823466e+38f);
  const VF factor = hn::Set(f, scale);
  for (int t = 0; t < count; ++t, logits += stride) {
    VF s = hn::Mul(hn::Load(f, logits), factor);
    s = hn::IfThenElse(hn::Gt(hn::Abs(s), largest), hn::CopySign(largest, s), s);
    hn::Store(s, f, logits);
    maximum = hn::Max(maximum, s);
  }
  return maximum;
}

// S becomes P; returns the sum of P. Exp gives 0 for NaN, so 0 * S is added to keep NaN.
HWY_INLINE VF Exponentials(float* logits, int count, std::ptrdiff_t stride, VF maximum) {
  const F32 f;
  VF sum = hn::Zero(f);
  for (int t = 0; t < count; ++t, logits += stride) {
    const VF s = hn::Load(f, logits);
    const VF p = hn::MulAdd(hn::Zero(f), s, hn::Exp(f, hn::Sub(s, maximum)));
    hn::Store(p, f, logits);
    sum = hn::Add(sum, p);
  }
  return sum;
}

void Soften(Workspace& w, const Block& block, float scale) {
  const F32 f;
  const int heads = w.extent.padded_heads();
  const std::ptrdiff_t stride = w.extent.stride();
  const int lanes = static_cast<int>(hn::Lanes(f));
  for (int head = 0; head < heads; head += lanes) {
    float* logits = w.logits.get() + head;
    const VF old_maximum = hn::Load(f, w.max.get() + head);
    const VF maximum = ScaleAndMaximum(logits, block.count, stride, scale, old_maximum);
    const VF shrink = hn::Exp(f, hn::Sub(old_maximum, maximum));  // 0 in the first block, where old_maximum is -inf
    const VF sum = Exponentials(logits, block.count, stride, maximum);
    hn::Store(maximum, f, w.max.get() + head);
    hn::Store(hn::MulAdd(hn::Load(f, w.sum.get() + head), shrink, sum), f, w.sum.get() + head);
    for (int t = block.count; t < round_up(block.count, 32); ++t) {
      hn::Store(hn::Zero(f), f, logits + t * stride);
    }
    if (hn::AllTrue(f, hn::Eq(shrink, hn::Set(f, 1.0f)))) continue;
    float* out = w.out_t.get() + head;
    for (int j = 0; j < w.extent.d_v; ++j, out += stride) hn::Store(hn::Mul(hn::Load(f, out), shrink), f, out);
  }
}

// Round to nearest even into the upper half of each lane.
HWY_INLINE VU Bf16Bits(VF value) {
  const U32 u;
  const VU bits = hn::BitCast(u, value);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  const VU rounded = hn::Add(hn::Add(bits, hn::Set(u, 0x7FFF)), odd);
  const VU magnitude = hn::And(bits, hn::Set(u, 0x7FFFFFFFu));
  const VU chosen = hn::IfThenElse(hn::Gt(magnitude, hn::Set(u, 0x7F800000u)), hn::Set(u, 0x7FC00000u), rounded);
  return hn::ShiftRight<16>(chosen);
}

// out[head][j] = out_t[j][head] * factor[head], rounded; through a small square that stays in L1.
void WriteOut(const Workspace& w, const RowCall& call, const float* factor) {
  constexpr int kValues = 64;
  const F32 f;
  const U32 u;
  const int lanes = static_cast<int>(hn::Lanes(f));
  const std::size_t stride = w.extent.stride();
  alignas(64) std::uint32_t square[kValues * kLaneHeads];
  for (int first = 0; first < call.d_v; first += kValues) {
    const int values = HWY_MIN(kValues, call.d_v - first);
    for (int head = 0; head < call.heads; head += lanes) {
      const VF multiplier = hn::LoadU(f, factor + head);
      for (int j = 0; j < values; ++j) {
        const VF value = hn::Mul(hn::Load(f, w.out_t.get() + (first + j) * stride + head), multiplier);
        hn::Store(call.out_dtype == DType::kBFloat16 ? Bf16Bits(value) : hn::BitCast(u, value), u, square + j * lanes);
      }
      for (int lane = 0; lane < HWY_MIN(lanes, call.heads - head); ++lane) {
        std::uint16_t* out = call.out + std::size_t(head + lane) * call.d_v + first;
        if (call.out_dtype == DType::kBFloat16) {
          for (int j = 0; j < values; ++j) out[j] = static_cast<std::uint16_t>(square[j * lanes + lane]);
        } else {
          for (int j = 0; j < values; ++j) out[j] = f16_from_float(std::bit_cast<float>(square[j * lanes + lane]));
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sparse_mla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace sparse_mla::cpu {

HWY_EXPORT(LoadQueries);
HWY_EXPORT(LoadTokens);
HWY_EXPORT(Score);
HWY_EXPORT(Accumulate);
HWY_EXPORT(Soften);
HWY_EXPORT(WriteOut);

namespace {

void reserve(Workspace& w) {
  const Extent& e = w.extent;
  w.queries_t = Buffer<float>(std::size_t(e.d) * e.stride());
  w.rows = Buffer<float>(std::size_t{kBlockTokens} * e.padded_d());
}

std::int64_t forced_target = 0;  // 0 is none

std::vector<std::int64_t> every_target() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  hwy::SetSupportedTargetsForTest(forced_target);
  return targets;
}

}  // namespace

const RowKernels& float32_kernels() {
  static constexpr RowKernels kernels{
      reserve,
      [](Workspace& w, const RowCall& call) { HWY_DYNAMIC_DISPATCH(LoadQueries)(w, call); },
      [](Workspace& w, const Block& block) { HWY_DYNAMIC_DISPATCH(LoadTokens)(w, block); },
      [](Workspace& w, const Block& block) { HWY_DYNAMIC_DISPATCH(Score)(w, block); },
      [](Workspace& w, const Block& block) { HWY_DYNAMIC_DISPATCH(Accumulate)(w, block); },
      [] {}};
  return kernels;
}

void soften(Workspace& w, const Block& block, float scale) { HWY_DYNAMIC_DISPATCH(Soften)(w, block, scale); }

void finish_row(const Workspace& w, const RowCall& call) {
  Buffer<float> factor(w.extent.padded_heads());
  for (int head = 0; head < call.heads; ++head) {
    const float max = w.max[head];
    const float sum = w.sum[head];
    const float denominator = call.sink != nullptr ? sum + std::exp(call.sink[head] - max) : sum;
    factor[head] = call.value_scale / denominator;
    if (call.max_logits != nullptr) call.max_logits[head] = max;
    if (call.lse != nullptr) call.lse[head] = max + std::log(sum);
  }
  HWY_DYNAMIC_DISPATCH(WriteOut)(w, call, factor.get());
}

std::vector<std::string> vector_targets() {
  std::vector<std::string> names;
  for (std::int64_t target : every_target()) names.push_back(hwy::TargetName(target));
  return names;
}

std::string vector_target() {
  const std::int64_t targets = HWY_SUPPORTED_TARGETS & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);  // the lowest bit is the best one
}

void force_vector_target(std::string_view name) {
  std::int64_t chosen = 0;
  for (std::int64_t target : every_target()) {
    if (name == hwy::TargetName(target)) chosen = target;
  }
  if (chosen == 0 && !name.empty()) {
    throw std::invalid_argument("this build and this CPU have no SIMD target \"" + std::string(name) + "\"");
  }
  forced_target = chosen;
  hwy::SetSupportedTargetsForTest(chosen);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace sparse_mla::cpu
#endif  // HWY_ONCE
