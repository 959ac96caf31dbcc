// The same search, step by step, as site/match.js; tests/catalog/matching_cases.json holds both to the same answers.
//
// 1. A word of the text that is a slug or an id names its rule; the last such word wins.
// 2. Else each line is searched for messages. A message may begin at the line's start or behind a blank, a quote, an
//    opening bracket or a backtick; it must end at a word's end. The longest one in a line is it, the last line that has
//    one names the rule: that is what was raised last.
// 3. Rules of one wording are told apart by the exception's name and by function names in the text.
// 4. Nothing found: the three rules whose wording has the most letter triples in common with a line.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <stdexcept>

#include "catalog/catalog.h"
#include "catalog/similarity.h"

namespace sparse_mla::catalog {
namespace {

// std::regex recurses with the length of what it matches: longer lines are cut.
constexpr std::size_t kMaxLine = 2000;
constexpr std::size_t kMaxLines = 4000;
constexpr std::size_t kLinesCompared = 20;
constexpr std::size_t kNearest = 3;

struct Message {
  const Rule* rule;
  std::size_t length;
  Values values;
};

bool is_space(char letter) { return std::string_view(" \t\r\n\f\v").find(letter) != std::string_view::npos; }
bool is_word_letter(char letter) {
  return letter == '_' || (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
         (letter >= 'A' && letter <= 'Z');
}
bool may_begin_at(std::string_view line, std::size_t start) {
  return start == 0 || is_space(line[start - 1]) ||
         std::string_view("\"'`([").find(line[start - 1]) != std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end)).substr(0, kMaxLine);
    if (!line.empty()) lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
  return lines;
}

template <class IsLetter>
std::vector<std::string_view> words_of(std::string_view text, IsLetter is_letter) {
  std::vector<std::string_view> words;
  for (std::size_t start = 0; start < text.size();) {
    std::size_t end = start;
    while (end < text.size() && is_letter(text[end])) ++end;
    if (end > start) words.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

std::vector<std::string_view> error_names(std::string_view error_class) {
  if (error_class == "ValueError") return {"ValueError", "InvalidCall", "std::invalid_argument"};
  if (error_class == "RuntimeError") return {"RuntimeError", "RefusedCall", "std::runtime_error"};
  return {error_class};
}

int likelihood(const Rule& rule, std::string_view line, std::string_view text) {
  int score = 0;
  for (const std::string_view name : error_names(rule.error_class)) {
    if (line.find(name) != std::string_view::npos) {
      score += 8;
    } else if (text.find(name) != std::string_view::npos) {
      score += 2;
    }
  }
  if (text.find(rule.entry_point) != std::string_view::npos) score += 4;
  for (const std::string_view word : words_of(text, is_word_letter)) {
    if (word != rule.entry_point && std::ranges::find(rule.names, word) != rule.names.end()) return score + 1;
  }
  return score;
}

std::vector<const Rule*> nearest_rules(std::vector<std::string_view> lines, const std::vector<Rule>& rules) {
  if (lines.size() > kLinesCompared) lines.erase(lines.begin(), lines.end() - kLinesCompared);
  std::vector<Triples> asked;
  for (std::string_view line : lines) {
    std::size_t prefix = 0;
    for (const std::string_view mark : {std::string_view("Error:"), std::string_view("what():")}) {
      const std::size_t at = line.rfind(mark);
      if (at != std::string_view::npos) prefix = std::max(prefix, at + mark.size());
    }
    asked.push_back(triples(line.substr(prefix)));
  }
  std::vector<std::pair<double, const Rule*>> scored;
  for (const Rule& rule : rules) {
    double score = 0;
    for (const Triples& wording : {triples(rule.message), triples(rule.slug)}) {
      for (const Triples& one : asked) score = std::max(score, similarity(one, wording));
    }
    scored.emplace_back(score, &rule);
  }
  std::ranges::stable_sort(scored, std::ranges::greater{}, &std::pair<double, const Rule*>::first);
  std::vector<const Rule*> nearest;
  for (std::size_t i = 0; i < std::min(kNearest, scored.size()); ++i) nearest.push_back(scored[i].second);
  return nearest;
}

nlohmann::ordered_json embedded_json(std::string_view path) {
  const SiteFile* file = site_file(path);
  if (file == nullptr) throw std::runtime_error("the embedded catalogue lacks " + std::string(path));
  const std::string_view text = file->content;
  const std::size_t begin = text.find('{');
  const std::size_t end = text.rfind('}');  // data.js has a name before the object and a semicolon behind it
  return nlohmann::ordered_json::parse(text.substr(begin, end - begin + 1));
}

Rule rule_of(const nlohmann::ordered_json& entry) {
  Rule rule{.slug = entry.at("slug"),
            .id = entry.at("id"),
            .call = entry.at("call"),
            .entry_point = entry.at("entryPoint"),
            .names = entry.at("names"),
            .error_class = entry.at("errorClass"),
            .message = entry.at("message"),
            .pattern = entry.at("pattern"),
            .groups = entry.at("groups"),
            .fix = entry.at("fix"),
            .derived = {},
            .related = entry.at("related")};
  for (const auto& [name, how] : entry.at("derived").items()) {
    rule.derived[name] = {how.at("of").get<std::string>(), how.at("multiple").get<std::int64_t>()};
  }
  return rule;
}

std::optional<std::string> derived_value(const Derived& how, const Values& values) {
  const auto from = std::ranges::find(values, how.of, &Values::value_type::first);
  if (from == values.end() || from->second.size() > 15) return std::nullopt;
  try {
    const std::int64_t number = std::stoll(from->second);
    if (number <= 0) return std::to_string(how.multiple);
    return std::to_string((number + how.multiple - 1) / how.multiple * how.multiple);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Replaces what of the {names} in a clause has a value; *missing says whether one has none.
std::string filled_clause(std::string_view clause, const Values& values, bool* missing, bool mark_missing) {
  std::string filled;
  *missing = false;
  while (!clause.empty()) {
    const std::size_t open = clause.find('{');
    const std::size_t close = clause.find('}', open);
    if (close == std::string_view::npos) break;
    const std::string_view name = clause.substr(open + 1, close - open - 1);
    const auto value = std::ranges::find(values, name, &Values::value_type::first);
    filled += clause.substr(0, open);
    if (value != values.end()) {
      filled += value->second;
    } else {
      *missing = true;
      filled += mark_missing ? "<" + std::string(name) + ">" : "";
    }
    clause.remove_prefix(close + 1);
  }
  return filled.append(clause);
}

}  // namespace

struct Catalog::Matchers {
  std::vector<std::regex> patterns;  // one a rule

  // The longest messages in a line: several where rules share their wording.
  std::vector<Message> messages_in(std::string_view line, const std::vector<Rule>& rules) const {
    std::vector<Message> best;
    for (std::size_t start = 0; start < line.size(); ++start) {
      if (!may_begin_at(line, start)) continue;
      const char* begin = line.data() + start;
      const char* end = line.data() + line.size();
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        std::cmatch match;
        if (!std::regex_search(begin, end, match, patterns[i], std::regex_constants::match_continuous)) continue;
        const auto length = static_cast<std::size_t>(match.length());
        if (!best.empty() && best.front().length > length) continue;
        if (!best.empty() && best.front().length < length) best.clear();
        best.push_back({&rules[i], length, values_of(rules[i], match)});
      }
    }
    return best;
  }

  static Values values_of(const Rule& rule, const std::cmatch& match) {
    Values values;
    for (std::size_t i = 0; i < rule.groups.size() && i + 1 < match.size(); ++i) {
      if (match[i + 1].matched) values.emplace_back(rule.groups[i], match[i + 1].str());
    }
    return values;
  }
};

Catalog::Catalog() : matchers_(std::make_unique<Matchers>()) {
  const nlohmann::ordered_json data = embedded_json("assets/data.js");
  for (const auto& entry : data.at("rules")) {
    rules_.push_back(rule_of(entry));
    matchers_->patterns.emplace_back("(?:" + rules_.back().pattern + ")(?![A-Za-z0-9_])", std::regex::ECMAScript);
  }
}
Catalog::~Catalog() = default;

const std::vector<Rule>& Catalog::rules() const noexcept { return rules_; }

const Rule* Catalog::by_slug(std::string_view slug) const noexcept {
  const auto at = std::ranges::find(rules_, slug, &Rule::slug);
  return at == rules_.end() ? nullptr : &*at;
}

nlohmann::ordered_json Catalog::record(const Rule& rule) const { return embedded_json("api/errors/" + rule.id); }

Found Catalog::find(std::string_view text) const {
  const std::vector<std::string_view> lines = lines_of(text);
  std::vector<std::vector<Message>> hits;  // of each line that has one, likeliest first
  for (const std::string_view line : lines) {
    std::vector<Message> messages = matchers_->messages_in(line, rules_);
    if (messages.empty()) continue;
    std::ranges::stable_sort(messages, std::ranges::greater{},
                             [&](const Message& one) { return likelihood(*one.rule, line, text); });
    hits.push_back(std::move(messages));
  }
  Found found;
  for (const std::string_view word : words_of(text, [](char c) { return c != '_' && (c == '-' || is_word_letter(c)); })) {
    for (const Rule& rule : rules_) {
      if (rule.slug == word || rule.id == word) found.rule = &rule;
    }
  }
  if (found.rule != nullptr) {
    for (const std::vector<Message>& messages : hits) {
      const auto told = std::ranges::find(messages, found.rule, &Message::rule);
      if (told != messages.end()) found.values = told->values;
    }
    return found;
  }
  if (hits.empty()) {
    found.nearest = nearest_rules(lines, rules_);
    return found;
  }
  found.rule = hits.back().front().rule;
  found.values = hits.back().front().values;
  for (std::size_t i = 1; i < hits.back().size(); ++i) found.also_possible.push_back(hits.back()[i].rule);
  for (std::size_t i = 0; i + 1 < hits.size(); ++i) {
    const Rule* rule = hits[i].front().rule;
    if (rule != found.rule && std::ranges::find(found.earlier, rule) == found.earlier.end()) found.earlier.push_back(rule);
  }
  return found;
}

std::string filled_fix(const Rule& rule, const Values& values) {
  Values all = values;
  for (const auto& [name, how] : rule.derived) {
    if (const std::optional<std::string> value = derived_value(how, values)) all.emplace_back(name, *value);
  }
  std::string fix;
  bool missing = false;
  std::string_view rest = rule.fix;
  const std::string_view first = rest.substr(0, rest.find("; "));
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find("; "), rest.size());
    const std::string clause = filled_clause(rest.substr(0, end), all, &missing, false);
    if (!missing) fix.append(fix.empty() ? "" : "; ").append(clause);
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return fix.empty() ? filled_clause(first, all, &missing, true) : fix;
}

}  // namespace sparse_mla::catalog
