// The AMX kernels. A tile is 16 rows of 64 bytes; tdpbf16ps computes C[16][16] += A[16][32] B[32][16] in float32 with
//   A: row i holds 32 bf16 values                        (keys: 16 tokens x 32 values; values: 16 values x 32 tokens)
//   B: row r holds, per column, the values 2r and 2r + 1  (queries: 32 values x 16 heads; P: 32 tokens x 16 heads)
// All tiles lie packed in the workspace, 1 KiB each, in the order in which a product walks them. The logits and out_t
// are plain row-major float32 matrices: tile rows are tokens or values, columns are heads.
#include "cpu/amx.h"

#include "base/float_formats.h"

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 11))

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace sparse_mla::cpu {
namespace {

// ---- availability ------------------------------------------------------------------------------------------------

__attribute__((target("xsave"))) std::uint64_t enabled_state() { return _xgetbv(0); }

bool cpu_has_it() {
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool os_saves_extended_state = (ecx & bit_OSXSAVE) != 0;
  if (!os_saves_extended_state) return false;
  constexpr std::uint64_t kAvx512State = 0xE6, kTileState = std::uint64_t{3} << 17;
  const std::uint64_t needed_state = kAvx512State | kTileState;
  if ((enabled_state() & needed_state) != needed_state) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  constexpr unsigned kAmx = 1u << 22 | 1u << 24;  // AMX-BF16, AMX-TILE: not every <cpuid.h> names them
  return (ebx & kAvx512) == kAvx512 && (ecx & bit_AVX512VBMI) != 0 && (edx & kAmx) == kAmx;
}

// Linux gives tile registers to processes that ask for them; threads started later inherit the permission.
bool ask_for_tiles() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kTileData = 18;
  return cpu_has_it() && syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

}  // namespace

bool amx_available() noexcept {
  static const bool available = ask_for_tiles();
  return available;
}

}  // namespace sparse_mla::cpu

// From here on, functions may use the instructions; what the headers above define may not, because the linker keeps one
// copy of an inline function for the whole library, and it must run on every CPU.
#if defined(__clang__)
#pragma clang attribute push(                                                                                    \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")
#endif

namespace sparse_mla::cpu {
namespace {

constexpr int kEdge = 16;         // rows of a tile, columns of a float32 tile
constexpr int kStep = 32;         // bf16 values along the inner dimension
constexpr int kTileValues = 512;  // bf16 values of a tile
constexpr int kQueryParts = 2;    // float16 queries are the sum of two bf16 numbers
constexpr int kPrefetch = 8;      // tokens ahead

// ---- conversions -------------------------------------------------------------------------------------------------

// The low and high bytes of the bf16 number of every e4m3 code without its sign.
struct E4m3Table {
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t high[128];
};
constexpr E4m3Table make_e4m3_table() {
  E4m3Table table{};
  for (int code = 0; code < 128; ++code) {
    const std::uint16_t bits = bf16_from_float(float_from_e4m3fn(static_cast<std::uint8_t>(code)));
    table.low[code] = static_cast<std::uint8_t>(bits & 0xFF);
    table.high[code] = static_cast<std::uint8_t>(bits >> 8);
  }
  return table;
}
constexpr E4m3Table kE4m3 = make_e4m3_table();

struct TwoSteps {
  __m512i first, second;  // bf16 values 0..31 and 32..63
};

inline TwoSteps bf16_from_e4m3(__m512i codes) {
  const __m512i interleave = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  codes = _mm512_permutexvar_epi64(interleave, codes);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.low), codes, _mm512_load_si512(kE4m3.low + 64));
  const __m512i high =
      _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.high), codes, _mm512_load_si512(kE4m3.high + 64));
  const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  const __m512i signed_high = _mm512_or_si512(high, sign);
  return {_mm512_unpacklo_epi8(low, signed_high), _mm512_unpackhi_epi8(low, signed_high)};
}

// Values [i, i + 64) of a row as bf16, zeros from `count` on. Nothing past the row is read.
inline TwoSteps load_64(const void* row, DType dtype, int i, int count) {
  const int left = count - i;
  if (dtype == DType::kFloat8E4M3FN) {
    const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    return bf16_from_e4m3(_mm512_maskz_loadu_epi8(mask, static_cast<const std::uint8_t*>(row) + i));
  }
  const auto* from = static_cast<const std::uint16_t*>(row) + i;
  const __mmask32 first = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
  const __mmask32 second = left >= 64 ? ~__mmask32{0} : left <= 32 ? 0 : (__mmask32{1} << (left - 32)) - 1;
  return {_mm512_maskz_loadu_epi16(first, from), _mm512_maskz_loadu_epi16(second, from + 32)};
}

