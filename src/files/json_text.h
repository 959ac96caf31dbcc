// JSON as it arrives from strangers: bounded depth, no key twice, errors that say where.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sparse_mla::files {

struct JsonSource {
  std::string_view path;         // for messages
  bool is_header = false;        // a position reads "header byte 12" rather than "line 3, column 4"
  std::size_t deepest_level = 8;
};

// Throws FileError: kJsonSyntax, kJsonTooDeep, kJsonDuplicateKey.
nlohmann::json parse_json(std::string_view text, const JsonSource& source);

// "a string", "an object", ...: what a message says it got.
std::string kind_of(const nlohmann::json& value);

}  // namespace sparse_mla::files
