// Serves the embedded site over HTTP.
#pragma once

#include <functional>
#include <string>

namespace sparse_mla::catalog {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0 takes a free one
  // Told the port once connections are accepted.
  std::function<void(int port)> on_listening = [](int) {};
};

// Serves until SIGTERM or SIGINT arrives; answers that have begun are finished. Files come from the program's memory, so
// no path can lead out of the site. Throws std::runtime_error where the address cannot be bound. Call it before the
// program has other threads: it blocks the two signals for all that come after.
void serve(const ServeOptions& options);

}  // namespace sparse_mla::catalog