// The low 16 bits of 32 lanes.
inline __m512i join_halves(__m512i first, __m512i second) {
  const __m512i low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(first));
  return _mm512_inserti64x4(low, _mm512_cvtepi32_epi16(second), 1);
}

// 32 float16 values as the sum of two bf16 numbers: 8 + 3 of their 11 bits, so exact.
struct TwoParts {
  __m512i high, low;
};
inline TwoParts split_f16(__m512i values) {
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  __m512i high[2], low[2];
  for (int half = 0; half < 2; ++half) {
    const __m256i sixteen = half == 0 ? _mm512_castsi512_si256(values) : _mm512_extracti64x4_epi64(values, 1);
    const __m512 value = _mm512_cvtph_ps(sixteen);
    const __m512 coarse = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), upper_half));
    const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(1e30f), _CMP_LT_OQ);
    high[half] = _mm512_srli_epi32(_mm512_castps_si512(coarse), 16);
    low[half] = _mm512_srli_epi32(_mm512_castps_si512(_mm512_maskz_sub_ps(finite, value, coarse)), 16);
  }
  return {join_halves(high[0], high[1]), join_halves(low[0], low[1])};
}

// 16 x 16 transposition of 32-bit elements, in place.
inline void transpose(__m512i (&r)[kEdge]) {
  __m512i t[kEdge];
  for (int i = 0; i < kEdge; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < kEdge; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

// ---- tiles -------------------------------------------------------------------------------------------------------

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// The tile intrinsics do not tell the compiler that they read memory.
inline void stores_are_done() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Up to 2 x 2 result tiles in tile registers 0..3 (row-major); 4 and 5 hold A, 6 and 7 hold B.
template <int kM, int kN>
inline void zero_results() {
  _tile_zero(0);
  if constexpr (kN == 2) _tile_zero(1);
  if constexpr (kM == 2) _tile_zero(2);
  if constexpr (kM == 2 && kN == 2) _tile_zero(3);
}

template <int kM, int kN>
inline void load_results(const float* from, std::size_t stride) {
  _tile_loadd(0, from, stride * sizeof(float));
  if constexpr (kN == 2) _tile_loadd(1, from + kEdge, stride * sizeof(float));
  if constexpr (kM == 2) _tile_loadd(2, from + kEdge * stride, stride * sizeof(float));
  if constexpr (kM == 2 && kN == 2) _tile_loadd(3, from + kEdge * stride + kEdge, stride * sizeof(float));
}

template <int kM, int kN>
inline void store_results(float* to, std::size_t stride) {
  _tile_stored(0, to, stride * sizeof(float));
  if constexpr (kN == 2) _tile_stored(1, to + kEdge, stride * sizeof(float));
  if constexpr (kM == 2) _tile_stored(2, to + kEdge * stride, stride * sizeof(float));
  if constexpr (kM == 2 && kN == 2) _tile_stored(3, to + kEdge * stride + kEdge, stride * sizeof(float));
}

template <int kM>
inline void load_left(const std::uint16_t* a, std::size_t a_next) {
  _tile_loadd(4, a, 64);
  if constexpr (kM == 2) _tile_loadd(5, a + a_next, 64);
}

template <int kM, int kN>
inline void multiply_by(const std::uint16_t* b, std::size_t b_next) {
  _tile_loadd(6, b, 64);
  if constexpr (kN == 2) _tile_loadd(7, b + b_next, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kN == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kM == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kM == 2 && kN == 2) _tile_dpbf16ps(3, 5, 7);
}

// Calls work.template run<kM, kN>(m, n) over a grid of tiles, 2 x 2 of them at a time where there are two.
template <class Work>
inline void for_tile_pairs(int m_begin, int m_end, int n_end, const Work& work) {
  for (int m = m_begin; m < m_end; m += 2) {
    for (int n = 0; n < n_end; n += 2) {
      const bool two_m = m + 1 < m_end, two_n = n + 1 < n_end;
      if (two_m && two_n) work.template run<2, 2>(m, n);
      if (two_m && !two_n) work.template run<2, 1>(m, n);
      if (!two_m && two_n) work.template run<1, 2>(m, n);
      if (!two_m && !two_n) work.template run<1, 1>(m, n);
    }
  }
}

// Where each kind of tile lies in the workspace.
struct Layout {
  explicit Layout(const Extent& e)
      : head_tiles(e.padded_heads() / kEdge), d_steps(e.padded_d() / kStep), value_tiles(e.padded_d_v() / kEdge) {}
  int head_tiles;
  int d_steps;
  int value_tiles;
  static constexpr int kTokenTiles = kBlockTokens / kEdge;
  static constexpr int kTokenSteps = kBlockTokens / kStep;

  std::size_t query(int part, int head_tile, int step) const {
    return ((std::size_t(part) * head_tiles + head_tile) * d_steps + step) * kTileValues;
  }
  std::size_t key(int token_tile, int step) const { return (std::size_t(token_tile) * d_steps + step) * kTileValues; }
  std::size_t value(int value_tile, int step) const {
    return (std::size_t(value_tile) * kTokenSteps + step) * kTileValues;
  }
  std::size_t p(int head_tile, int step, int part) const {
    return ((std::size_t(head_tile) * kTokenSteps + step) * 2 + part) * kTileValues;
  }
};

void reserve(Workspace& w) {
  const Layout at(w.extent);
  w.query_tiles = Buffer<std::uint16_t>(at.query(kQueryParts, 0, 0));
  w.key_tiles = Buffer<std::uint16_t>(at.key(Layout::kTokenTiles, 0));
  w.value_tiles = Buffer<std::uint16_t>(at.value(at.value_tiles, 0));
  w.p_tiles = Buffer<std::uint16_t>(at.p(at.head_tiles, 0, 0));
  w.token_scales = Buffer<float>(std::size_t{kBlockTokens} * w.extent.groups());
}

// ---- queries -----------------------------------------------------------------------------------------------------

int query_parts(const RowCall& call) { return call.q_dtype == DType::kFloat16 ? 2 : 1; }

// 16 heads x 32 values become a B tile.
void store_query_tile(__m512i (&heads)[kEdge], std::uint16_t* tile) {
  transpose(heads);
  for (int r = 0; r < kEdge; ++r) _mm512_store_si512(tile + r * kStep, heads[r]);
}

void load_queries(Workspace& w, const RowCall& call) {
  const TileConfig config;
  _tile_loadconfig(&config);
  const Layout at(w.extent);
  const std::int64_t head_bytes = call.q_head_stride * static_cast<std::int64_t>(bytes_per_element(call.q_dtype));
  const bool two_parts = query_parts(call) == 2;
  for (int head_tile = 0; head_tile < at.head_tiles; ++head_tile) {
    for (int step = 0; step < at.d_steps; step += 2) {
      __m512i first[kEdge], second[kEdge], first_low[kEdge], second_low[kEdge];
      for (int i = 0; i < kEdge; ++i) {
        const int head = head_tile * kEdge + i;
        first[i] = second[i] = first_low[i] = second_low[i] = _mm512_setzero_si512();
        if (head >= call.heads) continue;
        const auto* row = static_cast<const char*>(call.q) + head * head_bytes;
        const TwoSteps values = load_64(row, call.q_dtype, step * kStep, call.d);
        first[i] = values.first;
        second[i] = values.second;
        if (!two_parts) continue;
        const TwoParts a = split_f16(values.first), b = split_f16(values.second);
        first[i] = a.high;
        first_low[i] = a.low;
        second[i] = b.high;
        second_low[i] = b.low;
      }
      store_query_tile(first, &w.query_tiles[at.query(0, head_tile, step)]);
      store_query_tile(second, &w.query_tiles[at.query(0, head_tile, step + 1)]);
      // Zeros where the query has one part.
      store_query_tile(first_low, &w.query_tiles[at.query(1, head_tile, step)]);
      store_query_tile(second_low, &w.query_tiles[at.query(1, head_tile, step + 1)]);
    }
  }
  w.query_tile_parts = two_parts ? 2 : 1;
}

void end_row() { _tile_release(); }

// ---- tokens ------------------------------------------------------------------------------------------------------

void prefetch_row(const void* row, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) _mm_prefetch(static_cast<const char*>(row) + at, _MM_HINT_T0);
}

// One value tile pair: 32 values of 32 tokens, from two key tiles to two transposed tiles.
void transpose_values(const std::uint16_t* low_tokens, const std::uint16_t* high_tokens, std::uint16_t* first,
                      std::uint16_t* second) {
  __m512i low[kEdge], high[kEdge];  // pairs of tokens; in each 128-bit lane L values 8L..8L+3 and 8L+4..8L+7
  for (int pair = 0; pair < kEdge; ++pair) {
    const std::uint16_t* tokens = pair < 8 ? low_tokens + pair * 2 * kStep : high_tokens + (pair - 8) * 2 * kStep;
    const __m512i even = _mm512_load_si512(tokens);
    const __m512i odd = _mm512_load_si512(tokens + kStep);
    low[pair] = _mm512_unpacklo_epi16(even, odd);
    high[pair] = _mm512_unpackhi_epi16(even, odd);
  }
  transpose(low);
  transpose(high);
  for (int i = 0; i < kEdge; ++i) {
    const int value = i / 4 * 8 + i % 4;
    std::uint16_t* tile = value < kEdge ? first : second;
    _mm512_store_si512(tile + value % kEdge * kStep, low[i]);
    _mm512_store_si512(tile + (value + 4) % kEdge * kStep, high[i]);
  }
}

void load_tokens(Workspace& w, const Block& block) {
  const Layout at(w.extent);
  const int padded = round_up(block.count, kStep);
  const std::size_t row_bytes = w.extent.d * bytes_per_element(block.dtype);
  for (int t = 0; t < padded; ++t) {
    if (t + kPrefetch < block.count) prefetch_row(block.tokens[t + kPrefetch].values, row_bytes);
    std::uint16_t* to = &w.key_tiles[at.key(t / kEdge, 0)] + t % kEdge * kStep;
    for (int step = 0; step < at.d_steps; step += 2, to += 2 * kTileValues) {
      TwoSteps values{_mm512_setzero_si512(), _mm512_setzero_si512()};
      if (t < block.count) values = load_64(block.tokens[t].values, block.dtype, step * kStep, w.extent.d);
      _mm512_store_si512(to, values.first);
      _mm512_store_si512(to + kTileValues, values.second);
    }
    if (!block.scaled) continue;
    float* scales = &w.token_scales[std::size_t(t) * w.extent.groups()];
    for (int g = 0; g < w.extent.groups(); ++g) scales[g] = t < block.count ? block.tokens[t].scales[g] : 0.0f;
  }
  for (int step = 0; step < padded / kStep; ++step) {
    for (int tile = 0; tile < at.value_tiles; tile += 2) {
      transpose_values(&w.key_tiles[at.key(2 * step, tile / 2)], &w.key_tiles[at.key(2 * step + 1, tile / 2)],
                       &w.value_tiles[at.value(tile, step)], &w.value_tiles[at.value(tile + 1, step)]);
    }
  }
}

// ---- scores ------------------------------------------------------------------------------------------------------

struct PlainScores {
  Workspace& w;
  Layout at;

  template <int kM, int kN>
  void run(int token_tile, int head_tile) const {
    zero_results<kM, kN>();
    for (int part = 0; part < w.query_tile_parts; ++part) {
      for (int step = 0; step < at.d_steps; ++step) {
        load_left<kM>(&w.key_tiles[at.key(token_tile, step)], at.key(1, 0));
        multiply_by<kM, kN>(&w.query_tiles[at.query(part, head_tile, step)], at.query(0, 1, 0));
      }
    }
    const std::size_t stride = w.extent.stride();
    store_results<kM, kN>(&w.logits[token_tile * kEdge * stride + head_tile * kEdge], stride);
  }
};

// One partial sum per scale group, multiplied by the tokens' float32 scales.
struct ScaledScores {
  Workspace& w;
  Layout at;

  template <int kM, int kN>
  void run(int token_tile, int head_tile) const {
    alignas(64) float partial[2 * kEdge * 2 * kEdge];
    constexpr int kSteps = kScaleGroup / kStep;
    const int groups = w.extent.groups();
    const std::size_t stride = w.extent.stride();
    float* logits = &w.logits[token_tile * kEdge * stride + head_tile * kEdge];
    for (int g = 0; g < groups; ++g) {
      zero_results<kM, kN>();
      for (int part = 0; part < w.query_tile_parts; ++part) {
        for (int step = g * kSteps; step < (g + 1) * kSteps; ++step) {
          load_left<kM>(&w.key_tiles[at.key(token_tile, step)], at.key(1, 0));
          multiply_by<kM, kN>(&w.query_tiles[at.query(part, head_tile, step)], at.query(0, 1, 0));
        }
      }
      store_results<kM, kN>(partial, 2 * kEdge);
      stores_are_done();
      for (int i = 0; i < kM * kEdge; ++i) {
        const __m512 scale = _mm512_set1_ps(w.token_scales[std::size_t(token_tile * kEdge + i) * groups + g]);
        for (int j = 0; j < kN; ++j) {
          float* to = logits + i * stride + j * kEdge;
          const __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_load_ps(to);
          _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(partial + (i * 2 + j) * kEdge), scale, before));
        }
      }
    }
  }
};

