#include <charconv>
#include <csignal>
#include <exception>
#include <iostream>
#include <system_error>
#include <vector>

#include "cli/command.h"
#include "cuda/cuda.h"
#include "files/faults.h"
#include "sparse_mla/contract.h"

namespace sparse_mla::cli {

void add_backend_option(CLI::App& app, std::string& name) {
  app.add_option("--backend", name, "auto, cpu or cuda; auto is the best there is")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
}

namespace {

// CLI11 takes -1 for the largest number, and a number past 64 bits too.
std::string error_unless_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc{} && end == text.data() + text.size()) return {};
  return "must be a number from 0 to 2^64-1, got " + text;
}

}  // namespace

void add_seed_option(CLI::App& app, std::uint64_t& seed, const std::string& description) {
  app.add_option("--seed", seed, description)->check(error_unless_seed)->capture_default_str();
}

Backend backend_to_run(const std::string& name) {
  const Backend asked = backend_from_name(name);
  if (asked == Backend::kAuto) return best_backend();
  const std::string reason = asked == Backend::kCuda ? cuda::unavailable_reason() : "";
  if (!reason.empty()) throw std::runtime_error("backend cuda is not available: " + reason);
  return asked;
}

namespace {

int fail(std::string message) {
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::cerr << "sparse-mla: " << message << std::endl;
  return kFailed;
}

std::vector<std::unique_ptr<Command>> make_commands(CLI::App& root) {
  std::vector<std::unique_ptr<Command>> commands;
  for (const auto make : {make_demo, make_prefill, make_decode, make_make_case, make_check, make_compare, make_bench,
                          make_info, make_explain, make_catalog}) {
    commands.push_back(make(root));
  }
  return commands;
}

// The first word where it is neither an option nor a command; CLI11 would only say that a command is missing.
std::string unknown_word(const CLI::App& root, int argc, char** argv) {
  if (argc < 2 || root.get_option_no_throw(argv[1]) != nullptr) return {};
  for (const CLI::App* command : root.get_subcommands(nullptr)) {
    if (command->check_name(argv[1])) return {};
  }
  return argv[1];
}

int run(int argc, char** argv) {
  CLI::App root("Sparse MLA attention with an FP8 KV cache: run, check and compare captured calls.", "sparse-mla");
  root.set_version_flag("--version", std::string("sparse-mla ") + SPARSE_MLA_VERSION);
  root.require_subcommand(1);
  const std::vector<std::unique_ptr<Command>> commands = make_commands(root);
  if (const std::string word = unknown_word(root, argc, argv); !word.empty()) {
    return fail(files::in_quotes(word) + " is no command or option (sparse-mla --help lists them)");
  }
  try {
    root.parse(argc, argv);
    for (const std::unique_ptr<Command>& command : commands) {
      if (command->chosen()) {
        const int code = command->run();
        if (!std::cout.flush()) return fail("standard output cannot be written");
        return code;
      }
    }
    return kFailed;
  } catch (const CLI::Success& help_or_version) {
    return root.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (sparse-mla --help tells more)");
  } catch (const ContractError& error) {
    fail(error.violation().message + " [" + std::string(error.violation().slug) + "]");
    return kBroken;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace
}  // namespace sparse_mla::cli

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file past its size limit is then an error with a message
  return sparse_mla::cli::run(argc, argv);
}
