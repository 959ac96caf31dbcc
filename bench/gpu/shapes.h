// What is measured: the shapes of real prefill chunks and decode batches, and the few-head and few-query ones.
#pragma once

#include <array>
#include <cstdint>

#include "sparse_mla/kv_formats.h"

namespace sparse_mla::bench {

struct PrefillShape {
  std::int64_t s_q, s_kv;
  int h_q, d_qk;
  std::int64_t topk;
};
inline constexpr std::array kPrefillShapes{
    PrefillShape{4096, 8192, 128, 576, 2048},   PrefillShape{4096, 32768, 128, 576, 2048},
    PrefillShape{4096, 131072, 128, 576, 2048}, PrefillShape{4096, 32768, 128, 512, 1024},
    PrefillShape{1320, 8192, 128, 576, 8192},   PrefillShape{4096, 32768, 64, 576, 2048},
    PrefillShape{4096, 65536, 64, 512, 512},    PrefillShape{4096, 32768, 32, 576, 2048},
    PrefillShape{4096, 32768, 16, 576, 2048},   PrefillShape{4096, 32768, 8, 576, 2048},
    PrefillShape{437, 32768, 64, 576, 2048},    PrefillShape{512, 32768, 128, 576, 2048},
    PrefillShape{64, 32768, 128, 576, 2048},    PrefillShape{8, 32768, 128, 576, 2048},
    PrefillShape{1, 32768, 128, 576, 2048},     PrefillShape{1, 32768, 16, 576, 2048},
};

enum class Pool : std::uint8_t { kFp8, kBf16 };
struct DecodeShape {
  std::int64_t n;
  int h;
  std::int64_t pool_rows;
  std::int64_t slots;  // per token
  Pool pool;
};
inline constexpr std::array kDecodeShapes{
    DecodeShape{1, 128, 65536, 640, Pool::kFp8},      DecodeShape{8, 128, 65536, 640, Pool::kFp8},
    DecodeShape{32, 128, 262144, 640, Pool::kFp8},    DecodeShape{128, 128, 1048576, 640, Pool::kFp8},
    DecodeShape{128, 128, 1048576, 2048, Pool::kFp8}, DecodeShape{128, 64, 1048576, 640, Pool::kFp8},
    DecodeShape{32, 16, 262144, 640, Pool::kFp8},     DecodeShape{128, 16, 1048576, 640, Pool::kFp8},
    DecodeShape{256, 8, 1048576, 640, Pool::kFp8},    DecodeShape{1, 128, 65536, 640, Pool::kBf16},
    DecodeShape{32, 128, 262144, 640, Pool::kBf16},   DecodeShape{128, 128, 1048576, 2048, Pool::kBf16},
    DecodeShape{128, 16, 1048576, 640, Pool::kBf16},  DecodeShape{256, 8, 1048576, 640, Pool::kBf16},
};
inline constexpr int kDecodeDim = 512;

// Transfers of cache rows: append from plain rows, dequantise to them, gather into a q8kv8 workspace.
enum class KvVerb : std::uint8_t { kAppend, kDequantise, kGather };
struct KvShape {
  KvVerb verb;
  KvFormat format;  // of the cache
  int width;
  bool unique_slots = false;  // an append whose caller promises it
};
inline constexpr std::int64_t kKvRows = std::int64_t{1} << 20;
inline constexpr std::array kKvShapes{
    KvShape{KvVerb::kAppend, KvFormat::kQ8Kv8_576, 576},
    KvShape{KvVerb::kAppend, KvFormat::kQ8Kv8_576, 576, true},
    KvShape{KvVerb::kAppend, KvFormat::kUnifiedFp8_1x64, 512},
    KvShape{KvVerb::kAppend, KvFormat::kV32_656, 576},
    KvShape{KvVerb::kAppend, KvFormat::kV4_584, 512},
    KvShape{KvVerb::kAppend, KvFormat::kV4_584, 512, true},
    KvShape{KvVerb::kDequantise, KvFormat::kQ8Kv8_576, 576},
    KvShape{KvVerb::kDequantise, KvFormat::kUnifiedFp8_1x64, 512},
    KvShape{KvVerb::kDequantise, KvFormat::kV32_656, 576},
    KvShape{KvVerb::kDequantise, KvFormat::kV4_584, 512},
    KvShape{KvVerb::kGather, KvFormat::kUnifiedBf16, 576},
    KvShape{KvVerb::kGather, KvFormat::kUnifiedFp8_1x64, 512},
    KvShape{KvVerb::kGather, KvFormat::kV32_656, 576},
    KvShape{KvVerb::kGather, KvFormat::kV4_584, 512},
};

}  // namespace sparse_mla::bench