void score(Workspace& w, const Block& block) {
  const Layout at(w.extent);
  const int token_tiles = (block.count + kEdge - 1) / kEdge;
  stores_are_done();
  if (block.scaled) {
    for_tile_pairs(0, token_tiles, at.head_tiles, ScaledScores{w, at});
  } else {
    for_tile_pairs(0, token_tiles, at.head_tiles, PlainScores{w, at});
  }
}

// ---- output ------------------------------------------------------------------------------------------------------

// P (times the tokens' scales of `group`) of all heads as B tiles, split in two bf16 numbers.
void split_p(Workspace& w, const Layout& at, int steps, const float* scales, std::size_t scales_stride) {
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const std::size_t stride = w.extent.stride();
  for (int step = 0; step < steps; ++step) {
    for (int r = 0; r < kEdge; ++r) {
      const std::size_t token = step * kStep + 2 * r;
      const __m512 even_scale = _mm512_set1_ps(scales != nullptr ? scales[token * scales_stride] : 1.0f);
      const __m512 odd_scale = _mm512_set1_ps(scales != nullptr ? scales[(token + 1) * scales_stride] : 1.0f);
      const float* p = &w.logits[token * stride];
      for (int tile = 0; tile < at.head_tiles; ++tile, p += kEdge) {
        const __m512 even = _mm512_mul_ps(_mm512_load_ps(p), even_scale);
        const __m512 odd = _mm512_mul_ps(_mm512_load_ps(p + stride), odd_scale);
        const __m512i even_high = _mm512_and_si512(_mm512_castps_si512(even), upper_half);
        const __m512i odd_high = _mm512_and_si512(_mm512_castps_si512(odd), upper_half);
        const __m512i even_low = _mm512_castps_si512(_mm512_sub_ps(even, _mm512_castsi512_ps(even_high)));
        const __m512i odd_low = _mm512_castps_si512(_mm512_sub_ps(odd, _mm512_castsi512_ps(odd_high)));
        std::uint16_t* to = &w.p_tiles[at.p(tile, step, 0)] + r * kStep;
        _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(even_high, 16), odd_high));
        _mm512_store_si512(to + kTileValues, _mm512_or_si512(_mm512_srli_epi32(even_low, 16),
                                                             _mm512_and_si512(odd_low, upper_half)));
      }
    }
  }
}

