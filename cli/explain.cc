#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "catalog/catalog.h"
#include "cli/command.h"

namespace sparse_mla::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kTextWidth = 100;

// Prose broken between words, each line behind `indent`; the first line behind `first` where that is given.
void print_wrapped(std::string_view text, const std::string& indent, const std::string& first) {
  std::string line = first;
  bool is_empty = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!is_empty && line.size() + 1 + word.size() > kTextWidth) {
      std::cout << line << '\n';
      line = indent;
      is_empty = true;
    }
    if (!is_empty) line += ' ';
    line += word;
    is_empty = false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::cout << line << '\n';
}

void print_section(const std::string& title, const std::string& text) {
  std::cout << '\n' << title << '\n';
  print_wrapped(text, "  ", "  ");
}

void print_list(const std::string& title, const ordered_json& items, bool numbered) {
  std::cout << '\n' << title << '\n';
  int number = 0;
  for (const ordered_json& item : items) {
    const std::string mark = numbered ? std::to_string(++number) + ". " : "- ";
    print_wrapped(item.get_ref<const std::string&>(), std::string(2 + mark.size(), ' '), "  " + mark);
  }
}

void print_code(const std::string& title, const ordered_json& code) {
  if (!code.is_string()) return;
  std::cout << '\n' << title << '\n';
  std::string_view rest = code.get_ref<const std::string&>();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::cout << (end > 0 ? "  " : "") << rest.substr(0, end) << '\n';
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

void print_rules(const std::string& title, const std::vector<const catalog::Rule*>& rules) {
  if (rules.empty()) return;
  std::cout << '\n' << title << '\n';
  for (const catalog::Rule* rule : rules) std::cout << "  " << rule->slug << "  " << rule->message << '\n';
}

std::vector<const catalog::Rule*> related_rules(const catalog::Catalog& all, const catalog::Rule& rule) {
  std::vector<const catalog::Rule*> related;
  for (const std::string& slug : rule.related) {
    if (const catalog::Rule* other = all.by_slug(slug)) related.push_back(other);
  }
  return related;
}

// The message with the values that are known in it.
std::string filled_message(const catalog::Rule& rule, const catalog::Values& values) {
  std::string message = rule.message;
  for (const auto& [name, value] : values) {
    const std::size_t at = message.find("{" + name + "}");
    if (at != std::string::npos) message.replace(at, name.size() + 2, value);
  }
  return message;
}

void print_text(const catalog::Catalog& all, const catalog::Found& found) {
  const catalog::Rule& rule = *found.rule;
  const ordered_json record = all.record(rule).at("record");
  std::cout << rule.error_class << ": " << filled_message(rule, found.values) << '\n'
            << "  rule  " << rule.slug << " (" << rule.id << ")\n"
            << "  from  " << (rule.entry_point == "files" ? "the file reader and writer" : rule.call) << ", "
            << record.at("filePath").get_ref<const std::string&>() << ':' << record.at("lineNumber") << '\n';
  for (const auto& [name, value] : found.values) std::cout << "  here  " << name << " = " << value << '\n';
  print_section("Fix", catalog::filled_fix(rule, found.values));
  print_section("What it means", record.at("documentation"));
  print_section("When it happens", record.at("triggerScenarios"));
  print_section("Common situations", record.at("commonSituations"));
  print_list("What to do, likeliest first", record.at("solutions"), true);
  print_code("Example", record.at("exampleFix"));
  print_code("Check before the call", record.at("validationCode"));
  print_list("So that it does not come back", record.at("preventionTips"), false);
  print_rules("Another call says this too", found.also_possible);
  print_rules("Also in this text", found.earlier);
  print_rules("Related errors", related_rules(all, rule));
}

ordered_json slugs_of(const std::vector<const catalog::Rule*>& rules) {
  ordered_json slugs = ordered_json::array();
  for (const catalog::Rule* rule : rules) {
    slugs.push_back({{"slug", rule->slug}, {"id", rule->id}, {"errorMessage", rule->message}});
  }
  return slugs;
}

ordered_json as_json(const catalog::Catalog& all, const catalog::Found& found) {
  if (found.rule == nullptr) return {{"found", false}, {"nearest", slugs_of(found.nearest)}};
  ordered_json values = ordered_json::object();
  for (const auto& [name, value] : found.values) values[name] = value;
  ordered_json answer = {{"found", true},
                         {"values", values},
                         {"fix", catalog::filled_fix(*found.rule, found.values)},
                         {"alsoPossible", slugs_of(found.also_possible)},
                         {"earlier", slugs_of(found.earlier)},
                         {"related", slugs_of(related_rules(all, *found.rule))}};
  answer.update(all.record(*found.rule));
  return answer;
}

class Explain final : public Command {
 public:
  explicit Explain(CLI::App& app) : Command(app) {
    app.add_option("WHAT", what_, "a slug, an id, a message, or a whole traceback; standard input where it is left out or -");
    app.add_flag("--json", json_, "print JSON");
  }

  int run() override {
    const std::string text = asked_text();
    const catalog::Catalog all;
    const catalog::Found found = all.find(text);
    if (json_) {
      std::cout << as_json(all, found).dump(2, ' ', false, ordered_json::error_handler_t::replace) << '\n';
    } else if (found.rule != nullptr) {
      print_text(all, found);
    } else {
      std::cout << "No message of this library is in this text.\n";
      print_rules("The nearest three", found.nearest);
    }
    return found.rule != nullptr ? 0 : kFailed;
  }

 private:
  std::string asked_text() const {
    std::string text;
    for (const std::string& word : what_) text.append(text.empty() ? "" : " ").append(word);
    if (!text.empty() && text != "-") return text;
    return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  }

  std::vector<std::string> what_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_explain(CLI::App& root) {
  return std::make_unique<Explain>(*root.add_subcommand("explain", "say what an error means and how to mend it"));
}

}  // namespace sparse_mla::cli
