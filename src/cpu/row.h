// One query row on its way through the CPU backend: what is asked (RowCall), the memory one thread works in
// (Workspace), and the steps that a set of kernels provides (RowKernels). A row is served block by block:
//
//   load_tokens   gather and convert up to kBlockTokens kv rows
//   score         logits[t][head]  = query . key                             (unscaled)
//   soften        logits[t][head] -> P, new max and sum; out_t *= exp(max_old - max_new)
//   accumulate    out_t[j][head]  += sum over t of value[t][j] * P[t][head]
//
// Heads run along the SIMD lanes everywhere, so the softmax needs no horizontal operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/problem.h"

namespace sparse_mla::cpu {

inline constexpr int kBlockTokens = 128;  // whole AMX steps of 32; a block's K, V and P stay in a 2 MiB L2 at 128 heads
inline constexpr int kLaneHeads = 16;     // heads are padded to this: the widest vector, and the edge of an AMX tile
inline constexpr int kScaleGroup = 64;    // values of a kv row that share one scale

constexpr int round_up(int value, int step) { return (value + step - 1) / step * step; }

// Zeroed memory, aligned for every vector width.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t count) : data_(count == 0 ? nullptr : new (kAlignment) T[count]()) {}
  Buffer(Buffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~Buffer() { ::operator delete[](data_, kAlignment); }
  T* get() const noexcept { return data_; }
  T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  T* data_ = nullptr;
};

// A list of tokens in one pool. Strides count elements.
struct TokenList {
  const std::int32_t* indices = nullptr;  // [count]; outside [0, rows) is "no token"
  std::int64_t count = 0;
  std::int64_t rows = 0;
  const void* kv = nullptr;
  DType dtype = DType::kFloat8E4M3FN;
  std::int64_t row_stride = 0;
  const float* scales = nullptr;  // one per kScaleGroup values of a row, or null
  std::int64_t scales_row_stride = 0;
};

struct RowCall {
  int heads = 0;
  int d = 0;
  int d_v = 0;
  DType q_dtype = DType::kFloat8E4M3FN;
  const void* q = nullptr;  // [heads, d]
  std::int64_t q_head_stride = 0;
  float logit_scale = 1.0f;  // all scalars that multiply query . key
  float value_scale = 1.0f;  // the scalar that multiplies the values
  std::array<TokenList, 2> lists;
  const float* sink = nullptr;  // [heads] or null

  DType out_dtype = DType::kBFloat16;
  std::uint16_t* out = nullptr;  // [heads, d_v]
  float* max_logits = nullptr;   // [heads] or null
  float* lse = nullptr;          // [heads] or null
};

// A listed kv row; scales is null where the pool has none.
struct Token {
  const void* values;
  const float* scales;
};

// Tokens of one pool, count <= kBlockTokens.
struct Block {
  const Token* tokens = nullptr;
  int count = 0;
  DType dtype = DType::kFloat8E4M3FN;
  bool scaled = false;
};

struct Extent {
  int heads = 0;
  int d = 0;
  int d_v = 0;
  int padded_heads() const { return round_up(heads, kLaneHeads); }
  // From one matrix row to the next. Never a multiple of 256 bytes, so that rows spread over the sets of L1.
  int stride() const { return padded_heads() % (4 * kLaneHeads) == 0 ? padded_heads() + kLaneHeads : padded_heads(); }
  int padded_d() const { return round_up(d, kScaleGroup); }
  int padded_d_v() const { return round_up(d_v, 32); }
  int groups() const { return padded_d() / kScaleGroup; }
};

// The memory of one thread, reused from row to row. Matrices over heads are row-major, Extent::stride() wide.
struct Workspace {
  explicit Workspace(const Extent& extent)
      : extent(extent),
        logits(std::size_t{kBlockTokens} * extent.stride()),
        out_t(std::size_t(extent.padded_d_v()) * extent.stride()),
        max(extent.padded_heads()),
        sum(extent.padded_heads()) {}

  Extent extent;
  Buffer<float> logits;  // [kBlockTokens][heads]: S, then P
  Buffer<float> out_t;   // [padded_d_v][heads]: the output, transposed, not yet divided
  Buffer<float> max;     // [padded_heads]
  Buffer<float> sum;     // [padded_heads]
  std::array<Token, kBlockTokens> tokens;

  // float32 kernels
  Buffer<float> queries_t;  // [d][heads]
  Buffer<float> rows;       // [kBlockTokens][padded_d]

  // AMX kernels; tiles of 1 KiB, see amx.cc
  Buffer<std::uint16_t> query_tiles;
  int query_tile_parts = 1;  // a float16 query takes two
  Buffer<std::uint16_t> key_tiles;
  Buffer<std::uint16_t> value_tiles;
  Buffer<std::uint16_t> p_tiles;
  Buffer<float> token_scales;  // [kBlockTokens][groups]
};

// The steps that differ between instruction sets. Plain functions, so that each set is compiled in a file of its own.
struct RowKernels {
  void (*reserve)(Workspace&);                      // allocates its part of the workspace
  void (*load_queries)(Workspace&, const RowCall&);  // start of a row
  void (*load_tokens)(Workspace&, const Block&);
  void (*score)(Workspace&, const Block&);
  void (*accumulate)(Workspace&, const Block&);
  void (*end_row)();
};

}  // namespace sparse_mla::cpu
