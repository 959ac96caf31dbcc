// The error catalogue, embedded: its site, the records behind it, and the search for the rule that a text is about.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sparse_mla::catalog {

// A file of the site, which lives as long as the program.
struct SiteFile {
  std::string_view path;        // "index.html", "errors/prefill-q-rank.html", "api/errors/0123456789abcdef"
  std::string_view media_type;  // with its charset
  std::string_view etag;        // in quotes, as HTTP wants it
  std::string_view content;
};
// Sorted by path.
std::span<const SiteFile> site() noexcept;
// Null where the site has no such file.
const SiteFile* site_file(std::string_view path) noexcept;

// Writes the site into a folder, which is made where there is none; other files in it stay. Throws std::runtime_error
// naming the file that could not be written.
void write_site(const std::string& folder);

// How one value of a fix is made from one of the message: the next positive multiple.
struct Derived {
  std::string of;
  std::int64_t multiple = 1;
};

// What finding a rule by its message needs; assets/data.js has the same for the page.
struct Rule {
  std::string slug;
  std::string id;
  std::string call;         // the function that asks for it
  std::string entry_point;  // the contract's entry point, or "files"
  std::vector<std::string> names;
  std::string error_class;
  std::string message;  // with {placeholders}
  std::string pattern;  // of the whole message, for std::regex and JavaScript alike
  std::vector<std::string> groups;  // the pattern's groups, by name
  std::string fix;                  // with {placeholders}
  std::map<std::string, Derived> derived;
  std::vector<std::string> related;  // slugs
};

using Values = std::vector<std::pair<std::string, std::string>>;  // of a message's placeholders, in its order

struct Found {
  const Rule* rule = nullptr;  // null where no message of a rule is in the text
  Values values;
  std::vector<const Rule*> also_possible;  // rules of the same wording, less likely here
  std::vector<const Rule*> earlier;        // what other lines of the text say
  std::vector<const Rule*> nearest;        // three, where nothing was found
};

class Catalog {
 public:
  // Of the embedded site.
  Catalog();
  ~Catalog();
  Catalog(const Catalog&) = delete;

  const std::vector<Rule>& rules() const noexcept;
  const Rule* by_slug(std::string_view slug) const noexcept;
  // `text` is a slug, an id, a message, or anything that holds one of them, such as a traceback.
  Found find(std::string_view text) const;
  // The public record of a rule, and when the catalogue was made: {"record": {...}, "datasetVersion": "..."}.
  nlohmann::ordered_json record(const Rule& rule) const;

 private:
  struct Matchers;
  std::vector<Rule> rules_;
  std::unique_ptr<Matchers> matchers_;
};

// The rule's shortest fix with the message's values in it. A clause whose values the message does not tell is left out;
// where that would leave nothing, the first clause stays with <names> in place of values.
std::string filled_fix(const Rule& rule, const Values& values);

}  // namespace sparse_mla::catalog
