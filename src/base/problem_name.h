// One line of text names a problem, in tests, benchmarks, the command line and failure messages:
//
//   prefill:sq64:skv8192:hq128:dqk576:topk2048:sink:len
//   decode:n32:pages65536:h128:d512:tokens640:fp8:sink:seed7
//
// The first word is the entry point; the rest are fields in any order, a word with a number or a word alone. What is
// left out has its default. The same line and the same maker give the same numbers everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/problem.h"

namespace sparse_mla {

struct ProblemName {
  enum class EntryPoint : std::uint8_t { kPrefill, kDecode };
  enum class Data : std::uint8_t {
    kNormal,  // standard normal q and kv; logits of order 1
    kWide,    // the same with a scale that spreads the logits of a row over about 200
    kPeak,    // one token of each row outweighs all others
    kEqual,   // all tokens are the same row, so all logits are equal
  };
  enum class KvFormat : std::uint8_t {
    kFp8,    // e4m3fn; in decode with one float32 scale per 64 values
    kLikeQ,  // decode: q's format
  };

  EntryPoint entry_point = EntryPoint::kPrefill;
  // Words of prefill / of decode:
  std::int64_t rows = 4;      // sq / n
  std::int64_t kv_rows = 300;  // skv / pages
  std::int64_t topk = 64;     // topk / tokens: list length of a row (its largest, where lengths vary)
  int heads = 8;              // hq / h
  int d = 512;                // dqk / d
  int d_v = 0;                // dv; 0 is min(d, 512) in prefill and d in decode
  bool sink = false;          // sink: attn_sink, with finite values near the lse, far from it, and both infinities
  bool lengths = false;       // len: row lengths vary: 0, full, between; in prefill also below 0 and above topk
  bool holes = false;         // holes: -1 and out-of-range indices anywhere, among them one whole row
  bool duplicates = false;    // dup: tokens listed more than once
  bool strided = false;       // strided: q and kv rows have gaps, filled with NaN
  bool float16 = false;       // f16: decode's q is float16, otherwise bfloat16
  KvFormat kv_format = KvFormat::kLikeQ;  // fp8 (decode; prefill is always fp8)
  bool scale_spread = false;  // spread: decode's kv scales lie in 2^-20 .. 2^20, otherwise in 0.5 .. 2
  bool second_pool = false;   // second: decode attends a second pool too, of half the list length
  Data data = Data::kNormal;  // wide, peak, equal
  std::uint64_t seed = 1;     // seed

  int value_width() const noexcept {
    if (d_v != 0) return d_v;
    return entry_point == EntryPoint::kPrefill && d > 512 ? 512 : d;
  }
  friend bool operator==(const ProblemName&, const ProblemName&) = default;
};

// Throws std::invalid_argument that quotes the word it does not know.
ProblemName parse_problem_name(std::string_view text);
// The inverse: all sizes, and whatever differs from its default.
std::string to_string(const ProblemName& name);

// What can be told of a problem at hand: its sizes and which arguments it has, not its data. Decode's list length is
// the average one.
ProblemName name_of(const PrefillProblem& problem);
ProblemName name_of(const DecodeProblem& problem);

}  // namespace sparse_mla