struct Values {
  Workspace& w;
  Layout at;
  int steps;

  template <int kM, int kN>
  void run(int value_tile, int head_tile) const {
    const std::size_t stride = w.extent.stride();
    float* out = &w.out_t[value_tile * kEdge * stride + head_tile * kEdge];
    load_results<kM, kN>(out, stride);
    for (int step = 0; step < steps; ++step) {
      load_left<kM>(&w.value_tiles[at.value(value_tile, step)], at.value(1, 0));
      multiply_by<kM, kN>(&w.p_tiles[at.p(head_tile, step, 0)], at.p(1, 0, 0));
      multiply_by<kM, kN>(&w.p_tiles[at.p(head_tile, step, 1)], at.p(1, 0, 0));
    }
    store_results<kM, kN>(out, stride);
  }
};

void accumulate(Workspace& w, const Block& block) {
  const Layout at(w.extent);
  const int steps = (block.count + kStep - 1) / kStep;
  const int tiles_per_group = block.scaled ? kScaleGroup / kEdge : at.value_tiles;
  for (int first = 0, group = 0; first < at.value_tiles; first += tiles_per_group, ++group) {
    const float* scales = block.scaled ? &w.token_scales[group] : nullptr;
    split_p(w, at, steps, scales, w.extent.groups());
    stores_are_done();
    const int end = first + tiles_per_group < at.value_tiles ? first + tiles_per_group : at.value_tiles;
    for_tile_pairs(first, end, at.head_tiles, Values{w, at, steps});
  }
}

constexpr RowKernels kKernels{reserve, load_queries, load_tokens, score, accumulate, end_row};

}  // namespace
}  // namespace sparse_mla::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace sparse_mla::cpu {

const RowKernels& amx_kernels() { return kKernels; }

}  // namespace sparse_mla::cpu

#else

namespace sparse_mla::cpu {

bool amx_available() noexcept { return false; }
const RowKernels& amx_kernels() {
  static constexpr RowKernels none{};
  return none;
}

}  // namespace sparse_mla::cpu

#endif

namespace sparse_mla::cpu {

bool amx_serves(const RowCall& call) noexcept {
  for (const TokenList& list : call.lists) {
    if (list.dtype != DType::kFloat8E4M3FN && list.dtype != DType::kBFloat16) return false;
  }
  return true;
}

}  // namespace sparse_mla::cpu
