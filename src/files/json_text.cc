#include "files/json_text.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "files/faults.h"

namespace sparse_mla::files {
namespace {

using nlohmann::json;

// Watches the parser's events; refuses what the parser itself would let pass.
class Guard {
 public:
  explicit Guard(const JsonSource& source) : source_(source) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        require_depth(depth);
        keys_.emplace_back();
        break;
      case json::parse_event_t::array_start:
        require_depth(depth);
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) {
          throw FileError(source_.path, Fault::kJsonDuplicateKey, {{"key", in_quotes(key)}});
        }
        break;
      }
      default:
        break;
    }
    return true;
  }

 private:
  void require_depth(int depth) const {
    if (static_cast<std::size_t>(depth) >= source_.deepest_level) {
      throw FileError(source_.path, Fault::kJsonTooDeep, {{"limit", std::to_string(source_.deepest_level)}});
    }
  }

  const JsonSource& source_;
  std::vector<std::set<std::string>> keys_;  // one set for each open object
};

std::string position(std::string_view text, std::size_t byte, bool is_header) {
  const std::size_t index = std::min(byte > 0 ? byte - 1 : 0, text.size());
  if (is_header) return "header byte " + std::to_string(index);
  const std::string_view before = text.substr(0, index);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t line_start = before.find_last_of('\n') + 1;  // npos + 1 is 0
  return "line " + std::to_string(line) + ", column " + std::to_string(index - line_start + 1);
}

}  // namespace

json parse_json(std::string_view text, const JsonSource& source) {
  Guard guard(source);
  try {
    return json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const json::parse_error& error) {
    throw FileError(source.path, Fault::kJsonSyntax, {{"where", position(text, error.byte, source.is_header)}});
  } catch (const json::out_of_range&) {  // a number past the range of a double
    throw FileError(source.path, Fault::kJsonSyntax, {{"where", "a number that no double can hold"}});
  }
}

std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return in_quotes(value.get_ref<const std::string&>());
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    default:
      return value.dump();
  }
}

}  // namespace sparse_mla::files
