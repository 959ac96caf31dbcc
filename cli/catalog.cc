#include "catalog/catalog.h"

#include <iostream>

#include "catalog/server.h"
#include "cli/command.h"

namespace sparse_mla::cli {
namespace {

class CatalogCommand final : public Command {
 public:
  explicit CatalogCommand(CLI::App& app) : Command(app) {
    app.require_subcommand(1);
    build_ = app.add_subcommand("build", "write the site into a folder");
    build_->add_option("DIR", folder_, "the folder; it is made where there is none")->required();
    CLI::App* serve = app.add_subcommand("serve", "serve the site over HTTP until SIGTERM or Ctrl-C");
    serve->add_option("--port", options_.port, "0 takes a free one")->check(CLI::Range(0, 65535))->capture_default_str();
    serve->add_option("--host", options_.host, "the address to listen on")->capture_default_str();
  }

  int run() override {
    if (build_->parsed()) {
      catalog::write_site(folder_);
      std::cout << catalog::site().size() << " files in " << folder_ << '\n';
      return 0;
    }
    options_.on_listening = [this](int port) {
      const bool is_ipv6 = options_.host.find(':') != std::string::npos;
      std::cout << "http://" << (is_ipv6 ? "[" : "") << options_.host << (is_ipv6 ? "]" : "") << ':' << port << '/' << std::endl;
    };
    catalog::serve(options_);
    return 0;
  }

 private:
  CLI::App* build_ = nullptr;
  std::string folder_;
  catalog::ServeOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_catalog(CLI::App& root) {
  return std::make_unique<CatalogCommand>(*root.add_subcommand("catalog", "the error catalogue as a web site"));
}

}  // namespace sparse_mla::cli
