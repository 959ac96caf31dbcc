// Calls made from a seed: what make-case writes, demo runs and bench times.
#pragma once

#include <cstdint>
#include <vector>

#include "sparse_mla/calls.h"

namespace sparse_mla::cli {

struct PrefillShape {
  std::int64_t s_q = 8;
  std::int64_t s_kv = 8192;
  std::int64_t h_q = 128;
  std::int64_t d_qk = 576;
  std::int64_t topk = 2048;
  std::int64_t d_v = 512;
  bool sink = false;     // attn_sink, and topk_length with it
  bool lengths = false;  // topk_length, uniform in [0, topk]
};

struct DecodeShape {
  std::int64_t n = 8;
  std::int64_t h = 128;
  std::int64_t d = 512;
  std::int64_t pages = 65536;
  std::int64_t tokens = 640;      // slots per query
  bool ragged = false;            // segment lengths uniform in [0, tokens] instead
  DType q_dtype = DType::kBFloat16;
  bool fp8 = true;                // the pool in e4m3fn with 1x64 scales, else in q's dtype
};

// Standard-normal q and kv, quantised to e4m3fn with one scale each (largest magnitude / 448); distinct uniformly
// random tokens in a row, -1 past s_kv of them; sm_scale = 1 / sqrt(d_qk). Throws std::invalid_argument for a shape
// with a negative size or more than 2^33 elements in a tensor.
class PrefillCase {
 public:
  PrefillCase(const PrefillShape& shape, std::uint64_t seed);
  PrefillCase(const PrefillCase&) = delete;
  PrefillCase& operator=(const PrefillCase&) = delete;
  const PrefillCall& call() const { return call_; }

 private:
  std::vector<std::uint8_t> q_, kv_;
  std::vector<std::int32_t> indices_, topk_length_;
  std::vector<float> attn_sink_;
  float q_scale_ = 1, kv_scale_ = 1;
  PrefillCall call_;
};

// Standard-normal q and pool; an e4m3fn pool has one scale per 64 values (largest magnitude / 448); distinct uniformly
// random slots in a segment, -1 past `pages` of them; a standard-normal sink; softmax_scale = 1 / sqrt(d).
class DecodeCase {
 public:
  DecodeCase(const DecodeShape& shape, std::uint64_t seed);
  DecodeCase(const DecodeCase&) = delete;
  DecodeCase& operator=(const DecodeCase&) = delete;
  const DecodeCall& call() const { return call_; }

 private:
  std::vector<std::uint16_t> q_, wide_kv_;
  std::vector<std::uint8_t> fp8_kv_;
  std::vector<float> kv_scales_, attn_sink_;
  std::vector<std::int32_t> indices_, indptr_;
  DecodeCall call_;
};

}  // namespace sparse_mla::cli
