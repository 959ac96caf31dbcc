#include "cli/run_file.h"

#include <chrono>
#include <iostream>
#include <stdexcept>

#include "cli/runner.h"
#include "cli/table.h"
#include "files/atomic_file.h"
#include "files/description.h"
#include "files/mapped_file.h"

namespace sparse_mla::cli {
namespace {

EntryPoint entry_point_of(const files::AnyCall& call) {
  return std::holds_alternative<PrefillCall>(call) ? EntryPoint::kPrefill : EntryPoint::kDecode;
}

files::CapturedCall read_call(const std::string& path) {
  if (files::looks_like_description(files::MappedFile(path).bytes())) {
    throw std::runtime_error(path + ": is a description of a call, without its data: it can be checked, not run");
  }
  return files::read_captured_call(path);
}

class RunFile final : public Command {
 public:
  RunFile(CLI::App& app, EntryPoint entry_point) : Command(app), entry_point_(entry_point) {
    app.add_option("IN", input_, "captured call (.safetensors)")->required();
    app.add_option("-o,--output", output_, "result file to write (.safetensors)")->required();
    add_backend_option(app, backend_);
    app.add_flag("--general", general_, "the general API's conditions instead of the entry point's contract");
  }

  int run() override {
    const Backend backend = backend_to_run(backend_);
    const files::CapturedCall captured = read_call(input_);
    if (entry_point_of(captured.call) != entry_point_) {
      throw std::runtime_error(input_ + ": is a call of " +
                               std::string(entry_point_name(entry_point_of(captured.call))) + ", not of " +
                               std::string(entry_point_name(entry_point_)));
    }
    const CheckOptions rules = {.contract = !general_, .device_rules = false, .values = true};
    std::visit([&rules](const auto& call) { enforce(call, rules); }, captured.call);
    files::require_writable(output_);

    const CallWithOutputs work(captured.call, general_);
    const auto start = std::chrono::steady_clock::now();
    {
      Progress progress(app().get_name(), work.rows());
      run_call(work.call(), backend, &progress);
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    files::write_result(output_, work.call());
    std::cout << output_ << ": " << work.rows() << " rows on " << backend_name(backend) << " in "
              << number(took.count()) << " ms\n";
    return 0;
  }

 private:
  EntryPoint entry_point_;
  std::string input_, output_, backend_ = "auto";
  bool general_ = false;
};

}  // namespace

std::unique_ptr<Command> make_run_file(CLI::App& app, EntryPoint entry_point) {
  return std::make_unique<RunFile>(app, entry_point);
}

}  // namespace sparse_mla::cli
