// A subcommand of sparse-mla. Each is a class of its own file: its constructor declares the options, run() does the
// work with them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "sparse_mla/attention.h"

namespace sparse_mla::cli {

// What the program returns: 0 done, kBroken for a call that breaks the contract or a result that is off, kFailed for
// everything that prevents an answer.
inline constexpr int kFailed = 1;
inline constexpr int kBroken = 2;

class Command {
 public:
  virtual ~Command() = default;
  // Prints its result to standard output and returns the exit code; throws on failure.
  virtual int run() = 0;
  bool chosen() const { return app_.parsed(); }

 protected:
  explicit Command(CLI::App& app) : app_(app) {}
  CLI::App& app() { return app_; }

 private:
  CLI::App& app_;
};

std::unique_ptr<Command> make_demo(CLI::App& root);
std::unique_ptr<Command> make_prefill(CLI::App& root);
std::unique_ptr<Command> make_decode(CLI::App& root);
std::unique_ptr<Command> make_make_case(CLI::App& root);
std::unique_ptr<Command> make_check(CLI::App& root);
std::unique_ptr<Command> make_compare(CLI::App& root);
std::unique_ptr<Command> make_bench(CLI::App& root);
std::unique_ptr<Command> make_info(CLI::App& root);
std::unique_ptr<Command> make_explain(CLI::App& root);
std::unique_ptr<Command> make_catalog(CLI::App& root);

// --backend auto|cpu|cuda; `name` starts as "auto".
void add_backend_option(CLI::App& app, std::string& name);
// --seed; any of 64 bits.
void add_seed_option(CLI::App& app, std::uint64_t& seed, const std::string& description);
// "auto" is the best backend there is. Throws std::invalid_argument, and std::runtime_error where the backend that was
// asked for cannot run here.
Backend backend_to_run(const std::string& name);

}  // namespace sparse_mla::cli
