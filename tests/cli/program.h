// Runs the real sparse-mla in a process of its own.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "files/temporary_folder.h"

namespace sparse_mla::testing {

struct Outcome {
  int code = -1;  // exit status; 128 + the signal for a process that was killed
  std::string out;
  std::string err;
};

struct ProgramOptions {
  std::optional<rlim_t> file_size_limit;  // bytes that any file may grow to, as a full disk would have it
  std::string stdout_path;                // where standard output goes instead of Outcome::out
};

// In the child: never returns.
[[noreturn]] inline void exec_program(const std::vector<std::string>& arguments, const std::string& out,
                                      const std::string& err, const ProgramOptions& options) {
  ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
  ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
  if (options.file_size_limit) {
    const rlimit limit{*options.file_size_limit, *options.file_size_limit};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::vector<char*> argv = {const_cast<char*>(SPARSE_MLA_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

inline Outcome run_program(const std::vector<std::string>& arguments, const ProgramOptions& options = {}) {
  const TemporaryFolder streams;
  const std::string out = options.stdout_path.empty() ? streams.path("out") : options.stdout_path;
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) exec_program(arguments, out, streams.path("err"), options);
  int status = 0;
  ::waitpid(child, &status, 0);
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (options.stdout_path.empty()) outcome.out = content_of(out);
  outcome.err = content_of(streams.path("err"));
  return outcome;
}

}  // namespace sparse_mla::testing
