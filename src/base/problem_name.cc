#include "base/problem_name.h"

#include <charconv>
#include <stdexcept>

namespace sparse_mla {
namespace {

using EntryPoint = ProblemName::EntryPoint;
using Data = ProblemName::Data;

[[noreturn]] void refuse(std::string_view word, std::string_view text, const char* why) {
  throw std::invalid_argument("problem \"" + std::string(text) + "\": \"" + std::string(word) + "\" " + why);
}

struct Words {
  const char *rows, *kv_rows, *heads, *d, *topk;
};
constexpr Words kPrefillWords{"sq", "skv", "hq", "dqk", "topk"};
constexpr Words kDecodeWords{"n", "pages", "h", "d", "tokens"};

const Words& words_of(EntryPoint entry_point) {
  return entry_point == EntryPoint::kPrefill ? kPrefillWords : kDecodeWords;
}

// The flag that `word` names, or null.
bool* flag(ProblemName& name, std::string_view word) {
  if (word == "sink") return &name.sink;
  if (word == "len") return &name.lengths;
  if (word == "holes") return &name.holes;
  if (word == "dup") return &name.duplicates;
  if (word == "strided") return &name.strided;
  if (name.entry_point == EntryPoint::kPrefill) return nullptr;
  if (word == "f16") return &name.float16;
  if (word == "spread") return &name.scale_spread;
  if (word == "second") return &name.second_pool;
  return nullptr;
}

bool set_data(ProblemName& name, std::string_view word) {
  if (word == "wide") name.data = Data::kWide;
  if (word == "peak") name.data = Data::kPeak;
  if (word == "equal") name.data = Data::kEqual;
  return word == "wide" || word == "peak" || word == "equal";
}

bool set_number(ProblemName& name, std::string_view word, std::int64_t number) {
  const Words& words = words_of(name.entry_point);
  if (word == words.rows) return name.rows = number, true;
  if (word == words.kv_rows) return name.kv_rows = number, true;
  if (word == words.topk) return name.topk = number, true;
  if (word == words.heads) return name.heads = static_cast<int>(number), true;
  if (word == words.d) return name.d = static_cast<int>(number), true;
  if (word == "dv") return name.d_v = static_cast<int>(number), true;
  if (word == "seed") return name.seed = static_cast<std::uint64_t>(number), true;
  return false;
}

void set_field(ProblemName& name, std::string_view field, std::string_view text) {
  if (bool* set = flag(name, field)) {
    *set = true;
    return;
  }
  if (set_data(name, field)) return;
  if (field == "fp8" && name.entry_point == EntryPoint::kDecode) {
    name.kv_format = ProblemName::KvFormat::kFp8;
    return;
  }
  const std::size_t digits = field.find_first_of("0123456789");
  if (digits == std::string_view::npos) refuse(field, text, "is no field of this entry point");
  std::int64_t number = 0;
  const char* end = field.data() + field.size();
  const auto [rest, error] = std::from_chars(field.data() + digits, end, number);
  if (error != std::errc{} || rest != end || number > 1'000'000'000) refuse(field, text, "does not end in a number");
  if (!set_number(name, field.substr(0, digits), number)) refuse(field, text, "is no field of this entry point");
}

}  // namespace

ProblemName parse_problem_name(std::string_view text) {
  ProblemName name;
  std::string_view rest = text;
  for (bool first = true; first || !rest.empty(); first = false) {
    const std::size_t colon = rest.find(':');
    const std::string_view word = rest.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
    if (!first) {
      set_field(name, word, text);
    } else if (word == "decode") {
      name.entry_point = EntryPoint::kDecode;
    } else if (word != "prefill") {
      refuse(word, text, "is neither prefill nor decode");
    }
  }
  return name;
}

std::string to_string(const ProblemName& name) {
  const bool prefill = name.entry_point == EntryPoint::kPrefill;
  const Words& words = words_of(name.entry_point);
  std::string text = prefill ? "prefill" : "decode";
  const auto number = [](const char* word, auto value) {
    return std::string(1, ':').append(word).append(std::to_string(value));
  };
  text += number(words.rows, name.rows) + number(words.kv_rows, name.kv_rows) + number(words.heads, name.heads) +
          number(words.d, name.d) + number(words.topk, name.topk);
  if (name.d_v != 0) text += number("dv", name.d_v);
  if (name.float16) text += ":f16";
  if (!prefill && name.kv_format == ProblemName::KvFormat::kFp8) text += ":fp8";
  if (name.scale_spread) text += ":spread";
  if (name.second_pool) text += ":second";
  if (name.sink) text += ":sink";
  if (name.lengths) text += ":len";
  if (name.holes) text += ":holes";
  if (name.duplicates) text += ":dup";
  if (name.strided) text += ":strided";
  if (name.data == Data::kWide) text += ":wide";
  if (name.data == Data::kPeak) text += ":peak";
  if (name.data == Data::kEqual) text += ":equal";
  if (name.seed != ProblemName{}.seed) text += number("seed", name.seed);
  return text;
}

ProblemName name_of(const PrefillProblem& problem) {
  ProblemName name;
  name.entry_point = ProblemName::EntryPoint::kPrefill;
  name.rows = problem.s_q;
  name.kv_rows = problem.s_kv;
  name.topk = problem.topk;
  name.heads = problem.h_q;
  name.d = problem.d_qk;
  name.d_v = problem.d_v;
  name.sink = problem.attn_sink != nullptr;
  name.lengths = problem.topk_length != nullptr;
  name.strided = problem.kv_row_stride != problem.d_qk || problem.q_head_stride != problem.d_qk;
  return name;
}

ProblemName name_of(const DecodeProblem& problem) {
  ProblemName name;
  name.entry_point = ProblemName::EntryPoint::kDecode;
  name.rows = problem.n;
  name.kv_rows = problem.pool.total_pages;
  name.topk = problem.n == 0 ? 0 : problem.pool.total_indices / problem.n;
  name.heads = problem.h;
  name.d = problem.d;
  name.d_v = problem.d_v;
  name.sink = problem.attn_sink != nullptr;
  name.strided = problem.pool.kv_row_stride != problem.d || problem.q_head_stride != problem.d;
  name.float16 = problem.q_dtype == DType::kFloat16;
  name.kv_format = problem.pool.kv_dtype == DType::kFloat8E4M3FN ? ProblemName::KvFormat::kFp8
                                                                 : ProblemName::KvFormat::kLikeQ;
  name.second_pool = problem.second_pool.indptr != nullptr;
  return name;
}

}  // namespace sparse_mla
